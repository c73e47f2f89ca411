/* Attention with halves for a few tokens: each step is spread over the whole card. The arithmetic of a head is that of
 * attention_many.cu, bit for bit: the same products in the same order (attention.h). */
#include "backend/gpu/attention.h"

#include <algorithm>

namespace ds4::backend::gpu {

namespace {

/* ---- logits ---------------------------------------------------------------------------------------- */

constexpr int kTileRows = 32;
constexpr int kTileHeads = 16;
constexpr int kRowTiles = kTileRows / 8;
constexpr int kLogitGroups = 2 * kRowTiles;
constexpr int kLogitThreads = kLogitGroups * kLanes;

struct LogitShared {
    float q[kTileHeads][kHalvesDim + 8]; /* padded: four vectors at a time are read without a conflict */
    float rows[kTileRows][kHalvesDim + 8];
};

/* logits[token, head, i] = q . row i of the list. A block owns 32 rows and 16 heads of a token at a time, a group 8 of the rows
 * and one chain. All operands are asked for at once, and the first half of each chain is summed while the second is still on
 * its way: with loads into registers the compiler keeps too few of them in flight. */
DS4_KERNEL __launch_bounds__(kLogitThreads) logits_halves(AttentionJob job, AttentionScratch scratch) {
    DS4_SHARED(LogitShared, shared);
    wait_for_inputs();
    let_next_start();
    const auto token = static_cast<int>(blockIdx.z);
    const int  first_head = static_cast<int>(blockIdx.y) * kTileHeads;
    const int  tile = group() % kRowTiles;
    const int  chain = group() / kRowTiles;
    const int  index = lane() / 4;
    const int  pair = lane() % 4;

    constexpr int kPartDims = kChainDims / 2;
    static_assert(kPartDims == 4 * kLanes);
    const auto fetch_part = [](float *to, const float *from, int part) { /* of both chains, by a group */
        for (int c = 0; c < 2; ++c) {
            const int d = c * kChainDims + part * kPartDims + 4 * lane();
            copy_async(to + d, from + d);
        }
    };
    for (int head = group(); head < kTileHeads; head += kLogitGroups) { /* on their way while the list is looked up */
        const int64_t vector = static_cast<int64_t>(token) * job.heads + smaller(first_head + head, job.heads - 1);
        fetch_part(shared->q[head], job.q + vector * kHalvesDim, 0);
        fetch_part(shared->q[head], job.q + vector * kHalvesDim, 1);
    }
    const RowList list = list_of(job, token);

    for (int first = static_cast<int>(blockIdx.x) * kTileRows; first < list.count;
         first += static_cast<int>(gridDim.x) * kTileRows) {
        /* Rows beyond the end repeat the last one; nobody reads their logits. */
        const int number = row_number(job, list, smaller(first + lane(), list.count - 1));
        for (int part = 0; part < 2; ++part) {
            for (int row = group(); row < kTileRows; row += kLogitGroups) {
                fetch_part(shared->rows[row], row_at(job, shuffle(number, row)), part);
            }
            copies_commit();
        }

        float      sum[4] = {};
        const auto sum_part = [&](int part) {
            const int    start = chain * kChainDims + part * kPartDims + 2 * pair;
            const float *low = &shared->q[index][start];
            const float *high = &shared->q[index + 8][start];
            const float *row = &shared->rows[8 * tile + index][start];
            const auto   halves_at = [](const float *from) {
                const float2 two = *reinterpret_cast<const float2 *>(from);
                return pack_bounded(two.x, two.y);
            };
#pragma unroll
            for (int k = 0; k < kPartDims; k += 16) {
                multiply_halves(sum, {halves_at(low + k), halves_at(high + k), halves_at(low + k + 8), halves_at(high + k + 8)},
                                {halves_at(row + k), halves_at(row + k + 8)});
            }
        };
        copies_wait<1>();
        sync_block();
        sum_part(0);
        copies_wait<0>();
        sync_block();
        sum_part(1);

        /* The sums of the second chain pass through the place of the rows. */
        float *second = shared->rows[tile];
        sync_block();
        for (int j = 0; chain == 1 && j < 4; ++j) {
            second[j * kLanes + lane()] = sum[j];
        }
        sync_block();
        if (chain == 0) {
            for (int j = 0; j < 4; j += 2) {
                const int head = first_head + index + 4 * j;
                if (head < job.heads) {
                    float *to = scratch.logits + (static_cast<int64_t>(token) * job.heads + head) * scratch.list_rows;
                    *reinterpret_cast<float2 *>(to + first + 8 * tile + 2 * pair) = {
                        sum[j] + second[j * kLanes + lane()], sum[j + 1] + second[(j + 1) * kLanes + lane()]};
                }
            }
        }
        sync_block();
    }
    copies_wait<0>();
}

/* ---- mix ------------------------------------------------------------------------------------------- */

constexpr int kMixThreads = 256;
constexpr int kMixGroups = 4; /* that sum up rows; the others help with the rest */
constexpr int kMixDims = 8 * kMixGroups;
constexpr int kSlices = kHalvesDim / kMixDims;
constexpr int kQuads = kMixThreads / 4;
constexpr int kItems = kSegmentChunks * kTileHeads / kQuads; /* chunks of a head that four lanes turn into probabilities */
constexpr int kStages = 6; /* chunks of rows on their way at a time */

struct MixShared {
    float    rows[kStages][kChunkRows][kMixDims + 4]; /* padded: four rows at a time are read without a conflict */
    uint16_t probability[kTileHeads][kSegmentRows + 8];
    float    most[kSegmentChunks][kTileHeads];
    float    decay[kSegmentChunks][kTileHeads]; /* 2^(m - m') */
    float    sum[kSegmentChunks][kTileHeads];
    int32_t  numbers[kSegmentRows];
};

/* o of one segment, for 16 heads and 32 dimensions of a token at a time, and with a single segment the result. First the
 * probabilities of the whole segment, while its rows are on their way; then the rows, a group having 8 dimensions. */
template <bool only_segment> DS4_KERNEL __launch_bounds__(kMixThreads, 1) mix_halves(AttentionJob job, AttentionScratch scratch) {
    DS4_SHARED(MixShared, shared);
    wait_for_inputs();
    let_next_start();
    const int     thread = static_cast<int>(threadIdx.x);
    const auto    token = static_cast<int>(blockIdx.z);
    const int     first_head = static_cast<int>(blockIdx.y) * kTileHeads;
    const auto    slice = static_cast<int>(blockIdx.x) % kSlices;
    const RowList list = list_of(job, token);
    const int     index = lane() / 4;
    const int     pair = lane() % 4;
    const int     d = slice * kMixDims + group() * 8 + 2 * pair; /* of what this lane sums up */

    for (int segment = static_cast<int>(blockIdx.x) / kSlices; segment * kSegmentRows < list.count;
         segment += static_cast<int>(gridDim.x) / kSlices) {
        const int first = segment * kSegmentRows;
        const int rows = smaller(list.count - first, kSegmentRows);
        const int chunks = (rows + kChunkRows - 1) / kChunkRows;
        sync_block();
        for (int i = thread; i < rows; i += kMixThreads) {
            shared->numbers[i] = row_number(job, list, first + i);
        }
        sync_block();
        /* Eight lanes fetch a row's 32 dimensions. */
        const auto fetch = [&](int chunk) {
            if (chunk < chunks) {
                for (int i = thread / 8; i < kChunkRows; i += kMixThreads / 8) {
                    const int row = chunk * kChunkRows + i;
                    float    *to = &shared->rows[chunk % kStages][i][thread % 8 * 4];
                    if (row < rows) {
                        copy_async(to, row_at(job, shared->numbers[row]) + slice * kMixDims + thread % 8 * 4);
                    } else {
                        *reinterpret_cast<float4 *>(to) = {0.0f, 0.0f, 0.0f, 0.0f};
                    }
                }
            }
            copies_commit();
        };
        for (int chunk = 0; chunk < kStages - 1; ++chunk) {
            fetch(chunk);
        }

        /* All logits are asked for before the first is used. */
        const int quarter = thread % 4;
        const int first_item = thread / 4;
        float     z[kItems][kQuarter] = {};
#pragma unroll
        for (int n = 0; n < kItems; ++n) {
            const int item = first_item + n * kQuads;
            if (item < chunks * kTileHeads) {
                const int    head = smaller(first_head + item % kTileHeads, job.heads - 1);
                const float *from = scratch.logits + (static_cast<int64_t>(token) * job.heads + head) * scratch.list_rows +
                                    first + item / kTileHeads * kChunkRows + 4 * quarter;
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float4 four = *reinterpret_cast<const float4 *>(from + 16 * i);
                    z[n][4 * i] = four.x;
                    z[n][4 * i + 1] = four.y;
                    z[n][4 * i + 2] = four.z;
                    z[n][4 * i + 3] = four.w;
                }
            }
        }
        float most[kItems];
#pragma unroll
        for (int n = 0; n < kItems; ++n) {
            const int item = first_item + n * kQuads;
            const int chunk = item / kTileHeads;
            if (n * kQuads < chunks * kTileHeads) { /* the same for the whole block */
                most[n] = scale_logits(z[n], job.factor, quarter, rows - chunk * kChunkRows);
                if (quarter == 0) {
                    shared->most[chunk][item % kTileHeads] = most[n];
                }
            }
        }
        sync_block();
#pragma unroll
        for (int n = 0; n < kItems; ++n) {
            const int item = first_item + n * kQuads;
            const int head = item % kTileHeads;
            const int chunk = item / kTileHeads;
            if (n * kQuads < chunks * kTileHeads) {
                float before = -INFINITY;
                for (int c = 0; c < chunk; ++c) {
                    before = fmaxf(before, shared->most[c][head]);
                }
                const float m = fmaxf(before, most[n]);
                const float sum = to_probabilities(z[n], m);
                if (quarter == 0) {
                    shared->decay[chunk][head] = exp2f(before - m);
                    shared->sum[chunk][head] = sum;
                }
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    *reinterpret_cast<uint2 *>(&shared->probability[head][chunk * kChunkRows + 16 * i + 4 * quarter]) = {
                        pack_halves(z[n][4 * i], z[n][4 * i + 1]), pack_halves(z[n][4 * i + 2], z[n][4 * i + 3])};
                }
            }
        }

