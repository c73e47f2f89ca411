/* The best logits of one row, sorted, by three kernels that know nothing of each other's blocks:
 *
 * 1. The logits are dealt to chunks, and each chunk gives its best. Of the best of all chunks, take the `count` best: there
 *    are at least `count` logits that are no worse than the last of these. That one is the bar.
 * 2. Each block finds the bar, or one a little lower, and lists those of its logits that pass it. With one chunk for every
 *    32 logits, about half as many again pass as are wanted.
 * 3. The place of each in the answer is the number of listed ones that are better.
 *
 * Nothing is assumed about the logits: when many are equal many pass, and the last step takes longer. The list has no
 * order, but the places do not depend on one. */
#include "backend/gpu/gpu_ops.h"

namespace ds4::backend::gpu {

namespace {

constexpr int kChunks = 4096;
constexpr int kChunkThreads = 128; /* of a block of the first kernel */
constexpr int kChunkGroups = kChunks / kLanes;

constexpr int kGatherThreads = 512;
constexpr int kGatherPerThread = 8;
constexpr int kGatherPerBlock = kGatherThreads * kGatherPerThread;
constexpr int kKeysPerThread = kChunks / kGatherThreads;

constexpr int kRankThreads = 256;
constexpr int kRankBlocks = 128;
constexpr int kRankedAtOnce = 2; /* by a group */
constexpr int kTile = 2048;

constexpr uint32_t kBad = 1;    /* not-a-number or +infinity was seen */
constexpr uint32_t kFinite = 2; /* a finite number was seen */

/* In scratch memory. */
struct BestState {
    uint32_t chunk_best[kChunks];
    uint32_t seen[kChunkGroups]; /* kBad, kFinite */
    uint32_t listed;
    uint32_t padding[63];
    /* then the list, [vocab] */
};
static_assert(sizeof(BestState) % 256 == 0);

/* Larger for a larger logit. Both zeros are equal. */
DS4_DEVICE uint32_t key_of(float logit) {
    const uint32_t bits = bits_as<uint32_t>(logit + 0.0f);
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/* Chunk c is logits c, c + kChunks, ...: those of neighbouring tokens, which are often alike, fall into different ones. */
DS4_KERNEL __launch_bounds__(kChunkThreads) best_of_chunks(const float *logits, int64_t vocab, BestState *state) {
    const int chunk = static_cast<int>(blockIdx.x) * kChunkThreads + static_cast<int>(threadIdx.x);
    wait_for_inputs();
    let_next_start();
    uint32_t best = 0;
    bool     bad = false, finite = false;
#pragma unroll 16
    for (int64_t i = chunk; i < vocab; i += kChunks) {
        const float    logit = logits[i];
        const uint32_t key = key_of(logit);
        best = key > best ? key : best;
        bad |= !(logit < INFINITY);
        finite |= logit > -INFINITY && logit < INFINITY;
    }
    state->chunk_best[chunk] = best;
    const uint32_t some_bad = ballot(bad), some_finite = ballot(finite);
    if (lane() == 0) {
        state->seen[chunk / kLanes] = (some_bad != 0 ? kBad : 0u) | (some_finite != 0 ? kFinite : 0u);
    }
    if (chunk == 0) {
        state->listed = 0;
    }
}

/* How many of the block's keys reach each of seven bars, rising by `step` from low + step. The counts are below 2^16 and
 * travel in pairs. */
DS4_DEVICE void count_at_bars(const uint32_t (&keys)[kKeysPerThread], uint32_t low, uint32_t step, uint32_t (&counts)[8]) {
    __shared__ uint32_t of_group[kGatherThreads / kLanes][4];
    uint32_t            pairs[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 7; ++i) {
        /* A bar beyond the largest key is reached by none, so it must not wrap around. */
        const uint64_t bar = static_cast<uint64_t>(low) + static_cast<uint64_t>(step) * static_cast<uint32_t>(i + 1);
        const uint32_t below = bar > 0xffffffffu ? 0xffffffffu : static_cast<uint32_t>(bar) - 1;
#pragma unroll
        for (int k = 0; k < kKeysPerThread; ++k) {
            pairs[i / 2] += keys[k] > below ? 1u << (16 * (i % 2)) : 0u;
        }
    }
#pragma unroll
    for (int mask = 1; mask < kLanes; mask *= 2) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            pairs[i] += shuffle_xor(pairs[i], mask);
        }
    }
    sync_block(); /* the sums of the round before have been read */
    if (lane() == 0) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            of_group[group()][i] = pairs[i];
        }
    }
    sync_block();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        uint32_t total = 0;
