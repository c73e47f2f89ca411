/* experts and begin_experts: a feed-forward layer with one batch for it. */
#pragma once

#include "backend/parity/matrices.h"

namespace ds4::backend::parity {

/* Skewed: the last expert gets all tokens, some get none. Repeated: a token may choose an expert twice. */
enum class Routing { spread, skewed, repeated };

struct ExpertsShape {
    quant::Type gate_up, down, shared_gate_up, shared_down;
    int64_t     tokens, width, inner, experts, used;
    bool        has_shared;
    Routing     routing = Routing::spread;
    int64_t     piece = 1; /* tokens of a piece when a card's batch is cut */
    Arithmetics arithmetics = Arithmetics::both;
    Slow        slow = Slow::nowhere;

    std::string name() const {
        constexpr const char *kNames[] = {"", " skewed", " repeated"};
        return std::string("experts ") + quant::type_name(gate_up) + "/" + quant::type_name(down) + " " +
               by({tokens, width, inner}) + " " + std::to_string(used) + " of " + std::to_string(experts) +
               (has_shared ? "" : " unshared") + kNames[static_cast<int>(routing)];
    }
};

inline std::vector<ExpertsShape> experts_shapes() {
    using enum quant::Type;
    constexpr auto spread = Routing::spread, skewed = Routing::skewed, repeated = Routing::repeated;
    constexpr auto fast = Arithmetics::fast;
    return {
        {f16, f16, f16, f16, 11, 128, 64, 8, 3, true},
        {iq2_xxs, q2_k, q8_0, q8_0, 11, 256, 256, 8, 3, true},
        {q4_k, q4_k, q8_0, q8_0, 9, 512, 256, 4, 2, true},
        {mxfp4, mxfp4, q4_k, q4_k, 9, 256, 256, 8, 6, true},
        /* Every mix of ways to round the inputs of the four products. */
        {iq2_xxs, q2_k, q8_0, q8_0, 9, 256, 256, 2, 1, true},
        {q4_k, q8_0, q8_0, q8_0, 9, 256, 32, 3, 2, true},
        {q8_0, q4_k, q8_0, q6_k, 9, 32, 256, 3, 1, true},
        {q5_k, mxfp4, q4_k, mxfp4, 9, 256, 32, 3, 1, true},
        {mxfp4, q6_k, q8_0, q5_k, 9, 32, 256, 3, 1, true},
        {q6_k, f16, iq2_xxs, f16, 9, 256, 40, 3, 1, true},
        {q8_0, q8_0, f32, f32, 9, 96, 160, 5, 2, false},
        {f16, f16, f16, bf16, 11, 64, 96, 8, 3, true},
        {f32, f32, f32, f32, 3, 1, 1, 1, 1, false},
        {f16, q8_0, bf16, f16, 9, 40, 32, 3, 2, true},
        /* Many tokens of an expert. */
        {q8_0, mxfp4, q8_0, q8_0, 150, 64, 32, 2, 1, true, spread, 8, fast},
        {iq2_xxs, q8_0, q8_0, q8_0, 70, 256, 32, 1, 1, false, spread, 8, fast},
        {q8_0, q2_k, q8_0, q8_0, 40, 32, 256, 2, 1, false, spread, 8, fast},
        {f16, f16, f16, f16, 140, 32, 40, 2, 1, true, spread, 8, fast},
        /* Many experts with few choices each, and one with more than a narrow tile takes. */
        {iq2_xxs, q2_k, q8_0, q8_0, 30, 256, 256, 20, 2, true, skewed, 8, fast},
        {q4_k, mxfp4, q8_0, q8_0, 20, 256, 64, 16, 2, true, skewed, 8, fast},
        {q8_0, q6_k, q8_0, q8_0, 20, 64, 256, 16, 2, false, skewed, 8, fast},
        {q8_0, q8_0, q8_0, q8_0, 70, 64, 32, 40, 2, true, skewed, 3, fast},
        {q8_0, q8_0, q8_0, q8_0, 70, 64, 32, 3, 3, true, repeated, 1, fast},
        {q8_0, q8_0, q8_0, q8_0, 11, 64, 32, 3, 20, true, repeated, 4, fast},
        /* Rows longer than what a lane holds, and of every alignment; alone, and more than blocks round for themselves. */
        {iq2_xxs, q8_0, q8_0, q8_0, 9, 4352, 32, 1, 1, false, spread, 1, fast},
        {q8_0, q2_k, q8_0, q8_0, 9, 32, 2304, 1, 1, false, spread, 1, fast},
        {f16, q8_0, q8_0, q8_0, 9, 33, 2080, 1, 1, false, spread, 1, fast},
        {iq2_xxs, q8_0, q8_0, q8_0, 9, 4352, 32, 1, 1, false, spread, 8, fast},
        {q8_0, q2_k, q8_0, q8_0, 9, 32, 2304, 1, 1, false, spread, 8, fast},
        {f16, q8_0, q8_0, q8_0, 9, 33, 2080, 1, 1, false, spread, 8, fast},
    };
}

/* Mixes of types with one, a few and many tokens, with and without a shared expert; rows too long for blocks to round, and
 * choices of all sorts. */
inline std::vector<ExpertsShape> begin_experts_shapes() {
    using enum quant::Type;
    const ExpertsShape mixes[] = {
        {iq2_xxs, q2_k, q8_0, q8_0, 0, 256, 256, 4, 3, true}, {q4_k, q8_0, q8_0, q8_0, 0, 256, 32, 4, 2, true},
        {q8_0, q4_k, q8_0, q6_k, 0, 32, 256, 3, 2, true},     {q5_k, mxfp4, q4_k, mxfp4, 0, 256, 32, 4, 2, true},
        {mxfp4, q6_k, q8_0, q5_k, 0, 32, 256, 3, 2, true},    {q6_k, f16, iq2_xxs, q8_0, 0, 256, 64, 4, 2, true},
        {f16, q8_0, bf16, f16, 0, 40, 32, 4, 2, true},        {f32, f32, f32, f32, 0, 3, 5, 3, 2, true},
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
    constexpr auto fast = Arithmetics::fast;
    shapes.push_back({q8_0, q8_0, q8_0, q8_0, 8, 4352, 32, 3, 2, true, Routing::spread, 1, fast});
    shapes.push_back({q8_0, mxfp4, q8_0, q8_0, 70, 64, 32, 40, 2, true, Routing::skewed, 1, fast});
    shapes.push_back({q8_0, q8_0, q8_0, q8_0, 11, 64, 32, 3, 20, true, Routing::repeated, 1, fast});
    return shapes;
}

/* In host memory. */
struct ExpertsCase {
    ExpertsShape             shape;
    std::vector<OwnedMatrix> gates, ups, downs;
    OwnedMatrix              shared_gate, shared_up, shared_down;
    std::vector<float>       x, weights;
    std::vector<int32_t>     ids;

    explicit ExpertsCase(const ExpertsShape &of) : shape(of) {
        Random random(71);
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
                if (shape.routing == Routing::skewed) {
                    expert = i == 0 ? shape.experts - 1 : i - 1;
                } else if (shape.routing == Routing::repeated) {
                    expert = (first + i / 2) % shape.experts;
                }
                ids.push_back(static_cast<int32_t>(expert));
                weights.push_back(std::fabs(random.normal()) + 0.1f);
            }
        }
    }

