/* Scores of compressed rows.
 *
 * Queries and rows that went through FP4 are small multiples of powers of two, which f16 holds exactly, so that the products
 * of halves compute their dot products without a rounding before the sum. Whether a row or a token's query is of that kind is
 * seen from its values; a score with one that is not is computed in float32. Both kinds of score depend on the row and
 * the token alone: the kernel for one token and the one for many multiply the same fragments in the same order. */
#include "backend/gpu/indexer_score.h"

#include <algorithm>

namespace ds4::backend::gpu {

namespace {

/* ---- in floats ------------------------------------------------------------------------------------ */

/* Lets not-a-number through. */
DS4_DEVICE float not_below_zero(float x) { return x < 0.0f ? 0.0f : x; }

/* By a group of 32 lanes, a lane per head. */
DS4_DEVICE float score_in_floats(const ScoreJob &job, int token, int row) {
    const float *values = job.row_of(row);
    const float *q = job.heads_of(token);
    float        score = 0.0f;
    for (int head = lane(); head < job.heads; head += kLanes) {
        float dot = 0.0f;
#pragma unroll 8
        for (int i = 0; i < job.dim; ++i) {
            dot = fmaf(q[head * job.dim + i], values[i], dot);
        }
        score = fmaf(job.weights_of(token)[head] * job.scale, not_below_zero(dot), score);
    }
    return group_sum(score);
}

/* Any shape: a group of lanes per row. Blocks: rows, tokens. */
DS4_KERNEL score_rows_in_floats(ScoreJob job) {
    wait_for_inputs();
    let_next_start();
    const int token = static_cast<int>(blockIdx.y);
    const int end = job.wanted(token);
    const int step = static_cast<int>(gridDim.x) * groups();
    for (int row = static_cast<int>(blockIdx.x) * groups() + group(); row < end; row += step) {
        const float score = score_in_floats(job, token, row);
        if (lane() == 0) {
            job.scores_of(token)[row] = score;
        }
    }
}

/* ---- by products of halves: 64 heads of 128 ------------------------------------------------------- */

constexpr int kHeads = 64;
constexpr int kDim = 128;
constexpr int kScoreThreads = 256;
constexpr int kScoreGroups = kScoreThreads / kLanes;
constexpr int kEights = kHeads / 8;  /* columns of a product are 8 heads, */
constexpr int kSixteens = kDim / 16; /* and 16 dimensions are summed by one */
constexpr int kTile = 16;            /* rows of a product */

constexpr int kFewTokenBlocks = 3; /* on a multiprocessor, so that enough rows are on their way */

/* A row as halves in shared memory: 16 units of 8 dimensions. Odd rows have them in another order, so that lanes that read
 * the same unit of neighbouring rows meet different banks. */
struct HalfRow {
    uint4 unit[kDim / 8];
};
DS4_DEVICE int place_of(int row, int unit) { return unit ^ (row % 2 == 0 ? 0 : 4); }

/* Halves; the result is 0 when they are the same numbers. */
DS4_DEVICE uint32_t to_halves(float4 from, uint2 &to) {
    to.x = pack_halves(from.x, from.y);
    to.y = pack_halves(from.z, from.w);
    const auto changed = [](float value, uint32_t half) {
        return bits_as<uint32_t>(half_to_float(static_cast<uint16_t>(half))) ^ bits_as<uint32_t>(value);
    };
    return changed(from.x, to.x) | changed(from.y, to.x >> 16) | changed(from.z, to.y) | changed(from.w, to.y >> 16);
}

/* Lane's four of a row's 128 values into row `row` of a tile, and whether the whole row is exact. */
DS4_DEVICE bool put_row(HalfRow *tile, int row, float4 values) {
    uint2          halves;
    const uint32_t changed = to_halves(values, halves);
    reinterpret_cast<uint2 *>(&tile[row].unit[place_of(row, lane() / 2)])[lane() % 2] = halves;
    return ballot(changed == 0) == 0xffffffffu;
}

/* Of 8 heads the fragments of all dimensions. Lane's dimensions of products 2 k and 2 k + 1 are 32 k + 8 (lane % 4) .. + 7:
 * which dimensions meet in a product is free as long as rows and heads agree. Returns whether all halves are exact. */
DS4_DEVICE bool load_heads(const float *q, uint32_t (&heads)[kSixteens][2]) {
    const float *from = q + lane() / 4 * kDim + lane() % 4 * 8;
    uint32_t     changed = 0;
#pragma unroll
    for (int k = 0; k < kSixteens; ++k) {
        uint2 halves;
        changed |= to_halves(*reinterpret_cast<const float4 *>(from + k / 2 * 32 + k % 2 * 4), halves);
        heads[k][0] = halves.x;
        heads[k][1] = halves.y;
    }
    return ballot(changed == 0) == 0xffffffffu;
}

/* The fragments of 16 rows for products 2 k and 2 k + 1. */
DS4_DEVICE void load_rows(const HalfRow *tile, int k, uint32_t (&first)[4], uint32_t (&second)[4]) {
    const int   row = lane() / 4;
    const uint4 upper = tile[row].unit[place_of(row, 4 * k + lane() % 4)];
    const uint4 lower = tile[row + 8].unit[place_of(row, 4 * k + lane() % 4)];
    first[0] = upper.x;
    first[1] = lower.x;
    first[2] = upper.y;
    first[3] = lower.y;
    second[0] = upper.z;
    second[1] = lower.z;
    second[2] = upper.w;
    second[3] = lower.w;
}

/* Of heads 2 pair and 2 pair + 1. */
DS4_DEVICE float2 scaled_weights(const ScoreJob &job, int token, int pair) {
    const float *weights = job.weights_of(token);
    return make_float2(weights[2 * pair] * job.scale, weights[2 * pair + 1] * job.scale);
}

/* The weighted sums of a pair of rows, lane / 4 and lane / 4 + 8: each lane adds its heads of every eight, then the four lanes
 * of a row are added. */
struct Sums {
    float upper = 0.0f;
    float lower = 0.0f;

