/* The tile of tiles.h for float32 activations, with weights of any type expanded to float32. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "backend/gpu/tiles.h"

namespace ds4::backend::gpu {

/* How a tile is shared out: a block has `rows` rows times `tokens` tokens, a thread thread_rows times thread_tokens of them,
 * and `values` of a unit's 32 are in work at a time, of which the loop takes `unrolled` at once. Registers are shared out for
 * `blocks` blocks of a multiprocessor: a thread's elements take two each. */
template <int rows, int tokens, int thread_rows, int thread_tokens, int values, int unrolled, int blocks> struct FloatShape {
    static constexpr int kRows = rows, kTokens = tokens;
    static constexpr int kThreadRows = thread_rows, kThreadTokens = thread_tokens;
    static constexpr int kValues = values, kUnrolled = unrolled;
    static constexpr int kBlocks = blocks;
    static constexpr int kThreads = rows * tokens / (thread_rows * thread_tokens);

    /* Of a group of lanes, which is 4 lanes high and 8 wide. */
    static constexpr int kGroupRows = 4 * thread_rows, kGroupTokens = 8 * thread_tokens;
    static_assert(rows % kGroupRows == 0 && tokens % kGroupTokens == 0 && 32 % values == 0 && values % unrolled == 0 &&
                  unrolled % 4 == 0);
};

/* A block of kTileThreads, for kernels that have tiles of bytes as well. */
using SharedFloatShape = FloatShape<64, 128, 4, 8, 16, 4, 2>;

/* Weights and activations pass through two stages in shared memory, row by row and token by token, each with its values one
 * after another: one stage is in work while the other is filled. A thread reads four values of each of its rows and tokens at
 * once. Activations come by asynchronous copies where they are aligned, weights through registers, where they are expanded. */
