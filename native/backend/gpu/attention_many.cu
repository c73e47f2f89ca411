/* Attention with halves for many tokens: a block takes 64 heads of a token, because tokens need not share a row. The arithmetic of
 * a head is that of attention_few.cu, bit for bit. Rows are turned into halves once, in front: a row is fetched by a hundred
 * tokens and more, and half the bytes are to travel. */
#include "backend/gpu/attention.h"

#include <algorithm>

namespace ds4::backend::gpu {

namespace {

constexpr int kPieceHalves = 8; /* of 16 bytes */
constexpr int kRowPieces = kHalvesDim / kPieceHalves;

/* ---- rows as halves --------------------------------------------------------------------------------- */

struct HalfRows {
    uint4  *rows;     /* [raw_rows + compressed rows, dim] */
    int32_t raw_rows; /* room for raw rows; the first is the oldest that the first token sees */
};

DS4_DEVICE int oldest(const AttentionJob &job, uint64_t position) { /* how far it lies back */
    return position + 1 < static_cast<uint64_t>(job.window) ? static_cast<int>(position) : job.window - 1;
}

DS4_KERNEL rows_to_halves(AttentionJob job, HalfRows halves) {
    wait_for_inputs();
    let_next_start();
    const uint64_t position = position_of(job.at);
    const int      back = oldest(job, position);
    const int64_t  raw = back + job.tokens;
    const int64_t  compressed =
        job.ratio == 0 ? 0 : static_cast<int64_t>((position + static_cast<uint64_t>(job.tokens)) / static_cast<uint64_t>(job.ratio));
    const auto     ring_first = static_cast<int64_t>((position - static_cast<uint64_t>(back)) % static_cast<uint64_t>(job.ring_rows));
    const int64_t  pieces = (raw + compressed) * kRowPieces;
    const int64_t  step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < pieces; i += step) {
        const int64_t row = i / kRowPieces;
        const int64_t ring_row = ring_first + row;
        const float  *from = row >= raw ? job.rows + (row - raw) * kHalvesDim
                                        : job.ring + (ring_row >= job.ring_rows ? ring_row - job.ring_rows : ring_row) * kHalvesDim;
        const auto   *four = reinterpret_cast<const float4 *>(from + i % kRowPieces * kPieceHalves);
        const float4  a = four[0];
        const float4  b = four[1];
        const int64_t to = row >= raw ? halves.raw_rows + row - raw : row;
        halves.rows[to * kRowPieces + i % kRowPieces] = {pack_bounded(a.x, a.y), pack_bounded(a.z, a.w), pack_bounded(b.x, b.y),
                                                         pack_bounded(b.z, b.w)};
    }
}

/* ---- attention -------------------------------------------------------------------------------------- */

constexpr int kHeads = 64; /* of a block */
constexpr int kThreads = 256;
constexpr int kGroups = kThreads / kLanes;
constexpr int kGroupDims = kHalvesDim / kGroups;
constexpr int kLogitStride = kChunkRows + 4; /* padded: rows of a tile begin in different banks */

/* Rows of 64 pieces of 16 bytes lie with piece p in place p ^ (row % 8), so that a tile's rows are in different banks. The
 * probabilities of a head take the place of its second chain's logits. */
template <int buffers> struct Memory {
    uint4 q[kHeads][kRowPieces];
    uint4 rows[buffers][kChunkRows][kRowPieces];
    float logits[2][kHeads][kLogitStride];
    float decay[kHeads];
    float share[kHeads];
};

/* Where a lane's tile row begins. */
DS4_DEVICE int piece_offset(int row, int piece) { return (row * kRowPieces + (piece ^ (row % 8))) * 16; }

/* o of 64 heads and 64 dimensions that a group keeps: [tile of 16 heads][tile of 8 dimensions], as multiply_halves has it. */
using Mix = float[kHeads / 16][kGroupDims / 8][4];

/* With two buffers a chunk is on its way while the one in front is used; with one, blocks have to wait. */
template <int buffers> DS4_KERNEL __launch_bounds__(kThreads, 1) attend_many(AttentionJob job, HalfRows halves) {
    DS4_SHARED(Memory<buffers>, shared);
    wait_for_inputs();
    let_next_start();
    const int     thread = static_cast<int>(threadIdx.x);
    const auto    token = static_cast<int>(blockIdx.x);
    const int     first_head = static_cast<int>(blockIdx.y) * kHeads;
    const RowList list = list_of(job, token);
    const int     chunks = (list.count + kChunkRows - 1) / kChunkRows;
    const int     raw_first = oldest(job, position_of(job.at)) + token + 1 - list.window_rows;

    /* A group fetches rows group * 8 .. group * 8 + 7 of a chunk; lanes 0 to 7 look their numbers up. */
    constexpr int kGroupRows = kChunkRows / kGroups;
    const auto    number_of = [&](int chunk) {
        const int i = chunk * kChunkRows + group() * kGroupRows + lane() % kGroupRows;
        if (i >= list.count) {
            return -1;
        }
        const int compressed = i - list.window_rows;
        return compressed < 0 ? raw_first + i
                              : halves.raw_rows + (list.selected == nullptr ? compressed : list.selected[compressed]);
    };
    const auto fetch = [&](int chunk, int number) {
        for (int r = 0; r < kGroupRows; ++r) {
            const int  row = group() * kGroupRows + r;
            const int  from = shuffle(number, r);
            uint4     *to = shared->rows[chunk % buffers][row];
            for (int piece = lane(); piece < kRowPieces; piece += kLanes) {
                if (from >= 0) {
                    copy_async(to + (piece ^ (row % 8)), halves.rows + static_cast<int64_t>(from) * kRowPieces + piece);
                } else {
                    to[piece ^ (row % 8)] = {0, 0, 0, 0};
                }
            }
        }
        copies_commit();
    };
    fetch(0, number_of(0));
    int next_number = number_of(1);

    for (int i = thread; i < kHeads * kRowPieces; i += kThreads) {
        const int   head = i / kRowPieces;
        const int   piece = i % kRowPieces;
        const auto *from = reinterpret_cast<const float4 *>(
            job.q + (static_cast<int64_t>(token) * job.heads + smaller(first_head + head, job.heads - 1)) * kHalvesDim +
            piece * kPieceHalves);
        const float4 a = from[0];
        const float4 b = from[1];
        shared->q[head][piece ^ (head % 8)] = {pack_bounded(a.x, a.y), pack_bounded(a.z, a.w), pack_bounded(b.x, b.y),
                                               pack_bounded(b.z, b.w)};
    }

    /* For logits a group has 32 heads, 32 rows and one chain of products. */
    const int heads_at = group() % 2 * 32;
    const int rows_at = group() / 2 % 2 * 32;
    const int chain = group() / 4;
    /* For probabilities four lanes have a head. */
    const int softmax_head = thread / 4;
    const int quarter = thread % 4;
    float     m = -INFINITY;
    float     l = 0.0f;
    float     m_before = -INFINITY; /* of the segments in front */
    float     l_before = 0.0f;
    Mix       mix = {};
    float    *out = job.out + (static_cast<int64_t>(token) * job.heads + first_head) * kHalvesDim + group() * kGroupDims;
    const int index = lane() / 4;
    const int pair = lane() % 4;

    for (int chunk = 0; chunk < chunks; ++chunk) {
        copies_wait<0>();
        sync_block();
        if (buffers > 1 && chunk + 1 < chunks) {
            fetch(chunk + 1, next_number);
            next_number = number_of(chunk + 2);
        }
        const uint4(&rows)[kChunkRows][kRowPieces] = shared->rows[chunk % buffers];

        float sum[2][4][4] = {};
#pragma unroll 4
        for (int k = 0; k < kChainDims / 16; ++k) {
            const int piece = chain * (kChainDims / kPieceHalves) + 2 * k;
            uint32_t  a[2][4];
            uint32_t  b[2][4];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                load_tiles(a[i], shared->q, piece_offset(heads_at + 16 * i + lane() % 16, piece + lane() / 16));
                load_tiles(b[i], rows, piece_offset(rows_at + 16 * i + lane() / 16 * 8 + lane() % 8, piece + lane() / 8 % 2));
            }
#pragma unroll
            for (int i = 0; i < 2; ++i) {
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    multiply_halves(sum[i][j], a[i], {b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]});
                }
            }
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                float *to = &shared->logits[chain][heads_at + 16 * i + index][rows_at + 8 * j + 2 * pair];
                *reinterpret_cast<float2 *>(to) = {sum[i][j][0], sum[i][j][1]};
                *reinterpret_cast<float2 *>(to + 8 * kLogitStride) = {sum[i][j][2], sum[i][j][3]};
            }
        }
        sync_block();

        {
            float z[kQuarter];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float4 a = *reinterpret_cast<const float4 *>(&shared->logits[0][softmax_head][16 * i + 4 * quarter]);
                const float4 b = *reinterpret_cast<const float4 *>(&shared->logits[1][softmax_head][16 * i + 4 * quarter]);
                z[4 * i] = a.x + b.x;
                z[4 * i + 1] = a.y + b.y;
                z[4 * i + 2] = a.z + b.z;
                z[4 * i + 3] = a.w + b.w;
            }
            const float before = m;
            m = fmaxf(m, scale_logits(z, job.factor, quarter, list.count - chunk * kChunkRows));
            const float decay = exp2f(before - m);
            l = fmaf(l, decay, to_probabilities(z, m)); /* all four lanes have read their logits by now */
            sync_group();
            auto *probability = reinterpret_cast<uint16_t *>(shared->logits[1][softmax_head]);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                *reinterpret_cast<uint2 *>(probability + 16 * i + 4 * quarter) = {pack_halves(z[4 * i], z[4 * i + 1]),
                                                                                  pack_halves(z[4 * i + 2], z[4 * i + 3])};
            }
            if (quarter == 0) {
                shared->decay[softmax_head] = decay;
            }
        }
        sync_block();

        bool decays = false; /* mostly not: the maximum is found early */
