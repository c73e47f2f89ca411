/* Which experts a token goes to. Two ranks choose them: each group of 32 lanes ranks 32 experts among themselves by
 * shuffles and keeps its `used` best, then those candidates are ranked among each other. No round waits for another, so
 * that the time does not grow with `used`. */
#include "backend/gpu/gpu_ops.h"

#include <algorithm>

namespace ds4::backend::gpu {

namespace {

constexpr int kMostThreads = 256;

struct RouteShape {
    int64_t experts;
    int32_t used;
    int32_t kept;       /* candidates of 32 experts */
    int32_t candidates; /* room for all of them */
    float   scale;
    bool    normalise;
};

DS4_DEVICE float score_of(float logit) {
    return sqrtf(logit > 20.0f ? logit : log1pf(expf(logit)));
}

/* Whether something with `other` in front of place `place` is better than something with `key` at `own`: larger first,
 * then the earlier place. */
DS4_DEVICE int comes_first(float other, int place, float key, int own) {
    return other > key || (other == key && place < own) ? 1 : 0;
}

DS4_DEVICE void write_weights(const float *chosen, const RouteShape &shape, float *weights) {
    float factor = shape.scale;
    if (shape.normalise) {
        float total = 0.0f;
        for (int i = 0; i < shape.used; ++i) {
            total += chosen[i];
        }
        /* In this order a total that is not a number stays one. */
        factor /= total < 0x1p-14f ? 0x1p-14f : total;
    }
    for (int i = static_cast<int>(threadIdx.x); i < shape.used; i += static_cast<int>(blockDim.x)) {
        weights[i] = chosen[i] * factor;
    }
}

/* One block per token. logits: [tokens, experts] */
DS4_KERNEL route_by_score(const float *logits, const float *bias, RouteShape shape, int32_t *ids, float *weights) {
    DS4_SHARED(float, chosen); /* [used] */
    float   *keys = chosen + shape.used;
    float   *scores = keys + shape.candidates;
    int32_t *experts = reinterpret_cast<int32_t *>(scores + shape.candidates);

    wait_for_inputs();
    let_next_start();
    logits += static_cast<int64_t>(blockIdx.x) * shape.experts;
    ids += static_cast<int64_t>(blockIdx.x) * shape.used;
    weights += static_cast<int64_t>(blockIdx.x) * shape.used;

    for (int64_t first = kLanes * group(); first < shape.experts; first += kLanes * groups()) {
        const int64_t expert = first + lane();
        const bool    valid = expert < shape.experts;
        const float   score = valid ? score_of(logits[expert]) : 0.0f;
        float         key = valid && bias != nullptr ? score + bias[expert] : score;
        if (key != key) {
            key = -INFINITY;
        }
        const int count = static_cast<int>(shape.experts - first < kLanes ? shape.experts - first : kLanes);
        int       rank = 0;
        for (int i = 0; i < count; ++i) {
            rank += comes_first(shuffle(key, i), i, key, lane());
        }
        if (valid && rank < shape.kept) {
            const int64_t place = first / kLanes * shape.kept + rank;
            keys[place] = key;
            scores[place] = score;
            experts[place] = static_cast<int32_t>(expert);
        }
    }
    sync_block();

    /* Candidates stand in the order of their experts among equals. The last 32 experts may have left places empty. */
    const int64_t rest = shape.experts % kLanes;
    const int     filled = static_cast<int>(shape.experts / kLanes * shape.kept + (rest < shape.kept ? rest : shape.kept));
    for (int own = static_cast<int>(threadIdx.x); own < filled; own += static_cast<int>(blockDim.x)) {
        const float key = keys[own];
        int         rank = 0;
        for (int i = 0; i < filled; ++i) {
            rank += comes_first(keys[i], i, key, own);
        }
        if (rank < shape.used) {
            chosen[rank] = scores[own];
            ids[rank] = experts[own];
        }
    }
    sync_block();
    write_weights(chosen, shape, weights);
}

/* One group of 32 lanes per token. hash: [vocab, used] */
DS4_KERNEL route_by_token(const float *logits, const int32_t *hash, const int32_t *tokens, RouteShape shape, int32_t *ids,
                          float *weights) {
    DS4_SHARED(float, chosen); /* [used] */
    wait_for_inputs();
    let_next_start();
    const int64_t token = blockIdx.x;
    const int64_t row = static_cast<int64_t>(tokens[token]) * shape.used;
    for (int i = lane(); i < shape.used; i += kLanes) {
        const int32_t expert = hash[row + i];
        ids[token * shape.used + i] = expert;
        chosen[i] = score_of(logits[token * shape.experts + expert]);
    }
    sync_block();
    write_weights(chosen, shape, weights + token * shape.used);
}

} // namespace

void GpuOps::route(const RouteArgs &args) {
    if (args.tokens == 0) {
        return;
    }
    RouteShape shape{};
    shape.experts = args.experts;
    shape.used = static_cast<int32_t>(args.used);
    shape.kept = static_cast<int32_t>(std::min<int64_t>(args.used, kLanes));
    shape.candidates = static_cast<int32_t>((args.experts + kLanes - 1) / kLanes * shape.kept);
    shape.scale = args.scale;
    shape.normalise = args.normalise;
    const Grid   grid{static_cast<unsigned>(args.tokens)};
    const size_t chosen_bytes = static_cast<size_t>(args.used) * sizeof(float);
    if (args.hash != nullptr) {
        launch(stream_, route_by_token, grid, kLanes, chosen_bytes, args.logits, args.hash,
               device_tokens(args.token_ids, args.tokens), shape, args.ids, args.weights);
        return;
    }
    const int64_t threads = std::min<int64_t>((args.experts + kLanes - 1) / kLanes * kLanes, kMostThreads);
    const size_t  bytes = chosen_bytes + static_cast<size_t>(shape.candidates) * (2 * sizeof(float) + sizeof(int32_t));
    launch(stream_, route_by_score, grid, static_cast<unsigned>(threads), bytes, args.logits, args.bias, shape, args.ids,
           args.weights);
}

size_t route_scratch(const OpsLimits &) {
    return 0;
}

} // namespace ds4::backend::gpu
