#include "backend/cpu/ops_test.h"

#include <algorithm>
#include <limits>

namespace ds4::backend::cpu::test {

namespace {

double score_of(double logit) {
    return std::sqrt(logit > 20.0 ? logit : std::log1p(std::exp(logit)));
}

} // namespace

TEST("the best experts by biased score get weights by unbiased score") {
    constexpr int64_t        tokens = 12, experts = 40, used = 6;
    Random                   random(61);
    const std::vector<float> logits = random.normals(tokens * experts, 8.0f);
    const std::vector<float> bias = random.normals(experts);
    for (const bool normalise : {false, true}) {
        const auto run = [&](Ops &ops, const std::vector<int64_t> &pieces) {
            std::vector<int32_t> ids(tokens * used);
            std::vector<float>   weights(tokens * used);
            int64_t              first = 0;
            for (const int64_t piece : pieces) {
                ops.route({piece, experts, used, logits.data() + first * experts, bias.data(), nullptr, nullptr, normalise,
                           1.5f, ids.data() + first * used, weights.data() + first * used});
                first += piece;
            }
            weights.insert(weights.end(), ids.begin(), ids.end());
            return weights;
        };
        check_op("route", tokens, Settings::one_arithmetic, 1e-13, run, [&](bool) {
            std::vector<double> weights, ids;
            for (int64_t t = 0; t < tokens; ++t) {
                std::vector<int64_t> order(experts);
                std::iota(order.begin(), order.end(), 0);
                const auto own = [&](int64_t e) { return score_of(static_cast<double>(logits[static_cast<size_t>(t * experts + e)])); };
                std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
                    return own(a) + static_cast<double>(bias[static_cast<size_t>(a)]) >
                           own(b) + static_cast<double>(bias[static_cast<size_t>(b)]);
                });
                double total = 0.0;
                for (int64_t i = 0; i < used; ++i) {
                    total += own(order[static_cast<size_t>(i)]);
                }
                for (int64_t i = 0; i < used; ++i) {
                    ids.push_back(static_cast<double>(order[static_cast<size_t>(i)]));
                    weights.push_back(own(order[static_cast<size_t>(i)]) * 1.5 / (normalise ? total : 1.0));
                }
            }
            weights.insert(weights.end(), ids.begin(), ids.end());
            return weights;
        });
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