#pragma unroll
        for (int i = 0; i < kHeads / 8; ++i) {
            decays = decays || shared->decay[8 * i + index] != 1.0f;
        }
        if (ballot(decays) != 0) {
#pragma unroll
            for (int i = 0; i < kHeads / 8; ++i) {
                const float decay = shared->decay[8 * i + index];
#pragma unroll
                for (int j = 0; j < kGroupDims / 8; ++j) {
                    mix[i / 2][j][i % 2 * 2] *= decay;
                    mix[i / 2][j][i % 2 * 2 + 1] *= decay;
                }
            }
        }
#pragma unroll
        for (int k = 0; k < kChunkRows / 16; ++k) {
            uint32_t a[kHeads / 16][4];
#pragma unroll
            for (int i = 0; i < kHeads / 16; ++i) {
                load_tiles(a[i], shared->logits[1],
                           (16 * i + lane() % 16) * kLogitStride * static_cast<int>(sizeof(float)) + (2 * k + lane() / 16) * 16);
            }
#pragma unroll
            for (int j = 0; j < kGroupDims / 16; ++j) {
                uint32_t b[4];
                load_tiles_transposed(b, rows,
                                      piece_offset(16 * k + lane() % 16, group() * (kGroupDims / 8) + 2 * j + lane() / 16));
#pragma unroll
                for (int i = 0; i < kHeads / 16; ++i) {
                    multiply_halves(mix[i][2 * j], a[i], {b[0], b[1]});
                    multiply_halves(mix[i][2 * j + 1], a[i], {b[2], b[3]});
                }
            }
        }
        if (buffers == 1 && chunk + 1 < chunks) {
            sync_block();
            fetch(chunk + 1, next_number);
            next_number = number_of(chunk + 2);
        }

        const bool last = chunk + 1 == chunks;
        if (last || (chunk + 1) % kSegmentChunks == 0) {
            /* The sums of a segment leave for `out`, or are the result. */
            const bool  alone = chunk < kSegmentChunks;
            const Merge merge = merge_of(m_before, m);
            m_before = alone ? m : merge.m;
            l_before = alone ? l : merged(merge, l_before, l);
            sync_block();
            if (quarter == 0) {
                shared->decay[softmax_head] = merge.before;
                shared->share[softmax_head] = merge.own;
                shared->logits[0][softmax_head][0] =
                    normaliser(m_before, l_before, job.sinks[smaller(first_head + softmax_head, job.heads - 1)]);
            }
            m = -INFINITY;
            l = 0.0f;
            sync_block();
            const int unrotated = kHalvesDim - 2 * job.rope.pairs;
#pragma unroll
            for (int j = 0; j < kGroupDims / 8; ++j) {
                const int   d = group() * kGroupDims + 8 * j + 2 * pair;
                const bool  turned = last && d >= unrotated;
                const Angle angle = turned ? angle_of(job.rope, list.position, (d - unrotated) / 2) : Angle{1.0f, 0.0f};
#pragma unroll
                for (int i = 0; i < 2 * (kHeads / 16); ++i) {
                    const int head = 8 * i + index;
                    float     own[2] = {mix[i / 2][j][i % 2 * 2], mix[i / 2][j][i % 2 * 2 + 1]};
                    mix[i / 2][j][i % 2 * 2] = 0.0f;
                    mix[i / 2][j][i % 2 * 2 + 1] = 0.0f;
                    if (first_head + head >= job.heads) {
                        continue;
                    }
                    auto *at = reinterpret_cast<float2 *>(out + static_cast<int64_t>(head) * kHalvesDim + 8 * j + 2 * pair);
                    if (!alone) {
                        const Merge by = {0.0f, shared->decay[head], shared->share[head]};
                        const float2 before = *at;
                        own[0] = merged(by, before.x, own[0]);
                        own[1] = merged(by, before.y, own[1]);
                    }
                    if (last) {
                        own[0] *= shared->logits[0][head][0];
                        own[1] *= shared->logits[0][head][0];
                    }
                    if (turned) {
                        rotate_pair_back(own[0], own[1], angle);
                    }
                    *at = {own[0], own[1]};
                }
            }
        }
    }
}

