/* The best rows of a token. Scores become keys of 32 bits in the same order. Counting keys into 2048 equal ranges between
 * the least and the largest finds the range in which the top_k-th lies; that range is divided again until it is one key or
 * is taken whole, which three rounds always reach and which one or two mostly do. A last pass lists what lies above, and of
 * the rows that equal the top_k-th the first, in the order of the rows.
 *
 * A block does this for a token. A single token with very many rows would wait for one multiprocessor: its rows are cut into
 * chunks whose best are found side by side, and a block chooses among those. */
#include "backend/gpu/indexer_select.h"

#include <algorithm>

#include "backend/gpu/indexer_score.h"

namespace ds4::backend::gpu {

namespace {

constexpr int kThreads = 1024;
constexpr int kGroups = kThreads / kLanes;
constexpr int kBinBits = 11;
constexpr int kBins = 1 << kBinBits;
static_assert(kBins == 2 * kThreads && kGroups == kLanes);

constexpr int kStep = 4 * kThreads; /* keys of a pass over the block */

constexpr int64_t kChunkRows = 8192;
constexpr int64_t kMostChunks = 32;

int64_t chunk_rows(int64_t row_capacity) {
    const int64_t rows = (row_capacity + kMostChunks - 1) / kMostChunks;
    return std::max(kChunkRows, (rows + 3) / 4 * 4);
}

int64_t chunk_count(int64_t tokens, int64_t row_capacity) {
    const bool chunks = tokens <= kFewTokens && row_capacity > 2 * kChunkRows;
    return chunks ? (row_capacity + chunk_rows(row_capacity) - 1) / chunk_rows(row_capacity) : 0;
}

/* ---- keys ---------------------------------------------------------------------------------------- */

/* Not-a-number counts as the lowest, and the two zeros are one number. No score has the key 0: it stands for none. */
DS4_DEVICE uint32_t key_of(float score) {
    const uint32_t bits = bits_as<uint32_t>(score == score ? score + 0.0f : -INFINITY);
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

struct Keys {
    uint32_t key[4];
};

struct Scores {
    const float *scores;
    bool         whole; /* fours of them lie on 16 bytes */

    explicit DS4_DEVICE Scores(const float *from) : scores(from), whole(reinterpret_cast<uintptr_t>(from) % 16 == 0) {}

    /* Of i .. i + 3, 0 from `end` on. */
    DS4_DEVICE Keys load(int i, int end) const {
        if (whole && i + 4 <= end) {
            const float4 four = *reinterpret_cast<const float4 *>(scores + i);
            return {{key_of(four.x), key_of(four.y), key_of(four.z), key_of(four.w)}};
        }
        Keys keys;
        for (int j = 0; j < 4; ++j) {
            keys.key[j] = i + j < end ? key_of(scores[i + j]) : 0u;
        }
        return keys;
    }
};

struct Candidates {
    const uint32_t *keys;
    bool            whole;

    explicit DS4_DEVICE Candidates(const uint32_t *from) : keys(from), whole(reinterpret_cast<uintptr_t>(from) % 16 == 0) {}

    DS4_DEVICE Keys load(int i, int end) const {
        if (whole && i + 4 <= end) {
            const uint4 four = *reinterpret_cast<const uint4 *>(keys + i);
            return {{four.x, four.y, four.z, four.w}};
        }
        Keys loaded;
        for (int j = 0; j < 4; ++j) {
            loaded.key[j] = i + j < end ? keys[i + j] : 0u;
        }
        return loaded;
    }
};

/* ---- a block's choice ---------------------------------------------------------------------------- */

/* value plus those of the lanes in front. */
DS4_DEVICE uint32_t sum_up_to(uint32_t value) {
    for (int distance = 1; distance < kLanes; distance *= 2) {
        const uint32_t other = shuffle(value, lane() < distance ? lane() : lane() - distance);
        value += lane() < distance ? 0u : other;
    }
    return value;
}

/* Of each group's `value` in the last lane: the sum of the groups in front, and of all of them. */
struct BlockSum {
    uint32_t before;
    uint32_t all;
};
DS4_DEVICE BlockSum sum_groups(const uint32_t *totals) {
    const uint32_t up_to = sum_up_to(totals[lane()]);
    const uint32_t before = shuffle(up_to, group() == 0 ? 0 : group() - 1);
    return {group() == 0 ? 0u : before, shuffle(up_to, kLanes - 1)};
}

struct Range {
    uint32_t least;
    uint32_t most;
};

/* Of the keys that are not 0. */
template <typename Source> DS4_DEVICE Range range_of(const Source &source, int end) {
    __shared__ Range ranges[kGroups];

    Range range = {~0u, 0u};
    for (int i = 4 * static_cast<int>(threadIdx.x); i < end; i += kStep) {
        const Keys keys = source.load(i, end);
        for (int j = 0; j < 4; ++j) {
            range.least = min(range.least, keys.key[j] == 0 ? ~0u : keys.key[j]);
            range.most = max(range.most, keys.key[j]);
        }
    }
    for (int round = 0; round < 2; ++round) {
        for (int mask = 1; mask < kLanes; mask *= 2) {
            range.least = min(range.least, shuffle_xor(range.least, mask));
            range.most = max(range.most, shuffle_xor(range.most, mask));
        }
        if (round == 0) {
            if (lane() == 0) {
                ranges[group()] = range;
            }
            sync_block();
            range = ranges[lane()];
        }
    }
    return range;
}

/* Keys of at least `above` are chosen, and of those from `tie` up to it the first `ties`. */
struct Threshold {
    uint32_t above;
    uint32_t tie;
    int      ties;
};

/* Of the top_k largest of more than top_k keys. */
template <typename Source> DS4_DEVICE Threshold threshold_of(const Source &source, int end, int top_k) {
    __shared__ uint32_t histogram[kBins];
    __shared__ uint32_t totals[kGroups];
    __shared__ uint32_t found[3]; /* bin, keys above it, keys in it */

    const int thread = static_cast<int>(threadIdx.x);
    histogram[thread] = 0;
    histogram[thread + kThreads] = 0;
    const Range range = range_of(source, end); /* its barrier is also the one after the zeros */

    uint32_t first = range.least;
    uint32_t last = range.most - range.least;
    auto     needed = static_cast<uint32_t>(top_k);
    for (;;) {
        const int bits = last == 0 ? 0 : 32 - __clz(static_cast<int>(last));
        const int shift = bits > kBinBits ? bits - kBinBits : 0;
        for (int i = 4 * thread; i < end; i += kStep) {
            const Keys keys = source.load(i, end);
            for (int j = 0; j < 4; ++j) {
                if (keys.key[j] - first <= last) { /* a lower key wraps to a number that is larger than `last` */
                    atomicAdd(&histogram[(keys.key[j] - first) >> shift], 1u);
                }
            }
        }
        sync_block();

        /* From the largest bin down, two per thread. */
        const int      bin = kBins - 2 - 2 * thread;
        const uint32_t lower = histogram[bin];
        const uint32_t upper = histogram[bin + 1];
        histogram[bin] = 0;
        histogram[bin + 1] = 0;
        const uint32_t up_to = sum_up_to(lower + upper);
        if (lane() == kLanes - 1) {
            totals[group()] = up_to;
        }
        sync_block();
        const uint32_t above = sum_groups(totals).before + up_to - lower - upper;
        if (above < needed && needed <= above + upper + lower) {
            const bool in_upper = needed <= above + upper;
            found[0] = static_cast<uint32_t>(in_upper ? bin + 1 : bin);
            found[1] = in_upper ? above : above + upper;
            found[2] = in_upper ? upper : lower;
        }
        sync_block();
        first += found[0] << shift;
        needed -= found[1];
        if (found[2] == needed) {
            return {first, first, 0};
        }
        if (shift == 0) {
            return {first + 1, first, static_cast<int>(needed)};
        }
        last = (1u << shift) - 1;
    }
}

/* Calls put(place, i, key) for the chosen keys i, place = 0 .. top_k - 1 in the order of i. */
template <typename Source, typename Put>
DS4_DEVICE void list_chosen(const Source &source, int end, int top_k, Threshold threshold, Put put) {
    __shared__ uint32_t totals[2][kGroups];

    int above = 0, ties = 0; /* in front of this pass */
    for (int start = 0, turn = 0; start < end && above + min(ties, threshold.ties) < top_k; start += kStep, turn ^= 1) {
        const int i = start + 4 * static_cast<int>(threadIdx.x);
        const Keys keys = source.load(i, end);
        uint32_t   own = 0; /* above in the high half, ties in the low one: a pass has fewer than 2^16 */
        for (int j = 0; j < 4; ++j) {
            own += keys.key[j] >= threshold.above ? 1u << 16 : keys.key[j] >= threshold.tie ? 1u : 0u;
        }
        const uint32_t up_to = sum_up_to(own);
        if (lane() == kLanes - 1) {
            totals[turn][group()] = up_to;
        }
        sync_block();
        const BlockSum sum = sum_groups(totals[turn]);
        const uint32_t before = sum.before + up_to - own;
        int            above_here = above + static_cast<int>(before >> 16);
        int            ties_here = ties + static_cast<int>(before & 0xffffu);
        for (int j = 0; j < 4; ++j) {
            const bool is_above = keys.key[j] >= threshold.above;
            const bool is_tie = !is_above && keys.key[j] >= threshold.tie;
            if (is_above || (is_tie && ties_here < threshold.ties)) {
                put(above_here + min(ties_here, threshold.ties), i + j, keys.key[j]);
            }
            above_here += is_above ? 1 : 0;
            ties_here += is_tie ? 1 : 0;
        }
        above += static_cast<int>(sum.all >> 16);
        ties += static_cast<int>(sum.all & 0xffffu);
    }
}

template <typename Source, typename Put>
DS4_DEVICE void choose(const Source &source, int end, int top_k, Put put) {
    list_chosen(source, end, top_k, threshold_of(source, end, top_k), put);
}

DS4_DEVICE int visible_rows(const ChooseJob &job, unsigned token) {
    return static_cast<int>((position_of(job.at) + token + 1) / static_cast<uint64_t>(job.ratio));
}

/* When there is nothing to choose: all rows. */
DS4_DEVICE void take_all(const ChooseJob &job, unsigned token, int visible) {
    for (int i = static_cast<int>(threadIdx.x); i < visible; i += kThreads) {
        job.selected[token * job.top_k + i] = i;
    }
}

/* ---- kernels ------------------------------------------------------------------------------------- */

/* One block per token. */
DS4_KERNEL __launch_bounds__(kThreads) choose_among_scores(ChooseJob job) {
    wait_for_inputs();
    let_next_start();
    const unsigned token = blockIdx.x;
    const int      visible = visible_rows(job, token);
    const int      top_k = static_cast<int>(job.top_k);
    if (threadIdx.x == 0) {
        job.count[token] = min(visible, top_k);
    }
    if (visible <= top_k) {
        take_all(job, token, visible);
        return;
    }
    int32_t *selected = job.selected + token * job.top_k;
    choose(Scores(job.scores + token * job.scores_stride), visible, top_k,
           [&](int place, int row, uint32_t) { selected[place] = row; });
}

/* One block per chunk and token: candidates [tokens, chunks, top_k]. */
DS4_KERNEL __launch_bounds__(kThreads) choose_in_chunk(ChooseJob job, int rows) {
    wait_for_inputs();
    let_next_start();
    const unsigned token = blockIdx.y;
    const int      visible = visible_rows(job, token);
    const int      top_k = static_cast<int>(job.top_k);
    const int64_t  first = static_cast<int64_t>(blockIdx.x) * rows;
    if (visible <= top_k || first >= visible) {
        return;
    }
    const int     end = static_cast<int>(min(static_cast<int64_t>(rows), visible - first));
    const Scores  scores(job.scores + token * job.scores_stride + first);
    const int64_t room = (static_cast<int64_t>(token) * gridDim.x + blockIdx.x) * job.top_k;
    const auto    put = [&](int place, int i, uint32_t key) {
        job.candidate_keys[room + place] = key;
        job.candidate_rows[room + place] = static_cast<int32_t>(first) + i;
    };
    if (end > top_k) {
        choose(scores, end, top_k, put);
        return;
    }
    for (int i = static_cast<int>(threadIdx.x); i < top_k; i += kThreads) {
        put(i, i, i < end ? key_of(scores.scores[i]) : 0u);
    }
}

/* One block per token. */
DS4_KERNEL __launch_bounds__(kThreads) choose_among_candidates(ChooseJob job, int rows, int chunks) {
    wait_for_inputs();
    let_next_start();
    const unsigned token = blockIdx.x;
    const int      visible = visible_rows(job, token);
    const int      top_k = static_cast<int>(job.top_k);
    if (threadIdx.x == 0) {
        job.count[token] = min(visible, top_k);
    }
    if (visible <= top_k) {
        take_all(job, token, visible);
        return;
    }
    const int      filled = (visible + rows - 1) / rows * top_k;
    const int64_t  room = static_cast<int64_t>(token) * chunks * job.top_k;
    const int32_t *candidates = job.candidate_rows + room;
    int32_t       *selected = job.selected + token * job.top_k;
    choose(Candidates(job.candidate_keys + room), filled, top_k,
           [&](int place, int i, uint32_t) { selected[place] = candidates[i]; });
}

} // namespace

size_t choose_candidates(int64_t tokens, int64_t row_capacity, int64_t top_k) {
    return static_cast<size_t>(tokens * chunk_count(tokens, row_capacity) * top_k);
}

void choose_rows(const Stream &stream, const ChooseJob &job, int64_t tokens, int64_t row_capacity) {
    const Grid    each_token{static_cast<unsigned>(tokens)};
    const int64_t chunks = chunk_count(tokens, row_capacity);
    if (chunks == 0) {
        launch(stream, choose_among_scores, each_token, kThreads, 0, job);
        return;
    }
    const int64_t rows = chunk_rows(row_capacity);
    launch(stream, choose_in_chunk, {static_cast<unsigned>(chunks), static_cast<unsigned>(tokens)}, kThreads, 0, job, rows);
    launch(stream, choose_among_candidates, each_token, kThreads, 0, job, rows, chunks);
}

} // namespace ds4::backend::gpu
