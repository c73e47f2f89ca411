#include "backend/cpu/ops_test.h"

namespace ds4::backend::cpu::test {

namespace {

struct Shape {
    quant::Type gate_up, down, shared;
    int64_t     tokens, width, inner, experts, used;
    bool        has_shared;
};

constexpr Shape kShapes[] = {
    {quant::Type::f16, quant::Type::f16, quant::Type::f16, 11, 128, 64, 8, 3, true},
    {quant::Type::iq2_xxs, quant::Type::q2_k, quant::Type::q8_0, 11, 256, 256, 8, 3, true},
    {quant::Type::q4_k, quant::Type::q4_k, quant::Type::q8_0, 9, 512, 256, 4, 2, true},
    {quant::Type::mxfp4, quant::Type::mxfp4, quant::Type::q4_k, 9, 256, 256, 8, 6, true},
    {quant::Type::q8_0, quant::Type::q8_0, quant::Type::f32, 9, 96, 160, 5, 2, false},
};

/* One expert's contribution; `inner_seen` gives what the second matrix makes of the inner vector. */
std::vector<double> apply(const OwnedMatrix &gate, const OwnedMatrix &up, const OwnedMatrix &down, bool exact,
                          const std::vector<float> &x, double weight, double clamp) {
    const auto         g = multiply(gate, exact, x, 1);
    const auto         u = multiply(up, exact, x, 1);
    std::vector<float> inner;
    for (size_t i = 0; i < g.size(); ++i) {
        const double gated = std::min(g[i], clamp);
        inner.push_back(static_cast<float>(gated / (1.0 + std::exp(-gated)) * std::min(std::max(u[i], -clamp), clamp) * weight));
    }
    return multiply(down, exact, inner, 1);
}

} // namespace

TEST("chosen experts and the shared expert add up like the reference") {
    for (const Shape &shape : kShapes) {
        Random                   random(71);
        std::vector<OwnedMatrix> gates, ups, downs;
        std::vector<ExpertAddress> table;
        for (int64_t e = 0; e < shape.experts; ++e) {
            gates.push_back(random_matrix(shape.gate_up, shape.inner, shape.width, random));
            ups.push_back(random_matrix(shape.gate_up, shape.inner, shape.width, random));
            downs.push_back(random_matrix(shape.down, shape.width, shape.inner, random));
            table.push_back({gates.back().matrix.data, ups.back().matrix.data, downs.back().matrix.data});
        }
        const OwnedMatrix        shared_gate = random_matrix(shape.shared, shape.inner, shape.width, random);
        const OwnedMatrix        shared_up = random_matrix(shape.shared, shape.inner, shape.width, random);
        const OwnedMatrix        shared_down = random_matrix(shape.shared, shape.width, shape.inner, random);
        const std::vector<float> x = random.normals(shape.tokens * shape.width, 0.3f);
        std::vector<int32_t>     ids;
        std::vector<float>       weights;
        for (int64_t t = 0; t < shape.tokens; ++t) {
            const int64_t first = random.below(shape.experts);
            for (int64_t i = 0; i < shape.used; ++i) {
                ids.push_back(static_cast<int32_t>((first + i * 2 + i * 2 / shape.experts) % shape.experts));
                weights.push_back(std::fabs(random.normal()) + 0.1f);
            }
        }
        const auto run = [&](Ops &ops, const std::vector<int64_t> &pieces) {
            std::vector<float> out(x.size());
            int64_t            first = 0;
            for (const int64_t piece : pieces) {
                ops.experts({piece, shape.width, shape.inner, shape.experts, shape.used, x.data() + first * shape.width,
                             ids.data() + first * shape.used, weights.data() + first * shape.used, table.data(),
                             shape.gate_up, shape.down, 0.5f, shape.has_shared ? &shared_gate.matrix : nullptr,
                             shape.has_shared ? &shared_up.matrix : nullptr, shape.has_shared ? &shared_down.matrix : nullptr,
                             0.7f, out.data() + first * shape.width});
                first += piece;
            }
            return out;
        };
        /* In the fast arithmetic an inner value next to a rounding boundary may become the neighbouring byte. */
        check_op(std::string("experts ") + quant::type_name(shape.gate_up) + "/" + quant::type_name(shape.down), shape.tokens,
                 Settings::both_arithmetics, 2e-7, run, [&](bool exact) {
                     std::vector<double> want;
                     for (int64_t t = 0; t < shape.tokens; ++t) {
                         const std::vector<float> own(x.begin() + t * shape.width, x.begin() + (t + 1) * shape.width);
                         std::vector<double>      total(static_cast<size_t>(shape.width));
                         const auto               add = [&](const std::vector<double> &part) {
                             for (size_t i = 0; i < total.size(); ++i) {
                                 total[i] += part[i];
                             }
                         };
                         for (int64_t i = 0; i < shape.used; ++i) {
                             const auto e = static_cast<size_t>(ids[static_cast<size_t>(t * shape.used + i)]);
                             add(apply(gates[e], ups[e], downs[e], exact, own,
                                       static_cast<double>(weights[static_cast<size_t>(t * shape.used + i)]), 0.5));
                         }
                         if (shape.has_shared) {
                             add(apply(shared_gate, shared_up, shared_down, exact, own, 1.0, static_cast<double>(0.7f)));
                         }
                         want.insert(want.end(), total.begin(), total.end());
                     }
                     return want;
                 });
    }
}

TEST("the gate is clamped from above only, the other factor on both sides") {
    for (const uint32_t set : instruction_sets()) {
        /* One value: gate g, up u, down 1. */
        const auto through = [&](float g, float u) {
            const float         one = 1.0f;
            const ExpertAddress address = {reinterpret_cast<const std::byte *>(&g), reinterpret_cast<const std::byte *>(&u),
                                           reinterpret_cast<const std::byte *>(&one)};
            const int32_t id = 0;
            float         out = 0.0f;
            Backend       backend = open(1, false, set);
            backend.ops->experts({1, 1, 1, 1, 1, &one, &id, &one, &address, quant::Type::f32, quant::Type::f32, 2.0f, nullptr,
                                  nullptr, nullptr, 0.0f, &out});
            return static_cast<double>(out);
        };
        const auto silu = [](double v) { return v / (1.0 + std::exp(-v)); };
        CHECK_NEAR("gated", (std::vector<double>{through(5.0f, 1.0f), through(-5.0f, 1.0f), through(1.0f, 9.0f), through(1.0f, -9.0f)}),
                   (std::vector<double>{silu(2.0), silu(-5.0), 2.0 * silu(1.0), -2.0 * silu(1.0)}), 1e-6);
        CHECK(std::isnan(through(NAN, 1.0f)));
        CHECK(std::isnan(through(1.0f, NAN)));
        CHECK(std::fabs(through(-200.0f, 1.0f)) < 1e-30);
    }
}

} // namespace ds4::backend::cpu::test