    /* weights: [kHeads / 2]; c0, c1 and c2, c3: dot products of the two rows with heads 8 n + 2 (lane % 4) and the next */
    DS4_DEVICE void add(const float2 *weights, int n, float c0, float c1, float c2, float c3) {
        const float2 weight = weights[4 * n + lane() % 4];
        upper = fmaf(weight.x, not_below_zero(c0), upper);
        upper = fmaf(weight.y, not_below_zero(c1), upper);
        lower = fmaf(weight.x, not_below_zero(c2), lower);
        lower = fmaf(weight.y, not_below_zero(c3), lower);
    }
    DS4_DEVICE void finish() {
        upper += shuffle_xor(upper, 1);
        lower += shuffle_xor(lower, 1);
        upper += shuffle_xor(upper, 2);
        lower += shuffle_xor(lower, 2);
    }
};

/* Writes the scores of 16 rows from `first` on, those below `end`; the rows whose bit is not set in `exact` are computed
 * again. By a group of lanes. */
DS4_DEVICE void write_scores(const ScoreJob &job, int token, int first, int end, uint32_t exact, Sums sums) {
    const int own = lane() / 4 + lane() % 4 * 8; /* of lanes 0 and 1 of each four */
    float     score = lane() % 4 == 0 ? sums.upper : sums.lower;
    for (int row = 0; row < kTile && (exact & 0xffffu) != 0xffffu; ++row) {
        if ((exact >> row & 1u) == 0 && first + row < end) {
            const float again = score_in_floats(job, token, first + row);
            score = own == row ? again : score;
        }
    }
    if (lane() % 4 < 2 && first + own < end) {
        job.scores_of(token)[first + own] = score;
    }
}

/* A few tokens: a block has 16 rows at a time, and each group of lanes 8 heads. Blocks: tiles, tokens. */
DS4_KERNEL __launch_bounds__(kScoreThreads, kFewTokenBlocks) score_rows_of_token(ScoreJob job) {
    __shared__ HalfRow tiles[2][kTile];
    __shared__ float4  dots[2][kEights][kLanes];
    __shared__ bool    row_exact[2][kTile];
    __shared__ bool    heads_exact[kEights];
    __shared__ float2  weights[kHeads / 2];

    wait_for_inputs();
    let_next_start();
    const int token = static_cast<int>(blockIdx.y);
    const int end = job.wanted(token);
    int       first = static_cast<int>(blockIdx.x) * kTile;
    if (first >= end) {
        return;
    }
    const int  step = static_cast<int>(gridDim.x) * kTile;
    const auto load = [&](int row) { /* rows that are not visible may not be written yet */
        return reinterpret_cast<const float4 *>(job.row_of(min(row, end - 1)))[lane()];
    };
    float4     upper = load(first + group());
    float4     lower = load(first + group() + 8);
    uint32_t   heads[kSixteens][2];
    const bool exact = load_heads(job.heads_of(token) + 8 * group() * kDim, heads);
    if (lane() == 0) {
        heads_exact[group()] = exact;
    }
    if (threadIdx.x < kHeads / 2) {
        weights[threadIdx.x] = scaled_weights(job, token, static_cast<int>(threadIdx.x));
    }

    for (int turn = 0; first < end; first += step, ++turn) {
        HalfRow   *tile = tiles[turn % 2];
        const bool exact_upper = put_row(tile, group(), upper);
        const bool exact_lower = put_row(tile, group() + 8, lower);
        if (lane() == 0) {
            row_exact[turn % 2][group()] = exact_upper;
            row_exact[turn % 2][group() + 8] = exact_lower;
        }
        upper = load(first + step + group());
        lower = load(first + step + group() + 8);
        sync_block();

        float c[4] = {};
#pragma unroll
        for (int k = 0; k < kSixteens; k += 2) {
            uint32_t a[2][4];
            load_rows(tile, k / 2, a[0], a[1]);
            multiply_halves(c, a[0], heads[k]);
            multiply_halves(c, a[1], heads[k + 1]);
        }
        dots[turn % 2][group()][lane()] = make_float4(c[0], c[1], c[2], c[3]);
        sync_block();

        /* The groups take turns, so that the others go on. */
        if (group() == turn % kScoreGroups) {
            Sums sums;
#pragma unroll
            for (int n = 0; n < kEights; ++n) {
                const float4 dot = dots[turn % 2][n][lane()];
                sums.add(weights, n, dot.x, dot.y, dot.z, dot.w);
            }
            sums.finish();
            const bool     all_heads = ballot(heads_exact[lane() % kEights]) == 0xffffffffu;
            const uint32_t rows = ballot(row_exact[turn % 2][lane() % kTile]);
            write_scores(job, token, first, end, all_heads ? rows : 0u, sums);
        }
    }
}

constexpr int kManyRows = 32; /* of a tile of the kernel for many tokens */

struct ManyTiles {
    float4  arriving[kManyRows / kScoreGroups][kScoreThreads]; /* each thread's own */
    HalfRow tiles[2][kManyRows];
};

/* Many tokens: each group of lanes has a token, whose heads stay in registers, and all groups of a block read the same rows.
 * Blocks: eights of tokens, and as many more as fill the card, among which the tiles are dealt out. */
DS4_KERNEL __launch_bounds__(kScoreThreads, 1) score_rows_of_tokens(ScoreJob job) {
    DS4_SHARED(ManyTiles, shared);
    __shared__ bool row_exact[2][kManyRows];
    __shared__ float2 weights[kScoreGroups][kHeads / 2];

    wait_for_inputs();
    let_next_start();
    const int last_token = min((static_cast<int>(blockIdx.x) + 1) * kScoreGroups, job.tokens) - 1;
    const int own_token = static_cast<int>(blockIdx.x) * kScoreGroups + group();
    const int token = min(own_token, last_token);
    const int end = token == own_token ? job.wanted(token) : 0;
    const int block_end = job.wanted(last_token); /* which sees most */
    const int step = static_cast<int>(gridDim.y) * kManyRows;
    int       first = static_cast<int>(blockIdx.y) * kManyRows;
    if (first >= block_end) {
        return;
    }

    const auto fetch = [&](int tile) {
        for (int i = 0; i < kManyRows / kScoreGroups; ++i) {
            const int row = min(tile + i * kScoreGroups + group(), block_end - 1);
            copy_async(&shared->arriving[i][threadIdx.x], reinterpret_cast<const float4 *>(job.row_of(row)) + lane());
        }
        copies_commit();
    };
    fetch(first);
    uint32_t heads[kEights][kSixteens][2];
    bool     heads_exact = true;
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
        heads_exact &= load_heads(job.heads_of(token) + 8 * n * kDim, heads[n]);
        sync_group(); /* all loads at once would need more registers than there are */
    }
    weights[group()][lane()] = scaled_weights(job, token, lane());

