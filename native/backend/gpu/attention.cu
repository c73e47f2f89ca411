/* Attention: which kernels run, and those that compute in float32, for every head size and for exact arithmetic. */
#include "backend/gpu/attention.h"

#include <algorithm>
#include <cmath>

namespace ds4::backend::gpu {

namespace {

constexpr int kThreads = 128;
constexpr int kGroups = kThreads / kLanes;

/* ---- logits in float32 ----------------------------------------------------------------------------- */

constexpr int kTileRows = 32;
constexpr int kTileHeads = 16;
constexpr int kTileDims = 32;

/* logits[token, head, i] = q . row i of the list. A block owns 32 rows and 16 heads of a token at a time; a lane has one row
 * and four heads, whose sums run over the dimensions in order. */
DS4_KERNEL logits_float(AttentionJob job, AttentionScratch scratch) {
    __shared__ float   q_tile[kTileDims][kTileHeads];
    __shared__ float   row_tile[kTileRows][kTileDims + 1];
    constexpr int      kHeadsPerLane = kTileHeads / kGroups;
    wait_for_inputs();
    let_next_start();
    const auto    token = static_cast<int>(blockIdx.z);
    const int     first_head = static_cast<int>(blockIdx.y) * kTileHeads;
    const RowList list = list_of(job, token);
    const float  *q = job.q + static_cast<int64_t>(token) * job.heads * job.dim;

    for (int first = static_cast<int>(blockIdx.x) * kTileRows; first < list.count;
         first += static_cast<int>(gridDim.x) * kTileRows) {
        float sum[kHeadsPerLane] = {};
        for (int start = 0; start < job.dim; start += kTileDims) {
            const int  d = start + lane();
            const bool there = d < job.dim;
            sync_block();
            for (int h = group(); h < kTileHeads; h += kGroups) {
                q_tile[lane()][h] = there && first_head + h < job.heads ? q[(first_head + h) * job.dim + d] : 0.0f;
            }
            for (int r = group(); r < kTileRows; r += kGroups) {
                row_tile[r][lane()] =
                    there && first + r < list.count ? row_at(job, row_number(job, list, first + r))[d] : 0.0f;
            }
            sync_block();
#pragma unroll
            for (int k = 0; k < kTileDims; ++k) {
                const float value = row_tile[lane()][k];
#pragma unroll
                for (int h = 0; h < kHeadsPerLane; ++h) {
                    sum[h] = fmaf(q_tile[k][group() * kHeadsPerLane + h], value, sum[h]);
                }
            }
        }
        for (int h = 0; h < kHeadsPerLane; ++h) {
            const int head = first_head + group() * kHeadsPerLane + h;
            if (head < job.heads && first + lane() < list.count) {
                scratch.logits[(static_cast<int64_t>(token) * job.heads + head) * scratch.list_rows + first + lane()] = sum[h];
            }
        }
    }
}

/* ---- mix in float32 -------------------------------------------------------------------------------- */

constexpr int kMixHeads = 8;
constexpr int kMixDims = 32;

/* mixed and sums of one segment: against the maximum of the whole segment, rows in order. A block owns 8 heads and 32
 * dimensions of a token at a time; a lane has one dimension and two heads. */
DS4_KERNEL mix_float(AttentionJob job, AttentionScratch scratch) {
    __shared__ float   probability[kMixHeads][kSegmentRows];
    __shared__ int32_t numbers[kSegmentRows];
    constexpr int      kHeadsPerGroup = kMixHeads / kGroups;
    wait_for_inputs();
    let_next_start();
    const auto    token = static_cast<int>(blockIdx.z);
    const int     first_head = static_cast<int>(blockIdx.y) * kMixHeads;
    const int     slices = (job.dim + kMixDims - 1) / kMixDims;
    const auto    slice = static_cast<int>(blockIdx.x) % slices;
    const int     d = slice * kMixDims + lane();
    const RowList list = list_of(job, token);

    for (int segment = static_cast<int>(blockIdx.x) / slices; segment * kSegmentRows < list.count;
         segment += static_cast<int>(gridDim.x) / slices) {
        const int first = segment * kSegmentRows;
        const int rows = smaller(list.count - first, kSegmentRows);
        sync_block();
        for (int i = static_cast<int>(threadIdx.x); i < rows; i += kThreads) {
            numbers[i] = row_number(job, list, first + i);
        }
        for (int h = 0; h < kHeadsPerGroup; ++h) {
            const int slot = group() * kHeadsPerGroup + h;
            const int head = smaller(first_head + slot, job.heads - 1);
            const float *logits =
                scratch.logits + (static_cast<int64_t>(token) * job.heads + head) * scratch.list_rows + first;
            float m = -INFINITY;
            for (int i = lane(); i < rows; i += kLanes) {
                m = fmaxf(m, logits[i] * job.factor);
            }
            m = group_max(m);
            float l = 0.0f;
            for (int i = lane(); i < rows; i += kLanes) {
                const float p = exp2f(logits[i] * job.factor - m);
                probability[slot][i] = p;
                l += p;
            }
            l = group_sum(l);
            if (slice == 0 && lane() == 0 && first_head + slot < job.heads) {
                scratch.sums[(static_cast<int64_t>(token) * scratch.segments + segment) * job.heads + head] = {m, l};
            }
        }
        sync_block();
        float mix[kHeadsPerGroup] = {};
        if (d < job.dim) {
#pragma unroll 8
            for (int i = 0; i < rows; ++i) {
                const float value = row_at(job, numbers[i])[d];
                for (int h = 0; h < kHeadsPerGroup; ++h) {
                    mix[h] = fmaf(probability[group() * kHeadsPerGroup + h][i], value, mix[h]);
                }
            }
        }
        for (int h = 0; h < kHeadsPerGroup; ++h) {
            const int head = first_head + group() * kHeadsPerGroup + h;
            if (d < job.dim && head < job.heads) {
                scratch.mixed[((static_cast<int64_t>(token) * scratch.segments + segment) * job.heads + head) * job.dim + d] =
                    mix[h];
            }
        }
    }
}

/* ---- segments together ----------------------------------------------------------------------------- */

/* A block per token and head, a lane per dimension or rotated pair. */
DS4_KERNEL merge_and_turn_back(AttentionJob job, AttentionScratch scratch) {
    const auto  head = static_cast<int>(blockIdx.x);
    const float sink = job.sinks[head];
    wait_for_inputs();
    let_next_start();
    const auto    token = static_cast<int>(blockIdx.y);
    const RowList list = list_of(job, token);
    const int     segments = (list.count + kSegmentRows - 1) / kSegmentRows;
    const int     unrotated = job.dim - 2 * job.rope.pairs;
    const float2 *sums = scratch.sums + static_cast<int64_t>(token) * scratch.segments * job.heads + head;
    const float  *mixed = scratch.mixed + (static_cast<int64_t>(token) * scratch.segments * job.heads + head) * job.dim;
    const int64_t step = static_cast<int64_t>(job.heads) * job.dim;
    float        *out = job.out + (static_cast<int64_t>(token) * job.heads + head) * job.dim;

    for (int i = static_cast<int>(threadIdx.x); i < unrotated + job.rope.pairs; i += kThreads) {
        const bool turned = i >= unrotated;
        const int  d = turned ? unrotated + 2 * (i - unrotated) : i;
        float      m = sums[0].x;
        float      l = sums[0].y;
        float      a = mixed[d];
        float      b = turned ? mixed[d + 1] : 0.0f;
        for (int s = 1; s < segments; ++s) {
            const float2 own = sums[static_cast<int64_t>(s) * job.heads];
            const Merge  merge = merge_of(m, own.x);
            m = merge.m;
            l = merged(merge, l, own.y);
            a = merged(merge, a, mixed[s * step + d]);
            b = turned ? merged(merge, b, mixed[s * step + d + 1]) : 0.0f;
        }
        const float factor = normaliser(m, l, sink);
        a *= factor;
        b *= factor;
        if (turned) {
            rotate_pair_back(a, b, angle_of(job.rope, list.position, i - unrotated));
            out[d + 1] = b;
        }
        out[d] = a;
    }
}

/* ---- scratch ---------------------------------------------------------------------------------------- */

/* As many tokens at a time as this holds, and one at least. */
constexpr int64_t kScratchBytes = int64_t{64} << 20;

struct Layout {
    int64_t list_rows, segments, token_bytes;