    /* [tokens, width] */
    std::vector<float> run(Backend &backend, int64_t piece, Layout layout = Layout::file) const;
};

constexpr float kExpertsClamp = 0.5f, kSharedClamp = 0.7f;

/* ---- a layer whose experts are not all there at first ----------------------------------------------- */

enum class Missing { none, some, all };
constexpr Missing     kMissing[] = {Missing::none, Missing::some, Missing::all};
constexpr const char *kMissingNames[] = {", none missing", ", some missing", ", all missing"};

struct SplitTables {
    std::vector<ExpertAddress> first, rest;
};

/* For begin_experts and the call after it. Experts that nobody chose are in neither; those that are there from the start have
 * `wrong` for gate and up in the second one, where nobody may look at these again. */
inline SplitTables split_tables(const std::vector<int32_t> &ids, const std::vector<ExpertAddress> &whole, Missing missing,
                                const std::byte *wrong) {
    SplitTables tables{std::vector<ExpertAddress>(whole.size()), std::vector<ExpertAddress>(whole.size())};
    for (const int32_t id : ids) {
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

/* The same layer on a device. The layout is that of the shared expert; the others lie as in the file. */
struct PlacedExperts {
    const ExpertsCase        &host;
    Backend                  &backend;
    std::vector<PlacedMatrix> matrices;
    PlacedMatrix              shared_gate, shared_up, shared_down;
    Placed<ExpertAddress>     table;
    Placed<float>             x, weights;
    Placed<int32_t>           ids;

    PlacedExperts(Backend &on, const ExpertsCase &of, Layout layout)
        : host(of), backend(on), shared_gate(place_matrix(on, of.shared_gate, layout)),
          shared_up(place_matrix(on, of.shared_up, layout)), shared_down(place_matrix(on, of.shared_down, layout)),
          x(place(on, of.x)), weights(place(on, of.weights)), ids(place(on, of.ids)) {
        std::vector<ExpertAddress> addresses;
        for (size_t e = 0; e < of.gates.size(); ++e) {
            const auto put = [&](const OwnedMatrix &matrix) {
                matrices.push_back(place_matrix(on, matrix, Layout::file));
                return matrices.back().matrix.data;
            };
            const std::byte *gate = put(of.gates[e]);
            const std::byte *up = put(of.ups[e]);
            addresses.push_back({gate, up, put(of.downs[e])});
        }
        table = place(on, addresses);
    }

    /* The whole batch. */
    ExpertsArgs args(float *out) const {
        const ExpertsShape &shape = host.shape;
        ExpertsArgs         call{};
        call.tokens = shape.tokens;
        call.width = shape.width;
        call.expert_width = shape.inner;
        call.experts = shape.experts;
        call.used = shape.used;
        call.x = x.get();
        call.ids = ids.get();
        call.weights = weights.get();
        call.table = table.get();
        call.gate_up_type = shape.gate_up;
        call.down_type = shape.down;
        call.clamp = kExpertsClamp;
        call.shared_gate = shape.has_shared ? &shared_gate.matrix : nullptr;
        call.shared_up = shape.has_shared ? &shared_up.matrix : nullptr;
        call.shared_down = shape.has_shared ? &shared_down.matrix : nullptr;
        call.shared_clamp = kSharedClamp;
        call.out = out;
        return call;
    }

    std::vector<float> run(int64_t piece) {
        const ExpertsShape &shape = host.shape;
        const auto          out = room<float>(backend, host.x.size());
        ExpertsArgs         call = args(out.get());
        int64_t             first = 0;
        for (const int64_t count : pieces(shape.tokens, piece)) {
            call.tokens = count;
            call.x = x.get() + first * shape.width;
            call.ids = ids.get() + first * shape.used;
            call.weights = weights.get() + first * shape.used;
            call.out = out.get() + first * shape.width;
            backend.ops->experts(call);
            first += count;
        }
        return out.read();
    }

    /* The whole batch in two calls. */
    std::vector<float> run_split(Missing missing) {
        const auto        wrong = room<std::byte>(backend, host.gates[0].bytes.size());
        const SplitTables tables = split_tables(host.ids, table.read(), missing, wrong.get());
        const auto        begun = place(backend, tables.first);
        auto              rest = place(backend, tables.rest);
        const auto        out = place(backend, std::vector<float>(host.x.size(), NAN));
        ExpertsArgs       call = args(out.get());
        call.table = begun.get();
        CHECK(backend.ops->begin_experts(call));
        rest.write(tables.rest); /* copies come between the two */
        call.table = rest.get();
        call.begun = begun.get();
        backend.ops->experts(call);
        return out.read();
    }
};

inline std::vector<float> ExpertsCase::run(Backend &backend, int64_t piece, Layout layout) const {
    return PlacedExperts(backend, *this, layout).run(piece);
}

} // namespace ds4::backend::parity
