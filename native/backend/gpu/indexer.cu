/* Which compressed rows a query attends to: the queries, and the choice from start to end. Scores are made in
 * indexer_score.cu, and the best of them are found in indexer_select.cu. */
#include "backend/gpu/gpu_ops.h"

#include <algorithm>
#include <cmath>

#include "backend/gpu/indexer_score.h"
#include "backend/gpu/indexer_select.h"
#include "backend/gpu/rope.h"
#include "backend/gpu/round_trip.h"

namespace ds4::backend::gpu {

namespace {

/* ---- queries ------------------------------------------------------------------------------------- */

constexpr int kQueryGroups = 8; /* heads of a block */

struct QueryJob {
    int64_t  heads;
    int32_t  dim;
    bool     round_trip;
    Position at;
    float   *q; /* in place [tokens, heads, dim] */
};

/* A group of 32 lanes per head, whose value lane + 32 i is lane's i-th. Blocks: heads, tokens. */
template <int per_lane> DS4_KERNEL indexer_query_in_registers(QueryJob job, RopeTable rope) {
    constexpr int kDim = kLanes * per_lane;
    __shared__ Angle angles[RopeTable::kMostPairs];

    wait_for_inputs();
    let_next_start();
    const int64_t head = static_cast<int64_t>(blockIdx.x) * kQueryGroups + group();
    const int64_t token = blockIdx.y;
    float        *q = job.q + (token * job.heads + head) * kDim;
    float         value[per_lane];
    for (int i = 0; i < per_lane; ++i) {
        value[i] = head < job.heads ? q[lane() + kLanes * i] : 0.0f;
    }
    const uint64_t position = position_of(job.at) + static_cast<uint64_t>(token);
    for (int pair = static_cast<int>(threadIdx.x); pair < rope.pairs; pair += static_cast<int>(blockDim.x)) {
        angles[pair] = angle_of(rope, position, pair);
    }
    sync_block();

    const int plain = kDim - 2 * rope.pairs;
    for (int i = 0; i < per_lane; ++i) {
        const int   pair = (lane() + kLanes * i - plain) / 2;
        const float other = shuffle_xor(value[i], 1);
        if (lane() + kLanes * i >= plain) {
            float a = lane() % 2 == 0 ? value[i] : other;
            float b = lane() % 2 == 0 ? other : value[i];
            rotate_pair(a, b, angles[pair]);
            value[i] = lane() % 2 == 0 ? a : b;
        }
    }
    if (job.round_trip) {
        for (int stride = 1; stride < kLanes; stride *= 2) {
            for (int i = 0; i < per_lane; ++i) {
                const float other = shuffle_xor(value[i], stride);
                value[i] = (lane() & stride) == 0 ? value[i] + other : other - value[i];
            }
        }
#pragma unroll
        for (int stride = 1; stride < per_lane; stride *= 2) {
#pragma unroll
            for (int i = 0; i < per_lane; ++i) {
                if ((i & stride) == 0) {
                    const float a = value[i];
                    const float b = value[i + stride];
                    value[i] = a + b;
                    value[i + stride] = a - b;
                }
            }
        }
        const float scale = 1.0f / sqrtf(static_cast<float>(kDim));
        for (int i = 0; i < per_lane; ++i) {
            float piece[1] = {value[i] * scale};
            round_trip_piece<1, 0, 1>(piece);
            value[i] = piece[0];
        }
    }
    for (int i = 0; i < per_lane; ++i) {
        if (head < job.heads) {
            q[lane() + kLanes * i] = value[i];
        }
    }
}

/* Any dimension: a block of one group of lanes per head. Blocks: heads, tokens. */
DS4_KERNEL indexer_query_in_memory(QueryJob job, RopeTable rope) {
    DS4_SHARED(float, row); /* [dim] */
    wait_for_inputs();
    let_next_start();
    float *q = job.q + (static_cast<int64_t>(blockIdx.y) * job.heads + blockIdx.x) * job.dim;
    for (int i = lane(); i < job.dim; i += kLanes) {
        row[i] = q[i];
    }
    sync_group();
    rotate(row + job.dim - 2 * rope.pairs, rope, position_of(job.at) + blockIdx.y, lane(), kLanes);
    sync_group();
    if (job.round_trip) {
        hadamard(row, job.dim);
        fp4_round_trip(row, job.dim);
        sync_group();
    }
    for (int i = lane(); i < job.dim; i += kLanes) {
        q[i] = row[i];
    }
}

/* ---- host side ----------------------------------------------------------------------------------- */

constexpr int64_t kMostScores = int64_t{1} << 26; /* in scratch at a time, unless one token has more */
constexpr size_t  kAlignment = 256;

int64_t whole_fours(int64_t rows) { return (rows + 3) / 4 * 4; }

int64_t tokens_at_once(int64_t tokens, int64_t stride) {
    return std::clamp<int64_t>(kMostScores / std::max<int64_t>(stride, 1), 1, tokens);
}

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

} // namespace

void GpuOps::indexer_query(const IndexerQueryArgs &args) {
    if (args.tokens == 0) {
        return;
    }
    const QueryJob  job = {args.heads, static_cast<int32_t>(args.dim), args.round_trip, at(args.position), args.q};
    const RopeTable rope = rope_table(args.rope);
    const auto      in_registers = [&](void (*kernel)(QueryJob, RopeTable)) {
        launch(stream_, kernel,
               {static_cast<unsigned>((args.heads + kQueryGroups - 1) / kQueryGroups), static_cast<unsigned>(args.tokens)},
               kQueryGroups * kLanes, 0, job, rope);
    };
    switch (args.dim) {
    case 32: in_registers(indexer_query_in_registers<1>); return;
    case 64: in_registers(indexer_query_in_registers<2>); return;
    case 128: in_registers(indexer_query_in_registers<4>); return;
    default:
        launch(stream_, indexer_query_in_memory, {static_cast<unsigned>(args.heads), static_cast<unsigned>(args.tokens)},
               kLanes, static_cast<size_t>(args.dim) * sizeof(float), job, rope);
    }
}

void GpuOps::indexer_select(const IndexerSelectArgs &args) {
    if (args.tokens == 0) {
        return;
    }
    /* A recorded step runs again at other positions. */
    const bool    any_position = args.tokens == 1 || recording();
    const int64_t most = any_position ? args.row_capacity
                                      : static_cast<int64_t>((args.position + static_cast<uint64_t>(args.tokens)) /
                                                             static_cast<uint64_t>(args.ratio));
    const bool    scored = args.scores != nullptr || most > args.top_k;
    const int64_t stride = args.scores != nullptr ? args.scores_stride : whole_fours(most);
    const int64_t at_once = args.scores != nullptr ? args.tokens : tokens_at_once(args.tokens, stride);

    float *scores = args.scores;
    ChooseJob choice{};
    if (scored) {
        const size_t score_bytes = args.scores != nullptr ? 0 : aligned(static_cast<size_t>(at_once * stride) * sizeof(float));
        const size_t key_bytes = aligned(choose_candidates(at_once, most, args.top_k) * sizeof(uint32_t));
        std::byte   *own = scratch(score_bytes + 2 * key_bytes);
        scores = scores != nullptr ? scores : reinterpret_cast<float *>(own);
        choice.candidate_keys = reinterpret_cast<uint32_t *>(own + score_bytes);
        choice.candidate_rows = reinterpret_cast<int32_t *>(own + score_bytes + key_bytes);
    }
    for (int64_t first = 0; first < args.tokens; first += at_once) {
        const int64_t  tokens = std::min(at_once, args.tokens - first);
        const Position position = at(args.position + static_cast<uint64_t>(first));
        choice.ratio = args.ratio;
        choice.top_k = args.top_k;
        choice.at = position;
        choice.scores = args.scores != nullptr ? scores + first * stride : scores;
        choice.scores_stride = stride;
        choice.selected = args.selected + first * args.top_k;
        choice.count = args.count + first;
        if (scored) {
            ScoreJob job{};
            job.tokens = static_cast<int32_t>(tokens);
            job.heads = static_cast<int32_t>(args.heads);
            job.dim = static_cast<int32_t>(args.dim);
            job.unscored = args.scores != nullptr ? 0 : static_cast<int32_t>(args.top_k);
            job.ratio = args.ratio;
            job.at = position;
            job.scale = 1.0f / std::sqrt(static_cast<float>(args.heads * args.dim));
            job.q = args.q + first * args.heads * args.dim;
            job.weights = args.weights + first * args.heads;
            job.rows = args.rows;
            job.scores = args.scores != nullptr ? scores + first * stride : scores;
            job.scores_stride = stride;
            score_rows(stream_, device_.facts(), job, most);
        }
        choose_rows(stream_, choice, tokens, most);
    }
}

size_t indexer_scratch(const OpsLimits &limits) {
    if (limits.indexer_heads == 0 || limits.row_capacity <= limits.top_k) {
        return 0;
    }
    /* A batch whose rows are fewer has more tokens at a time, but no more scores. */
    const int64_t stride = whole_fours(limits.row_capacity);
    const int64_t scores = std::max(std::min(limits.tokens * stride, kMostScores), stride);
    size_t        candidates = 0;
    for (int64_t tokens = 1; tokens <= std::min(kFewTokens, limits.tokens); ++tokens) {
        candidates = std::max(candidates, choose_candidates(tokens, limits.row_capacity, limits.top_k));
    }
    return aligned(static_cast<size_t>(scores) * sizeof(float)) + 2 * aligned(candidates * sizeof(uint32_t));
}

} // namespace ds4::backend::gpu