template <Format format, typename Shape = SharedFloatShape> struct FloatTile {
    static constexpr int kRows = Shape::kRows;
    static constexpr int kTokens = Shape::kTokens;
    static constexpr int kThreads = Shape::kThreads;
    static constexpr int kThreadRows = Shape::kThreadRows;
    static constexpr int kThreadTokens = Shape::kThreadTokens;
    static constexpr int kChains = chains(Inputs::floats);

    /* Types with blocks are expanded a unit at a time. */
    static constexpr bool kPlain = format == Format::f32 || format == Format::f16 || format == Format::bf16;
    static constexpr int  kValues = kPlain ? Shape::kValues : 32;
    static constexpr int  kSteps = Shape::kUnrolled / 4;
    static constexpr int  kParts = 32 / kValues; /* stages of a unit */
    static constexpr int  kStride = kValues + 4; /* eight rows or tokens, four values of each, then meet different banks */

    /* What a thread brings of a stage's weights: kItems times kItemValues values of a row. */
    static constexpr int kItemValues = !kPlain ? 32 : format == Format::f32 ? 4 : 8;
    static constexpr int kRowItems = kValues / kItemValues;
    static constexpr int kItems = (kRows * kRowItems + kThreads - 1) / kThreads;
    struct Expanded {
        float values[32];

        DS4_DEVICE float value(int i) const { return values[i]; }
    };
    using Item = std::conditional_t<kPlain, PlainFloats<format, kItemValues>, Expanded>;

    /* And of its activations: four values of every kTokenStep-th token. */
    static constexpr int kTokenItems = kValues / 4;
    static constexpr int kTokenStep = kThreads / kTokenItems;
    static_assert(kThreads % kTokenItems == 0 && kTokens % kTokenStep == 0);

    struct Stage {
        alignas(16) float weights[kRows * kStride];
        alignas(16) float inputs[kTokens * kStride];
    };
    struct Shared {
        Stage        stages[2];
        const float *tokens[kTokens];
    };
    static constexpr size_t kSharedBytes = sizeof(Shared);

    /* As ByteTile's, but for a block of kThreads; input(token) is the address of the token's `columns` values. */
    template <typename Input, typename Store>
    static DS4_DEVICE void run(const WeightRows &weights, int64_t columns, int64_t first_row, int count, std::byte *memory,
                               Input input, Store store) {
        auto      &shared = *reinterpret_cast<Shared *>(memory);
        const auto thread = static_cast<int>(threadIdx.x);
        for (int t = thread; t < kTokens; t += kThreads) {
            shared.tokens[t] = input(t < count ? t : count - 1);
        }
        sync_block();
        bool aligned = true; /* all tokens of this thread */
        for (int i = 0; i < kTokens; i += kTokenStep) {
            aligned = aligned && (reinterpret_cast<uintptr_t>(shared.tokens[i + thread / kTokenItems]) & 15u) == 0;
        }
        FloatTile tile{weights, columns, first_row, count, aligned, shared};
        tile.walk(store);
        sync_block(); /* the memory may be used again */
    }

    const WeightRows &weights;
    const int64_t     columns;
    const int64_t     first_row;
    const int         count;
    const bool        aligned;
    Shared           &shared;

    /* Starts the loads of a stage that has the values from `first` on. */
    DS4_DEVICE void issue(Stage &to, int first, Item (&items)[kItems]) const {
        const auto          thread = static_cast<int>(threadIdx.x);
        const int           place = 4 * (thread % kTokenItems);
        const int           left = static_cast<int>(columns) - first - place;
        float              *inputs = to.inputs + thread / kTokenItems * kStride + place;
        const float *const *tokens = shared.tokens + thread / kTokenItems;
        if (aligned && left >= 4) {
#pragma unroll
            for (int i = 0; i < kTokens; i += kTokenStep) {
                copy_async(inputs + i * kStride, tokens[i] + (first + place));
            }
        } else {
#pragma unroll 1
            for (int i = 0; i < kTokens; i += kTokenStep) {
#pragma unroll
                for (int k = 0; k < 4; ++k) {
                    inputs[i * kStride + k] = k < left ? tokens[i][first + place + k] : 0.0f;
                }
            }
        }
        copies_commit();
#pragma unroll
        for (int i = 0; i < kItems; ++i) {
            const int item = i * kThreads + thread;
            if (kRows * kRowItems % kThreads == 0 || item < kRows * kRowItems) {
                const int64_t    row = first_row + item / kRowItems;
                const std::byte *from = weights.data + (row < weights.rows ? row : weights.rows - 1) * weights.row_bytes;
                if constexpr (kPlain) {
                    items[i] = load_plain<format, kItemValues>(from, columns, first / kItemValues + item % kRowItems);
                } else {
                    floats<format>(from, columns, first / 32, items[i].values);
                }
            }
        }
    }

    /* Puts what came by registers into the stage. */
    DS4_DEVICE void land(Stage &to, const Item (&items)[kItems]) const {
#pragma unroll
        for (int i = 0; i < kItems; ++i) {
            const int item = i * kThreads + static_cast<int>(threadIdx.x);
            if (kRows * kRowItems % kThreads == 0 || item < kRows * kRowItems) {
                float *place = to.weights + item / kRowItems * kStride + item % kRowItems * kItemValues;
#pragma unroll
                for (int k = 0; k < kItemValues; k += 4) {
                    *reinterpret_cast<float4 *>(place + k) = make_float4(items[i].value(k), items[i].value(k + 1),
                                                                         items[i].value(k + 2), items[i].value(k + 3));
                }
            }
        }
    }

    /* chain += a stage's values of this thread's rows and tokens, in order. */
    static DS4_DEVICE void add(const float *rows, const float *tokens, float (&chain)[kThreadRows][kThreadTokens]) {
#pragma unroll kSteps
        for (int k = 0; k < kValues; k += 4) {
            float4 w[kThreadRows];
#pragma unroll
            for (int r = 0; r < kThreadRows; ++r) {
                w[r] = load_floats4(rows + 4 * r * kStride + k);
            }
#pragma unroll
            for (int t = 0; t < kThreadTokens; ++t) {
                const float4 x = load_floats4(tokens + 8 * t * kStride + k);
#pragma unroll
                for (int r = 0; r < kThreadRows; ++r) {
                    chain[r][t] = fmaf(w[r].x, x.x, chain[r][t]);
                }
#pragma unroll
                for (int r = 0; r < kThreadRows; ++r) {
                    chain[r][t] = fmaf(w[r].y, x.y, chain[r][t]);
                }
#pragma unroll
                for (int r = 0; r < kThreadRows; ++r) {
                    chain[r][t] = fmaf(w[r].z, x.z, chain[r][t]);
                }
#pragma unroll
                for (int r = 0; r < kThreadRows; ++r) {
                    chain[r][t] = fmaf(w[r].w, x.w, chain[r][t]);
                }
            }
        }
    }

    template <typename Store> DS4_DEVICE void walk(Store store) const {
        /* A group's lanes in 4 rows and 8 columns, so that of each half of the group every second lane reads the same: such
         * reads of 16 bytes need half the time. Elements of a thread are 4 rows and 8 tokens apart, which keeps the lanes'
         * rows and tokens side by side. */
        constexpr int kGroupsOfTokens = kTokens / Shape::kGroupTokens;
        const int first_of_rows = group() / kGroupsOfTokens * Shape::kGroupRows + lane() / 16 * 2 + lane() % 2;
        const int first_of_tokens = group() % kGroupsOfTokens * Shape::kGroupTokens + lane() % 16 / 2;

        /* All lanes of a group or none. */
        const bool busy = group() % kGroupsOfTokens * Shape::kGroupTokens < count &&
                          first_row + group() / kGroupsOfTokens * Shape::kGroupRows < weights.rows;

        const int units = static_cast<int>((columns + 31) / 32);
        Walk      fetched, added;
        Item      items[kItems];
        float     chain[kThreadRows][kThreadTokens] = {};
        float     sum[kThreadRows][kThreadTokens] = {};

        issue(shared.stages[0], 0, items);
        land(shared.stages[0], items);
        for (int position = 0; position < units * kParts; ++position) {
            const bool more = position + 1 < units * kParts;
            const int  part = position % kParts;
            copies_wait<0>();
            sync_block();
            const Stage &stage = shared.stages[position % 2];
            Stage       &next = shared.stages[1 - position % 2];
            if (more) {
                if (part == kParts - 1) {
                    fetched.advance(units, kChains);
                }
                issue(next, 32 * fetched.unit + (part + 1) % kParts * kValues, items);
            }
            if (busy) {
                add(stage.weights + first_of_rows * kStride, stage.inputs + first_of_tokens * kStride, chain);
            }
            if (part == kParts - 1 && added.advance(units, kChains)) {
#pragma unroll
                for (int r = 0; r < kThreadRows; ++r) {
#pragma unroll
                    for (int t = 0; t < kThreadTokens; ++t) {
                        sum[r][t] += chain[r][t];
                        chain[r][t] = 0.0f;
                    }
                }
            }
            if (more) {
                land(next, items);
            }
        }

#pragma unroll
        for (int r = 0; r < kThreadRows; ++r) {
#pragma unroll
            for (int t = 0; t < kThreadTokens; ++t) {
                const int64_t row = first_row + first_of_rows + 4 * r;
                const int     token = first_of_tokens + 8 * t;
                if (row < weights.rows && token < count) {
                    store(row, token, sum[r][t]);
                }
            }
        }
    }
};

} // namespace ds4::backend::gpu