        float mix[4] = {};
        for (int chunk = 0; chunk < chunks; ++chunk) {
            copies_wait<kStages - 2>();
            sync_block();
            fetch(chunk + kStages - 1);
            if (group() >= kMixGroups) {
                continue;
            }
            const float decay[2] = {shared->decay[chunk][index], shared->decay[chunk][index + 8]};
            for (int j = 0; j < 4; ++j) {
                mix[j] *= decay[j / 2];
            }
            const auto &row = shared->rows[chunk % kStages];
            const int   column = group() * 8 + index;
#pragma unroll
            for (int k = 0; k < kChunkRows; k += 16) {
                uint32_t a[4];
                load_tiles(a, shared->probability,
                           lane() % 16 * static_cast<int>(sizeof(shared->probability[0])) +
                               2 * (chunk * kChunkRows + k + lane() / 16 * 8));
                const uint32_t b[2] = {pack_bounded(row[k + 2 * pair][column], row[k + 2 * pair + 1][column]),
                                       pack_bounded(row[k + 2 * pair + 8][column], row[k + 2 * pair + 9][column])};
                multiply_halves(mix, a, b);
            }
        }

        for (int j = 0; j < 4; j += 2) {
            const int slot = index + 4 * j;
            const int head = first_head + slot;
            if (head >= job.heads || group() >= kMixGroups) {
                continue;
            }
            float m = -INFINITY;
            float l = 0.0f;
            for (int chunk = 0; chunk < chunks; ++chunk) {
                m = fmaxf(m, shared->most[chunk][slot]);
                l = fmaf(l, shared->decay[chunk][slot], shared->sum[chunk][slot]);
            }
            if constexpr (only_segment) {
                const float factor = normaliser(m, l, job.sinks[head]);
                float       value[2] = {mix[j] * factor, mix[j + 1] * factor};
                const int   unrotated = kHalvesDim - 2 * job.rope.pairs;
                if (d >= unrotated) {
                    rotate_pair_back(value[0], value[1], angle_of(job.rope, list.position, (d - unrotated) / 2));
                }
                float *out = job.out + (static_cast<int64_t>(token) * job.heads + head) * kHalvesDim + d;
                *reinterpret_cast<float2 *>(out) = {value[0], value[1]};
            } else {
                const int64_t at = (static_cast<int64_t>(token) * scratch.segments + segment) * job.heads + head;
                *reinterpret_cast<float2 *>(scratch.mixed + at * kHalvesDim + d) = {mix[j], mix[j + 1]};
                if (d == 0) {
                    scratch.sums[at] = {m, l};
                }
            }
        }
        copies_wait<0>();
    }
}