    for (int turn = 0; first < block_end; first += step, turn ^= 1) {
        HalfRow *tile = shared->tiles[turn];
        copies_wait<0>();
        for (int i = 0; i < kManyRows / kScoreGroups; ++i) {
            const int  row = i * kScoreGroups + group();
            const bool exact = put_row(tile, row, shared->arriving[i][threadIdx.x]);
            if (lane() == 0) {
                row_exact[turn][row] = exact;
            }
        }
        sync_block();
        if (first + step < block_end) {
            fetch(first + step);
        }

        for (int part = 0; part < kManyRows && first + part < end; part += kTile) {
            float c[kEights][4] = {};
#pragma unroll
            for (int k = 0; k < kSixteens; k += 2) {
                uint32_t a[2][4];
                load_rows(tile + part, k / 2, a[0], a[1]);
#pragma unroll
                for (int s = 0; s < 2; ++s) {
#pragma unroll
                    for (int n = 0; n < kEights; ++n) {
                        multiply_halves(c[n], a[s], heads[n][k + s]);
                    }
                }
            }
            Sums sums;
#pragma unroll
            for (int n = 0; n < kEights; ++n) {
                sums.add(weights[group()], n, c[n][0], c[n][1], c[n][2], c[n][3]);
            }
            sums.finish();
            const uint32_t rows = ballot(row_exact[turn][part + lane() % kTile]);
            write_scores(job, token, first + part, end, heads_exact ? rows : 0u, sums);
        }
    }
}

} // namespace

void score_rows(const Stream &stream, const CardFacts &facts, const ScoreJob &job, int64_t most_rows) {
    const auto    tokens = static_cast<unsigned>(job.tokens);
    const int64_t cards_worth = kFewTokenBlocks * static_cast<int64_t>(facts.multiprocessors);
    const auto    blocks = [&](int64_t tile, int64_t beside) {
        return static_cast<unsigned>(
            std::clamp<int64_t>((most_rows + tile - 1) / tile, 1, (cards_worth + beside - 1) / beside));
    };
    if (job.heads != kHeads || job.dim != kDim) {
        launch(stream, score_rows_in_floats, {blocks(kScoreGroups, job.tokens), tokens}, kScoreThreads, 0, job);
    } else if (job.tokens <= kFewTokens) {
        launch(stream, score_rows_of_token, {blocks(kTile, job.tokens), tokens}, kScoreThreads, 0, job);
    } else {
        const int64_t eights = (job.tokens + kScoreGroups - 1) / kScoreGroups;
        launch(stream, score_rows_of_tokens, {static_cast<unsigned>(eights), blocks(kManyRows, eights)}, kScoreThreads,
               sizeof(ManyTiles), job);
    }
}

} // namespace ds4::backend::gpu
