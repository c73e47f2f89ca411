/* Attention on a card against the CPU's. */
#include "backend/parity/attention.h"

#include <cmath>

#include "backend/gpu/parity_test.h"

namespace ds4::backend::gpu::test {

namespace {

/* For the kernels for a few tokens and for many, where the card is quick enough. */
#if defined(DS4_EMULATED)
constexpr int64_t kBatches[] = {1};
#else
constexpr int64_t kBatches[] = {1, 16};
#endif

} // namespace

TEST("attention equals the CPU's, in the same bits however a batch is cut") {
    for (const parity::AttentionShape &shape : parity::kAttentionShapes) {
        if (!tried_on_card(shape.slow)) {
            continue;
        }
        const parity::AttentionCase in(shape);
        for (const bool exact : {false, true}) {
            const auto        run = [&](Backend &backend, int64_t piece) { return in.run(backend, piece); };
            const std::string name = shape.name() + (exact ? " exact" : "");
            /* With halves, queries, rows and probabilities lose what is below 2^-11 of them. */
            const double tolerance = !exact && shape.dim == 512 ? 1e-6 : 1e-10;
            if (shape.tokens > 32) {
                check_parity(name, shape.tokens, exact, tolerance, run, {1, 7, 17});
            } else {
                check_parity(name, shape.tokens, exact, tolerance, run);
            }
        }
    }
}

TEST("in attention large logits neither overflow nor hide the sink") {
    for (const int64_t dim : {16, 512}) {
        for (const int64_t tokens : kBatches) {
            parity::AttentionCase in({tokens, 2, dim, 2, 1, 0, 0, 0, 0, 0});
            in.frequency[0] = 0.0f;
            std::fill(in.q.begin(), in.q.end(), 0.0f);
            std::fill(in.ring.begin(), in.ring.end(), 0.0f);
            in.sinks = {0.0f, 60.0f};
            for (int64_t t = 0; t < tokens; ++t) { /* head 0: logit 1000; head 1: logit 0 against a sink of 60 */
                in.q[static_cast<size_t>(2 * t * dim)] = 1000.0f * std::sqrt(static_cast<float>(dim));
                in.ring[static_cast<size_t>(t * dim)] = 1.0f;
            }
            Backend                  backend = gpu(false);
            const std::vector<float> out = in.run(backend, tokens);
            for (int64_t t = 0; t < tokens; ++t) {
                CHECK(out[static_cast<size_t>(2 * t * dim)] == 1.0f);
                const float other = out[static_cast<size_t>((2 * t + 1) * dim)];
                CHECK(other > 0.0f && other < 1e-25f);
            }
        }
    }
}

TEST("in attention not-a-number in a query stays in its head") {
    for (const int64_t dim : {32, 512}) {
        for (const int64_t tokens : kBatches) {
            parity::AttentionCase in({tokens, 4, dim, 4, 8, 0, 0, 0, 0, 7});
            in.q[static_cast<size_t>(dim + 3)] = NAN;
            Backend                  backend = gpu(false);
            const std::vector<float> out = in.run(backend, tokens);
            for (size_t i = 0; i < out.size(); ++i) {
                CHECK(std::isnan(out[i]) == (i / static_cast<size_t>(dim) == 1));
            }
        }
    }
}

TEST("in attention values beyond what halves hold stay finite") {
    for (const int64_t tokens : kBatches) {
        parity::AttentionCase in({tokens, 2, 512, 64, 8, 0, 0, 0, 0, 100});
        for (size_t i = 5; i < in.ring.size(); i += 512) {
            in.ring[i] = 1e6f;
            in.ring[i + 1] = -1e30f;
        }
        Backend backend = gpu(false);
        for (const float value : in.run(backend, tokens)) {
            CHECK(std::isfinite(value));
        }
    }
}

} // namespace ds4::backend::gpu::test
