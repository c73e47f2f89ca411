#include "backend/cpu/cpu_ops.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ds4::backend::cpu {

namespace {

float score_of(float logit) {
    return std::sqrt(logit > 20.0f ? logit : std::log1p(std::exp(logit)));
}

/* The `used` largest of scores, best first; the lower id wins among equals, and not-a-number counts as the lowest.
 * Insertion into a short list: a chosen place is never taken twice, whatever the numbers are. */
void choose(const float *scores, const float *bias, int64_t experts, int64_t used, int32_t *ids, float *best) {
    int64_t filled = 0;
    for (int64_t e = 0; e < experts; ++e) {
        float key = bias != nullptr ? scores[e] + bias[e] : scores[e];
        if (std::isnan(key)) {
            key = -std::numeric_limits<float>::infinity();
        }
        if (filled == used && !(key > best[used - 1])) {
            continue;
        }
        int64_t place = filled < used ? filled++ : used - 1;
        for (; place > 0 && key > best[place - 1]; --place) {
            best[place] = best[place - 1];
            ids[place] = ids[place - 1];
        }
        best[place] = key;
        ids[place] = static_cast<int32_t>(e);
    }
}

} // namespace

void CpuOps::route(const RouteArgs &args) {
    pool_.run_ranges(args.tokens, args.tokens * args.experts * 30, [&](int64_t first, int64_t last, uint32_t thread) {
        auto *scores = workspaces_[thread].floats.take<float>(args.experts + args.used);
        for (int64_t t = first; t < last; ++t) {
            const float *logits = args.logits + t * args.experts;
            int32_t     *ids = args.ids + t * args.used;
            float       *weights = args.weights + t * args.used;
            if (args.hash != nullptr) {
                std::copy_n(args.hash + args.token_ids[t] * args.used, args.used, ids);
                for (int64_t i = 0; i < args.used; ++i) {
                    weights[i] = score_of(logits[ids[i]]);
                }
            } else {
                for (int64_t e = 0; e < args.experts; ++e) {
                    scores[e] = score_of(logits[e]);
                }
                choose(scores, args.bias, args.experts, args.used, ids, scores + args.experts);
                for (int64_t i = 0; i < args.used; ++i) {
                    weights[i] = scores[ids[i]];
                }
            }
            float factor = args.scale;
            if (args.normalise) {
                float total = 0.0f;
                for (int64_t i = 0; i < args.used; ++i) {
                    total += weights[i];
                }
                /* In this order a total that is not a number stays one. */
                factor /= total < 0x1p-14f ? 0x1p-14f : total;
            }
            for (int64_t i = 0; i < args.used; ++i) {
                weights[i] *= factor;
            }
        }
    });
}

} // namespace ds4::backend::cpu
