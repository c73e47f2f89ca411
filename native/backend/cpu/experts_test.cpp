#include "backend/cpu/ops_test.h"

#include "backend/parity/experts.h"

namespace ds4::backend::cpu::test {

namespace {

/* One expert's contribution. */
std::vector<double> apply(const OwnedMatrix &gate, const OwnedMatrix &up, const OwnedMatrix &down, bool exact,
                          const std::vector<float> &x, double weight, double clamp) {
    const auto         g = multiply(gate, exact, x, 1);
    const auto         u = multiply(up, exact, x, 1);
    std::vector<float> inner;
    for (size_t i = 0; i < g.size(); ++i) {
        const double gated = std::min(g[i], clamp);
        const double clipped = std::min(std::max(u[i], -clamp), clamp);
        inner.push_back(static_cast<float>(gated / (1.0 + std::exp(-gated)) * clipped * weight));
    }
    return multiply(down, exact, inner, 1);
}

std::vector<double> in_double(const parity::ExpertsCase &in, bool exact) {
    const parity::ExpertsShape &shape = in.shape;
    std::vector<double>         want;
    for (int64_t t = 0; t < shape.tokens; ++t) {
        const std::vector<float> own(in.x.begin() + t * shape.width, in.x.begin() + (t + 1) * shape.width);
        std::vector<double>      total(static_cast<size_t>(shape.width));
        const auto               add = [&](const std::vector<double> &part) {
            for (size_t i = 0; i < total.size(); ++i) {
                total[i] += part[i];
            }
        };
        for (int64_t i = 0; i < shape.used; ++i) {
            const auto choice = static_cast<size_t>(t * shape.used + i);
            const auto e = static_cast<size_t>(in.ids[choice]);
            add(apply(in.gates[e], in.ups[e], in.downs[e], exact, own, static_cast<double>(in.weights[choice]),
                      static_cast<double>(parity::kExpertsClamp)));
        }
        if (shape.has_shared) {
            add(apply(in.shared_gate, in.shared_up, in.shared_down, exact, own, 1.0,
                      static_cast<double>(parity::kSharedClamp)));
        }
        want.insert(want.end(), total.begin(), total.end());
    }
    return want;
}

} // namespace

TEST("chosen experts and the shared expert add up like the reference") {
    for (const parity::ExpertsShape &shape : parity::experts_shapes()) {
        if (!tried_on_cpu(shape.slow)) {
            continue;
        }
        const parity::ExpertsCase in(shape);
        /* In the fast arithmetic an inner value next to a rounding boundary may become the neighbouring byte. */
        check_op(shape.name(), shape.tokens, Settings::both_arithmetics, 2e-7,
                 [&](Backend &backend, int64_t piece) { return in.run(backend, piece); },
                 [&](bool exact) { return in_double(in, exact); });
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
