/* A feed-forward layer with one batch for it, for the tests of every backend. */
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "backend/cpu/ops_test.h"

namespace ds4::backend::cpu::test {

struct ExpertsShape {
    quant::Type gate_up, down, shared_gate_up, shared_down;
    int64_t     tokens, width, inner, experts, used;
    bool        has_shared;

    std::string name() const {
        return std::string("experts ") + quant::type_name(gate_up) + "/" + quant::type_name(down) + " " +
               std::to_string(tokens) + (has_shared ? "" : " unshared");
    }
};

/* Skewed: the last expert gets all tokens, some get none. Repeated: a token may choose an expert twice. */
enum class Routing { spread, skewed, repeated };

/* In host memory. */
struct ExpertsModel {
    ExpertsShape             shape;
    std::vector<OwnedMatrix> gates, ups, downs;
    OwnedMatrix              shared_gate, shared_up, shared_down;
    std::vector<float>       x, weights;
    std::vector<int32_t>     ids;

    ExpertsModel(const ExpertsShape &of, Routing routing, Random &random) : shape(of) {
        for (int64_t e = 0; e < shape.experts; ++e) {
            gates.push_back(random_matrix(shape.gate_up, shape.inner, shape.width, random));
            ups.push_back(random_matrix(shape.gate_up, shape.inner, shape.width, random));
            downs.push_back(random_matrix(shape.down, shape.width, shape.inner, random));
        }
        shared_gate = random_matrix(shape.shared_gate_up, shape.inner, shape.width, random);
        shared_up = random_matrix(shape.shared_gate_up, shape.inner, shape.width, random);
        shared_down = random_matrix(shape.shared_down, shape.width, shape.inner, random);
        x = random.normals(shape.tokens * shape.width, 0.3f);
        for (int64_t t = 0; t < shape.tokens; ++t) {
            const int64_t first = random.below(shape.experts);
            for (int64_t i = 0; i < shape.used; ++i) {
                int64_t expert = (first + i * 2 + i * 2 / shape.experts) % shape.experts;
                if (routing == Routing::skewed) {
                    expert = i == 0 ? shape.experts - 1 : i - 1;
                } else if (routing == Routing::repeated) {
                    expert = (first + i / 2) % shape.experts;
                }
                ids.push_back(static_cast<int32_t>(expert));
                weights.push_back(std::fabs(random.normal()) + 0.1f);
            }
        }
    }

    std::vector<ExpertAddress> table() const {
        std::vector<ExpertAddress> addresses;
        for (size_t e = 0; e < gates.size(); ++e) {
            addresses.push_back({gates[e].matrix.data, ups[e].matrix.data, downs[e].matrix.data});
        }
        return addresses;
    }

    /* Without what points into memory. */
    ExpertsArgs args() const {
        ExpertsArgs args{};
        args.width = shape.width;
        args.expert_width = shape.inner;
        args.experts = shape.experts;
        args.used = shape.used;
        args.gate_up_type = shape.gate_up;
        args.down_type = shape.down;
        args.clamp = 0.5f;
        args.shared_clamp = 0.7f;
        return args;
    }

    /* The whole batch; the caller adds a table and room for what comes out. */
    ExpertsArgs host_args() const {
        ExpertsArgs call = args();
        call.tokens = shape.tokens;
        call.x = x.data();
        call.ids = ids.data();
        call.weights = weights.data();
        call.shared_gate = shape.has_shared ? &shared_gate.matrix : nullptr;
        call.shared_up = shape.has_shared ? &shared_up.matrix : nullptr;
        call.shared_down = shape.has_shared ? &shared_down.matrix : nullptr;
        return call;
    }
};

/* ---- a layer whose experts are not all there at first ---------------------------------------------- */

enum class Missing { none, some, all };
constexpr Missing     kMissing[] = {Missing::none, Missing::some, Missing::all};
constexpr const char *kMissingNames[] = {", none missing", ", some missing", ", all missing"};

struct SplitTables {
    std::vector<ExpertAddress> first, rest;
};

/* For begin_experts and the call after it. Experts that nobody chose are in neither; those that are there from the start have
 * `wrong` for gate and up in the second one, where nobody may look at these again. */
inline SplitTables split_tables(const ExpertsModel &model, const std::vector<ExpertAddress> &whole, Missing missing,
                                const std::byte *wrong) {
    SplitTables tables{std::vector<ExpertAddress>(whole.size()), std::vector<ExpertAddress>(whole.size())};
    for (const int32_t id : model.ids) {
        const auto e = static_cast<size_t>(id);
        if (missing == Missing::all || (missing == Missing::some && e % 2 == 0)) {
            tables.rest[e] = whole[e];
        } else {
            tables.first[e] = whole[e];
            tables.rest[e] = {wrong, wrong, whole[e].down};
        }
    }
    return tables;
}

/* Every mix of types that the other tests of experts have, with one, a few and many tokens. */
inline std::vector<ExpertsShape> split_shapes() {
    using quant::Type;
    const ExpertsShape mixes[] = {
        {Type::iq2_xxs, Type::q2_k, Type::q8_0, Type::q8_0, 0, 256, 256, 4, 3, true},
        {Type::q4_k, Type::q8_0, Type::q8_0, Type::q8_0, 0, 256, 32, 4, 2, true},
        {Type::q8_0, Type::q4_k, Type::q8_0, Type::q6_k, 0, 32, 256, 3, 2, true},
        {Type::q5_k, Type::mxfp4, Type::q4_k, Type::mxfp4, 0, 256, 32, 4, 2, true},
        {Type::mxfp4, Type::q6_k, Type::q8_0, Type::q5_k, 0, 32, 256, 3, 2, true},
        {Type::q6_k, Type::f16, Type::iq2_xxs, Type::q8_0, 0, 256, 64, 4, 2, true},
        {Type::f16, Type::q8_0, Type::bf16, Type::f16, 0, 40, 32, 4, 2, true},
        {Type::f32, Type::f32, Type::f32, Type::f32, 0, 3, 5, 3, 2, true},
    };
    std::vector<ExpertsShape> shapes;
    for (ExpertsShape shape : mixes) {
        for (const int64_t tokens : {1, 3, 40}) {
            for (const bool has_shared : {true, false}) {
                shape.tokens = tokens;
                shape.has_shared = has_shared;
                shapes.push_back(shape);
            }
        }
    }
    return shapes;
}

} // namespace ds4::backend::cpu::test
