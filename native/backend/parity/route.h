#pragma once

#include "backend/parity/matrices.h"

namespace ds4::backend::parity {

enum class RouteBy { biased_score, score, hash };

struct RouteShape {
    int64_t tokens, experts, used;
    RouteBy by_what = RouteBy::biased_score;
    float   logit_scale = 8.0f;
    Slow    slow = Slow::nowhere;

    std::string name() const {
        return "route " + std::to_string(tokens) + " to " + std::to_string(used) + " of " + std::to_string(experts) +
               (by_what == RouteBy::hash ? " by hash" : by_what == RouteBy::score ? " unbiased" : "");
    }
};

/* More experts than a group of lanes, not a multiple of it, all of them used, the models' own. */
constexpr RouteShape kRouteShapes[] = {
    {12, 40, 6}, {9, 256, 6}, {9, 4, 2}, {9, 40, 6}, {9, 33, 33}, {9, 288, 40}, {9, 384, 8},
    {3, 64, 5, RouteBy::score, 30.0f}, {9, 8, 3, RouteBy::hash, 3.0f}, {9, 256, 6, RouteBy::hash},
};

struct RouteChoice {
    std::vector<int32_t> ids;
    std::vector<float>   weights;

    std::vector<float> all() const {
        std::vector<float> values = weights;
        append(values, ids);
        return values;
    }
};

struct RouteCase {
    int64_t              tokens, experts, used;
    std::vector<float>   logits;
    std::vector<float>   bias; /* empty: none */
    std::vector<int32_t> hash; /* empty: by score */
    std::vector<int32_t> token_ids;
    bool                 normalise;

    /* [tokens, used] */
    RouteChoice run(Backend &backend, int64_t piece) const {
        const auto placed_logits = place(backend, logits), placed_bias = place(backend, bias);
        const auto placed_hash = place(backend, hash);
        const auto ids = room<int32_t>(backend, static_cast<size_t>(tokens * used));
        const auto weights = room<float>(backend, static_cast<size_t>(tokens * used));
        int64_t    first = 0;
        for (const int64_t count : pieces(tokens, piece)) {
            backend.ops->route({count, experts, used, placed_logits.get() + first * experts,
                                bias.empty() ? nullptr : placed_bias.get(), hash.empty() ? nullptr : placed_hash.get(),
                                token_ids.data() + first, normalise, 1.5f, ids.get() + first * used,
                                weights.get() + first * used});
            first += count;
        }
        return {ids.read(), weights.read()};
    }
};

inline RouteCase route_case(const RouteShape &shape, bool normalise) {
    constexpr int64_t kVocab = 20;
    Random            random(61);
    RouteCase         one{shape.tokens, shape.experts, shape.used, {}, {}, {}, {}, normalise};
    one.logits = random.normals(shape.tokens * shape.experts, shape.logit_scale);
    one.token_ids.resize(static_cast<size_t>(shape.tokens));
    if (shape.by_what == RouteBy::biased_score) {
        one.bias = random.normals(shape.experts);
    } else if (shape.by_what == RouteBy::hash) {
        for (int64_t i = 0; i < kVocab * shape.used; ++i) { /* repeated or not */
            one.hash.push_back(static_cast<int32_t>(random.below(shape.experts)));
        }
        for (int32_t &id : one.token_ids) {
            id = static_cast<int32_t>(random.below(kVocab));
        }
    }
    return one;
}

} // namespace ds4::backend::parity
