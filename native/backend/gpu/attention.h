/* What the attention kernels share: which rows a token sees, and the one order of arithmetic that all of them follow.
 *
 * The rows of a token form a list: the window by position, then the compressed rows. It is cut by index into chunks of 64
 * rows and segments of 16 chunks. A head walks the chunks of a segment in order, with a running maximum:
 *
 *     m' = max(m, logits of the chunk);  l = l * 2^(m - m') + sum of 2^(logit - m');  o = o * 2^(m - m') + 2^(logit - m') rows
 *
 * from m = -infinity, l = 0, o = 0; segments are merged in order, and o / (l + 2^(sink - m)) is turned back to the token's
 * position. Logits and sinks are in units of log 2. The sink is left out of m: probabilities are kept as halves, and a large
 * sink would push them below what halves can tell apart.
 *
 * How blocks share the work is free: few tokens are spread over (rows, heads) for the logits and over (heads, dimensions)
 * for the mix, many tokens get a block each. Included by kernels only. */
#pragma once

#include "backend/gpu/gpu.h"
#include "backend/gpu/gpu_ops.h"
#include "backend/gpu/rope.h"

namespace ds4::backend::gpu {

constexpr int kChunkRows = 64;
constexpr int kSegmentChunks = 16;
constexpr int kSegmentRows = kChunkRows * kSegmentChunks;

struct AttentionJob {
    int32_t        tokens, heads, dim;
    Position       at;
    RopeTable      rope;
    const float   *q;         /* [tokens, heads, dim] */
    int32_t        window;
    int32_t        ring_rows;
    const float   *ring;      /* [ring_rows, dim] */
    int32_t        ratio;     /* 0: no compressed rows */
    const float   *rows;      /* [.., dim] */
    const int32_t *selected;  /* [tokens, top_k] or nullptr */
    const int32_t *count;     /* [tokens], with selected */
    int32_t        top_k;
    const float   *sinks;     /* [heads] */
    float         *out;       /* [tokens, heads, dim] */
    float          factor;    /* log2(e) / sqrt(dim) */
};

/* Where few-token kernels leave what they pass on. */
struct AttentionScratch {
    int32_t most_rows;  /* of a list */
    int32_t list_rows;  /* the same as a multiple of kSegmentRows */
    int32_t segments;   /* list_rows / kSegmentRows */
    float  *logits;     /* [tokens, heads, list_rows] q . row, unscaled */
    float  *mixed;      /* [tokens, segments, heads, dim] o */
    float2 *sums;       /* [tokens, segments, heads] m, l */
};

constexpr float kLog2E = 1.44269504088896341f;

/* ---- the list of a token -------------------------------------------------------------------------- */

struct RowList {
    uint64_t       position;
    int32_t        count;
    int32_t        window_rows; /* the first ones */
    int32_t        ring_first;  /* ring row of the first */
    const int32_t *selected;    /* of this token, or nullptr */
};

DS4_DEVICE RowList list_of(const AttentionJob &job, int token) {
    RowList list;
    list.position = position_of(job.at) + static_cast<uint64_t>(token);
    const auto window = static_cast<uint64_t>(job.window);
    const bool full = list.position >= window;
    list.window_rows = full ? job.window : static_cast<int32_t>(list.position) + 1;
    list.ring_first = full ? static_cast<int32_t>((list.position + 1 - window) % static_cast<uint64_t>(job.ring_rows)) : 0;
    list.selected = job.selected == nullptr ? nullptr : job.selected + static_cast<int64_t>(token) * job.top_k;
    int32_t compressed = 0;
    if (job.ratio != 0) {
        compressed = job.selected != nullptr
                         ? job.count[token]
                         : static_cast<int32_t>((list.position + 1) / static_cast<uint64_t>(job.ratio));
    }
    list.count = list.window_rows + compressed;
    return list;
}

/* Row i of the list: a compressed row's number, or -1 - a ring row's. */
DS4_DEVICE int32_t row_number(const AttentionJob &job, const RowList &list, int i) {
    if (i < list.window_rows) {
        const int32_t row = list.ring_first + i;
        return -1 - (row >= job.ring_rows ? row - job.ring_rows : row);
    }
    i -= list.window_rows;
    return list.selected == nullptr ? i : list.selected[i];
}

DS4_DEVICE const float *row_at(const AttentionJob &job, int32_t number) {
    return number < 0 ? job.ring + static_cast<int64_t>(-1 - number) * job.dim
                      : job.rows + static_cast<int64_t>(number) * job.dim;
}

DS4_DEVICE int smaller(int a, int b) { return a < b ? a : b; }

/* ---- softmax -------------------------------------------------------------------------------------- */

/* Four neighbouring lanes share the chunk of a head. Value 4 i + j of the lane with `quarter` = lane % 4 belongs to the
 * chunk's row 16 i + 4 quarter + j. */
constexpr int kQuarter = kChunkRows / 4;

DS4_DEVICE float most_of_four(float value) {
    value = fmaxf(value, shuffle_xor(value, 1));
    return fmaxf(value, shuffle_xor(value, 2));
}

/* Sums to logits; rows from `count` on do not exist. Returns the chunk's maximum. */
DS4_DEVICE float scale_logits(float (&z)[kQuarter], float factor, int quarter, int count) {
    float most = -INFINITY;
#pragma unroll
    for (int i = 0; i < kQuarter; ++i) {
        const int row = i / 4 * 16 + 4 * quarter + i % 4;
        z[i] = row < count ? z[i] * factor : -INFINITY;
        most = fmaxf(most, z[i]);
    }
    return most_of_four(most);
}

/* Logits to probabilities against the maximum m. Returns the chunk's sum. */
DS4_DEVICE float to_probabilities(float (&z)[kQuarter], float m) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kQuarter; ++i) {
        z[i] = exp2f(z[i] - m);
        sum += z[i];
    }
    sum += shuffle_xor(sum, 1);
    return sum + shuffle_xor(sum, 2);
}