    Layout(int64_t heads, int64_t dim, int64_t most_rows)
        : list_rows((most_rows + kSegmentRows - 1) / kSegmentRows * kSegmentRows),
          segments(list_rows / kSegmentRows),
          token_bytes(heads * list_rows * static_cast<int64_t>(sizeof(float)) +
                      segments * heads * (dim * static_cast<int64_t>(sizeof(float)) + static_cast<int64_t>(sizeof(float2)))) {}

    int64_t tokens(int64_t wanted) const { return std::clamp(kScratchBytes / token_bytes, int64_t{1}, wanted); }
};

/* From this many tokens on, a block per token keeps the card busy. */
constexpr int64_t kManyTokens = 16;

unsigned blocks(int64_t items, int64_t each) {
    return static_cast<unsigned>((items + each - 1) / each);
}

void attend_in_float(const Stream &stream, const AttentionJob &job, const AttentionScratch &scratch) {
    /* Lists are mostly shorter than what there is room for: blocks go on to further rows instead of there being more. */
    const unsigned row_blocks = std::min(blocks(scratch.most_rows, kTileRows), 64u);
    const auto     tokens = static_cast<unsigned>(job.tokens);
    launch(stream, logits_float, {row_blocks, blocks(job.heads, kTileHeads), tokens}, kThreads, 0, job, scratch);
    const unsigned slices = blocks(job.dim, kMixDims);
    const auto     segment_blocks = static_cast<unsigned>(std::min(scratch.segments, 8));
    launch(stream, mix_float, {slices * segment_blocks, blocks(job.heads, kMixHeads), tokens}, kThreads, 0, job, scratch);
    merge_segments(stream, job, scratch);
}

} // namespace

void merge_segments(const Stream &stream, const AttentionJob &job, const AttentionScratch &scratch) {
    launch(stream, merge_and_turn_back, {static_cast<unsigned>(job.heads), static_cast<unsigned>(job.tokens)}, kThreads, 0,
           job, scratch);
}

void GpuOps::attention(const AttentionArgs &args) {
    AttentionJob job = {
        .tokens = static_cast<int32_t>(args.tokens),
        .heads = static_cast<int32_t>(args.heads),
        .dim = static_cast<int32_t>(args.dim),
        .at = at(args.position),
        .rope = rope_table(args.rope),
        .q = args.q,
        .window = static_cast<int32_t>(args.window),
        .ring_rows = static_cast<int32_t>(args.ring_rows),
        .ring = args.ring,
        .ratio = static_cast<int32_t>(args.ratio),
        .rows = args.rows,
        .selected = args.selected,
        .count = args.count,
        .top_k = static_cast<int32_t>(args.top_k),
        .sinks = args.sinks,
        .out = args.out,
        .factor = kLog2E / std::sqrt(static_cast<float>(args.dim)),
    };
    const bool halves = !exact_ && args.dim == kHalvesDim && can_attend_few_tokens(device_.facts());
    if (halves && args.tokens >= kManyTokens && can_attend_many_tokens(device_.facts())) {
        const int64_t compressed_rows =
            args.ratio == 0 ? 0 : (static_cast<int64_t>(args.position) + args.tokens) / args.ratio;
        attend_many_tokens(stream_, device_.facts(), job,
                           scratch(bytes_for_many_tokens(args.tokens, args.window, compressed_rows)));
        return;
    }

    int64_t most_rows = args.window;
    if (args.ratio != 0) {
        most_rows += args.selected != nullptr ? args.top_k : args.row_capacity;
    }
    const Layout  layout(args.heads, args.dim, most_rows);
    const int64_t at_a_time = layout.tokens(args.tokens);
    std::byte    *memory = scratch(static_cast<size_t>(at_a_time * layout.token_bytes));
    for (int64_t first = 0; first < args.tokens; first += at_a_time) {
        const int64_t tokens = std::min(at_a_time, args.tokens - first);
        job.tokens = static_cast<int32_t>(tokens);
        job.at = at(args.position + static_cast<uint64_t>(first));
        job.q = args.q + first * args.heads * args.dim;
        job.out = args.out + first * args.heads * args.dim;
        if (args.selected != nullptr) {
            job.selected = args.selected + first * args.top_k;
            job.count = args.count + first;
        }
        auto *logits = reinterpret_cast<float *>(memory);
        auto *sums = reinterpret_cast<float2 *>(logits + tokens * args.heads * layout.list_rows);
        auto *mixed = reinterpret_cast<float *>(sums + tokens * layout.segments * args.heads);
        const AttentionScratch parts = {
            .most_rows = static_cast<int32_t>(most_rows),
            .list_rows = static_cast<int32_t>(layout.list_rows),
            .segments = static_cast<int32_t>(layout.segments),
            .logits = logits,
            .mixed = mixed,
            .sums = sums,
        };
        if (halves) {
            attend_few_tokens(stream_, job, parts);
        } else {
            attend_in_float(stream_, job, parts);
        }
    }
}

size_t attention_scratch(const OpsLimits &limits) {
    const Layout  layout(limits.heads, limits.head_dim, limits.window + std::max(limits.row_capacity, limits.top_k));
    const int64_t few = std::max(layout.token_bytes, std::min(kScratchBytes, limits.tokens * layout.token_bytes));
    const size_t  many = limits.head_dim == kHalvesDim
                             ? bytes_for_many_tokens(limits.tokens, limits.window, limits.row_capacity)
                             : 0;
    return std::max(static_cast<size_t>(few), many);
}

} // namespace ds4::backend::gpu