#pragma unroll
        for (int g = 0; g < kGatherThreads / kLanes; ++g) {
            total += of_group[g][i];
        }
        counts[2 * i] = total & 0xffffu;
        counts[2 * i + 1] = total >> 16;
    }
}

/* A key that at least `count` of the block's kChunks keys reach, and not many more unless they are equal. Each round looks
 * into the eighth of the range in which the number of keys falls below `count`. */
DS4_DEVICE uint32_t find_bar(const uint32_t (&keys)[kKeysPerThread], uint32_t count) {
    const uint32_t enough = count + (count / 4 > 16 ? count / 4 : 16u);
    uint64_t       low = 0, high = uint64_t{1} << 32; /* `low` is reached by count keys, `high` is not */
    uint32_t       reached = kChunks;
    while (reached > enough && high - low > 1) {
        const uint64_t step = (high - low + 7) / 8;
        uint32_t       counts[8];
        count_at_bars(keys, static_cast<uint32_t>(low), static_cast<uint32_t>(step), counts);
        uint32_t passed = 0;
#pragma unroll
        for (uint32_t i = 0; i < 7; ++i) {
            if (counts[i] >= count) {
                passed = i + 1;
                reached = counts[i];
            }
        }
        low += step * passed;
        high = low + step < high ? low + step : high;
    }
    return static_cast<uint32_t>(low);
}

DS4_DEVICE uint64_t *list_of(BestState *state) { return reinterpret_cast<uint64_t *>(state + 1); }

/* Lists what reaches the bar, in any order: the key of the logit, then, in the low half, larger for a lower id. */
DS4_KERNEL __launch_bounds__(kGatherThreads) best_gather(const float *logits, int64_t vocab, int64_t count, BestState *state) {
    __shared__ uint32_t passed_in_block, first_of_block;
    const int           thread = static_cast<int>(threadIdx.x);
    if (thread == 0) {
        passed_in_block = 0;
    }
    wait_for_inputs();
    let_next_start();
    uint32_t best[kKeysPerThread], keys[kGatherPerThread];
#pragma unroll
    for (int i = 0; i < kKeysPerThread; ++i) {
        best[i] = state->chunk_best[i * kGatherThreads + thread];
    }
    const int64_t first = static_cast<int64_t>(blockIdx.x) * kGatherPerBlock + thread;
#pragma unroll
    for (int i = 0; i < kGatherPerThread; ++i) {
        const int64_t id = first + i * kGatherThreads;
        keys[i] = id < vocab ? key_of(logits[id]) : 0;
    }
    const uint32_t bar = count <= kChunks ? find_bar(best, static_cast<uint32_t>(count)) : 0;
    sync_block();

    uint32_t place[kGatherPerThread], in_group = 0;
#pragma unroll
    for (int i = 0; i < kGatherPerThread; ++i) {
        const uint32_t passing = ballot(first + i * kGatherThreads < vocab && keys[i] >= bar);
        place[i] = in_group + static_cast<uint32_t>(__popc(passing & ((1u << lane()) - 1u)));
        in_group += static_cast<uint32_t>(__popc(passing));
    }
    uint32_t first_of_group = 0;
    if (lane() == 0) {
        first_of_group = atomicAdd(&passed_in_block, in_group);
    }
    first_of_group = shuffle(first_of_group, 0);
    sync_block();
    if (thread == 0) {
        first_of_block = atomicAdd(&state->listed, passed_in_block);
    }
    sync_block();
    uint64_t *list = list_of(state) + first_of_block + first_of_group;
#pragma unroll
    for (int i = 0; i < kGatherPerThread; ++i) {
        const int64_t id = first + i * kGatherThreads;
        if (id < vocab && keys[i] >= bar) {
            list[place[i]] = static_cast<uint64_t>(keys[i]) << 32 | (0xffffffffu - static_cast<uint32_t>(id));
        }
    }
}