unsigned blocks(int64_t items, int64_t each) {
    return static_cast<unsigned>((items + each - 1) / each);
}

} // namespace

bool can_attend_few_tokens(const CardFacts &facts) {
    return kMultipliesHalves && facts.shared_bytes >= std::max(sizeof(LogitShared), sizeof(MixShared));
}

void attend_few_tokens(const Stream &stream, const AttentionJob &job, const AttentionScratch &scratch) {
    /* Lists are mostly shorter than what there is room for: blocks go on to further rows instead of there being more. */
    const unsigned row_blocks = std::min(blocks(scratch.most_rows, kTileRows), 64u);
    const unsigned head_blocks = blocks(job.heads, kTileHeads);
    const auto     tokens = static_cast<unsigned>(job.tokens);
    launch(stream, logits_halves, {row_blocks, head_blocks, tokens}, kLogitThreads, sizeof(LogitShared), job, scratch);
    const auto segment_blocks = static_cast<unsigned>(std::min(scratch.segments, 8));
    const Grid grid = {kSlices * segment_blocks, head_blocks, tokens};
    if (scratch.segments == 1) {
        launch(stream, mix_halves<true>, grid, kMixThreads, sizeof(MixShared), job, scratch);
    } else {
        launch(stream, mix_halves<false>, grid, kMixThreads, sizeof(MixShared), job, scratch);
        merge_segments(stream, job, scratch);
    }
}

} // namespace ds4::backend::gpu