template <int buffers> bool fits(const CardFacts &facts) { return facts.shared_bytes >= sizeof(Memory<buffers>); }

int64_t raw_rows(int64_t tokens, int64_t window) { return tokens + window - 1; }

} // namespace

/* Never without the few-token kernels that give the same bits. */
bool can_attend_many_tokens(const CardFacts &facts) { return kMultipliesHalves && fits<1>(facts); }

size_t bytes_for_many_tokens(int64_t tokens, int64_t window, int64_t compressed_rows) {
    return static_cast<size_t>(raw_rows(tokens, window) + compressed_rows) * kRowPieces * sizeof(uint4);
}

void attend_many_tokens(const Stream &stream, const CardFacts &facts, const AttentionJob &job, std::byte *scratch) {
    const HalfRows halves = {
        .rows = reinterpret_cast<uint4 *>(scratch),
        .raw_rows = static_cast<int32_t>(raw_rows(job.tokens, job.window)),
    };
    launch(stream, rows_to_halves, {4 * facts.multiprocessors}, kThreads, 0, job, halves);
    const Grid grid = {static_cast<unsigned>(job.tokens), static_cast<unsigned>((job.heads + kHeads - 1) / kHeads)};
    if (fits<2>(facts)) {
        launch(stream, attend_many<2>, grid, kThreads, sizeof(Memory<2>), job, halves);
    } else {
        launch(stream, attend_many<1>, grid, kThreads, sizeof(Memory<1>), job, halves);
    }
}

} // namespace ds4::backend::gpu