/* Puts each listed logit where it belongs: behind those that are better. A group counts for two at a time. */
DS4_KERNEL __launch_bounds__(kRankThreads)
    best_rank(const float *logits, int64_t count, BestState *state, float *logit, int32_t *id, int32_t *usable) {
    __shared__ uint64_t tile[kTile];
    constexpr int64_t   kPerBlock = kRankThreads / kLanes * kRankedAtOnce;
    wait_for_inputs();
    let_next_start();
    const uint64_t *list = list_of(state);
    const int64_t   listed = state->listed;
    if (blockIdx.x == 0 && group() == 0) {
        uint32_t seen = 0;
        for (int i = lane(); i < kChunkGroups; i += kLanes) {
            seen |= state->seen[i];
        }
        const uint32_t bad = ballot((seen & kBad) != 0), finite = ballot((seen & kFinite) != 0);
        if (lane() == 0) {
            *usable = bad == 0 && finite != 0 ? 1 : 0;
        }
    }
    for (int64_t first = static_cast<int64_t>(blockIdx.x) * kPerBlock; first < listed; first += gridDim.x * kPerBlock) {
        const int64_t own = first + group() * kRankedAtOnce;
        uint64_t      key[kRankedAtOnce];
        uint32_t      better[kRankedAtOnce];
#pragma unroll
        for (int i = 0; i < kRankedAtOnce; ++i) {
            key[i] = own + i < listed ? list[own + i] : 0;
            better[i] = 0;
        }
        for (int64_t begin = 0; begin < listed; begin += kTile) {
            const int tile_count = static_cast<int>(listed - begin < kTile ? listed - begin : kTile);
            sync_block(); /* the tile before has been read */
            for (int i = static_cast<int>(threadIdx.x); i < tile_count; i += kRankThreads) {
                tile[i] = list[begin + i];
            }
            sync_block();
#pragma unroll 4
            for (int i = lane(); i < tile_count; i += kLanes) {
                const uint64_t other = tile[i];
#pragma unroll
                for (int k = 0; k < kRankedAtOnce; ++k) {
                    better[k] += other > key[k] ? 1u : 0u;
                }
            }
        }
#pragma unroll
        for (int i = 0; i < kRankedAtOnce; ++i) {
            for (int mask = 1; mask < kLanes; mask *= 2) {
                better[i] += shuffle_xor(better[i], mask);
            }
            if (lane() == i && own + i < listed && better[i] < count) {
                const auto found = static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key[i]));
                id[better[i]] = found;
                logit[better[i]] = logits[found];
            }
        }
    }
}

} // namespace

void GpuOps::best(const BestArgs &args) {
    auto *state = reinterpret_cast<BestState *>(scratch(sizeof(BestState) + static_cast<size_t>(args.vocab) * sizeof(uint64_t)));
    launch(stream_, best_of_chunks, Grid{kChunks / kChunkThreads}, kChunkThreads, 0, args.logits, args.vocab, state);
    launch(stream_, best_gather, Grid{static_cast<unsigned>((args.vocab + kGatherPerBlock - 1) / kGatherPerBlock)},
           kGatherThreads, 0, args.logits, args.vocab, args.count, state);
    launch(stream_, best_rank, Grid{kRankBlocks}, kRankThreads, 0, args.logits, args.count, state, args.logit, args.id,
           args.finite);
}

size_t best_scratch(const OpsLimits &limits) {
    return sizeof(BestState) + static_cast<size_t>(limits.vocab) * sizeof(uint64_t);
}

} // namespace ds4::backend::gpu
