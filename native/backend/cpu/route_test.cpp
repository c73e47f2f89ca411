#include "backend/cpu/ops_test.h"

#include <algorithm>
#include <limits>

#include "backend/parity/route.h"

namespace ds4::backend::cpu::test {

namespace {

double score_of(double logit) {
    return std::sqrt(logit > 20.0 ? logit : std::log1p(std::exp(logit)));
}

std::vector<double> in_double(const parity::RouteCase &in) {
    std::vector<double> weights, ids;
    for (int64_t t = 0; t < in.tokens; ++t) {
        const auto own = [&](int64_t e) {
            return score_of(static_cast<double>(in.logits[static_cast<size_t>(t * in.experts + e)]));
        };
        const auto ranked = [&](int64_t e) {
            return own(e) + (in.bias.empty() ? 0.0 : static_cast<double>(in.bias[static_cast<size_t>(e)]));
        };
        std::vector<int64_t> chosen(static_cast<size_t>(in.experts));
        std::iota(chosen.begin(), chosen.end(), 0);
        std::stable_sort(chosen.begin(), chosen.end(), [&](int64_t a, int64_t b) { return ranked(a) > ranked(b); });
        if (!in.hash.empty()) {
            const auto line = in.hash.begin() + in.token_ids[static_cast<size_t>(t)] * in.used;
            chosen.assign(line, line + in.used);
        }
        chosen.resize(static_cast<size_t>(in.used));
        double total = 0.0;
        for (const int64_t e : chosen) {
            total += own(e);
        }
        for (const int64_t e : chosen) {
            ids.push_back(static_cast<double>(e));
            weights.push_back(own(e) * 1.5 / (in.normalise ? total : 1.0));
        }
    }
    weights.insert(weights.end(), ids.begin(), ids.end());
    return weights;
}

} // namespace

TEST("the best experts by biased score get weights by unbiased score") {
    for (const parity::RouteShape &shape : parity::kRouteShapes) {
        for (const bool normalise : {false, true}) {
            if (tried_on_cpu(shape.slow)) {
                const parity::RouteCase in = parity::route_case(shape, normalise);
                check_op(shape.name(), shape.tokens, Settings::one_arithmetic, 1e-13,
                         [&](Backend &backend, int64_t piece) { return in.run(backend, piece).all(); },
                         [&](bool) { return in_double(in); });
            }
        }
    }
}

TEST("hash layers take their experts from the table in its order") {
    const std::vector<float>   logits = {0.0f, 1.0f, 2.0f, 3.0f};
    const std::vector<int32_t> hash = {0, 1, 3, 1, 2, 0};
    const std::vector<int32_t> tokens = {2, 1};
    const std::vector<float>   both = {0.0f, 1.0f, 2.0f, 3.0f, 3.0f, 2.0f, 1.0f, 0.0f};
    std::vector<int32_t>       ids(4);
    std::vector<float>         weights(4);
    Backend                    backend = open(1, false, DS4_ISA_AUTO);

    backend.ops->route({2, 4, 2, both.data(), nullptr, hash.data(), tokens.data(), true, 1.0f, ids.data(), weights.data()});

    CHECK((ids == std::vector<int32_t>{2, 0, 3, 1}));
    CHECK_NEAR("weights", weights,
               (std::vector<double>{score_of(2) / (score_of(2) + score_of(0)), score_of(0) / (score_of(2) + score_of(0)),
                                    score_of(0) / (score_of(2) + score_of(0)), score_of(2) / (score_of(2) + score_of(0))}),
               1e-6);
}

TEST("equal scores go to the lower id") {
    const std::vector<float> logits(8, 1.0f);
    const std::vector<float> bias(8, 0.0f);
    std::vector<int32_t>     ids(3);
    std::vector<float>       weights(3);
    Backend                  backend = open(1, false, DS4_ISA_AUTO);

    backend.ops->route({1, 8, 3, logits.data(), bias.data(), nullptr, nullptr, true, 1.5f, ids.data(), weights.data()});

    CHECK((ids == std::vector<int32_t>{0, 1, 2}));
    CHECK_NEAR("weights", weights, std::vector<double>(3, 0.5), 1e-6);
}

TEST("logits that are not numbers never give an invalid or repeated id") {
    std::vector<float>       logits(8, NAN);
    const std::vector<float> bias(8, 0.0f);
    std::vector<int32_t>     ids(3, -1);
    std::vector<float>       weights(3);
    Backend                  backend = open(1, false, DS4_ISA_AUTO);

    backend.ops->route({1, 8, 3, logits.data(), bias.data(), nullptr, nullptr, true, 1.5f, ids.data(), weights.data()});
    CHECK((ids == std::vector<int32_t>{0, 1, 2}));
    CHECK(std::isnan(weights[0]));

    logits[5] = 1.0f;
    logits[6] = -std::numeric_limits<float>::infinity();
    backend.ops->route({1, 8, 3, logits.data(), bias.data(), nullptr, nullptr, true, 1.5f, ids.data(), weights.data()});
    CHECK((ids == std::vector<int32_t>{5, 6, 0}));
}

TEST("scores that are all zero do not divide by zero") {
    const std::vector<float> logits(4, -200.0f);
    const std::vector<float> bias(4, 0.0f);
    std::vector<int32_t>     ids(2);
    std::vector<float>       weights(2);
    Backend                  backend = open(1, false, DS4_ISA_AUTO);

    backend.ops->route({1, 4, 2, logits.data(), bias.data(), nullptr, nullptr, true, 1.5f, ids.data(), weights.data()});

    CHECK(weights[0] == 0.0f && weights[1] == 0.0f);
}

} // namespace ds4::backend::cpu::test