/* What a segment's own sums and those in front of it are multiplied with to stand against the same maximum. */
struct Merge {
    float m;
    float before;
    float own;
};
DS4_DEVICE Merge merge_of(float m_before, float m_own) {
    const float m = fmaxf(m_before, m_own);
    return {m, exp2f(m_before - m), exp2f(m_own - m)};
}
DS4_DEVICE float merged(const Merge &merge, float before, float own) { return fmaf(before, merge.before, own * merge.own); }

/* What o is multiplied with in the end. */
DS4_DEVICE float normaliser(float m, float l, float sink) { return 1.0f / (l + exp2f(sink * kLog2E - m)); }

/* ---- halves --------------------------------------------------------------------------------------- */

/* Two floats as halves; what is too large becomes the largest half instead of infinity, which would spoil whole sums. */
DS4_DEVICE uint32_t pack_bounded(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    uint32_t packed;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
#else
    constexpr float kMost = 65504.0f;
    low = low > kMost ? kMost : low < -kMost ? -kMost : low;
    high = high > kMost ? kMost : high < -kMost ? -kMost : high;
    return pack_halves(low, high);
#endif
}

/* Four 8 x 8 tiles of halves from shared memory, for multiply_halves. Lane l knows where row l % 8 of tile l / 8 begins, in
 * bytes from `base`, 16-byte aligned. Each lane gets, of every tile, row lane / 4, columns 2 (lane % 4) and one more. */
DS4_DEVICE void load_tiles(uint32_t (&tile)[4], const void *base, int offset) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    const uint32_t shared = static_cast<uint32_t>(__cvta_generic_to_shared(base)) + static_cast<uint32_t>(offset);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(tile[0]), "=r"(tile[1]), "=r"(tile[2]), "=r"(tile[3])
                 : "r"(shared)
                 : "memory");
#else
    for (int i = 0; i < 4; ++i) {
        const int row = shuffle(offset, 8 * i + lane() / 4);
        tile[i] = *reinterpret_cast<const uint32_t *>(static_cast<const char *>(base) + row + 4 * (lane() % 4));
    }
#endif
}

/* The same tiles, transposed: each lane gets column lane / 4, rows 2 (lane % 4) and one more. */
DS4_DEVICE void load_tiles_transposed(uint32_t (&tile)[4], const void *base, int offset) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    const uint32_t shared = static_cast<uint32_t>(__cvta_generic_to_shared(base)) + static_cast<uint32_t>(offset);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(tile[0]), "=r"(tile[1]), "=r"(tile[2]), "=r"(tile[3])
                 : "r"(shared)
                 : "memory");
#else
    for (int i = 0; i < 4; ++i) {
        const int   low = shuffle(offset, 8 * i + 2 * (lane() % 4));
        const int   high = shuffle(offset, 8 * i + 2 * (lane() % 4) + 1);
        const char *column = static_cast<const char *>(base) + 2 * (lane() / 4);
        tile[i] = *reinterpret_cast<const uint16_t *>(column + low) |
                  static_cast<uint32_t>(*reinterpret_cast<const uint16_t *>(column + high)) << 16;
    }
#endif
}

/* ---- ways to do it --------------------------------------------------------------------------------- */

/* Head size that the kernels of halves are made for. */
constexpr int kHalvesDim = 512;
/* The products of a logit are summed in two chains, one per half of the head, which are added in the end. */
constexpr int kChainDims = kHalvesDim / 2;

/* attention_few.cu: logits and mix with halves, for a few tokens; then merge_segments unless there is but one segment. */
bool can_attend_few_tokens(const CardFacts &facts);
void attend_few_tokens(const Stream &stream, const AttentionJob &job, const AttentionScratch &scratch);

/* attention_many.cu: with halves, a block per token. */
bool   can_attend_many_tokens(const CardFacts &facts);
size_t bytes_for_many_tokens(int64_t tokens, int64_t window, int64_t compressed_rows);
void   attend_many_tokens(const Stream &stream, const CardFacts &facts, const AttentionJob &job, std::byte *scratch);

/* attention.cu: out from mixed and sums. */
void merge_segments(const Stream &stream, const AttentionJob &job, const AttentionScratch &scratch);

} // namespace ds4::backend::gpu
