/* The tile of tiles.h for float32 activations, with weights of any type expanded to float32. */
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/gpu/tiles.h"

namespace ds4::backend::gpu {

/* 32 values of a row of activations; 0 beyond its end. Other kernels write them, so they are not read past the caches as
 * weights are. */
DS4_DEVICE void load_inputs(const float *row, int64_t columns, int unit, float (&out)[32]) {
    const float *x = row + 32 * unit;
    if (32 * unit + 32 <= columns && (reinterpret_cast<uintptr_t>(x) & 15u) == 0) {
#pragma unroll
        for (int i = 0; i < 32; i += 4) {
            const float4 four = load_floats4(x + i);
            out[i] = four.x;
            out[i + 1] = four.y;
            out[i + 2] = four.z;
            out[i + 3] = four.w;
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) {
        out[i] = 32 * unit + i < columns ? x[i] : 0.0f;
    }
}

/* 64 rows times 128 tokens. A unit of 32 values passes at a time, value by value in rows of shared memory; a thread has 4 rows
 * and 8 tokens. Units beyond the one in work wait in registers. */
template <Format format> struct FloatTile {
    static constexpr int kRows = 64;
    static constexpr int kTokens = 128;
    static constexpr int kChains = chains(Inputs::floats);

    struct Shared {
        alignas(16) float weights[2][32][kRows];
        alignas(16) float inputs[2][32][kTokens];
    };
    static constexpr size_t kSharedBytes = sizeof(Shared);

    /* As ByteTile's; input(token) is the address of the token's `columns` values. */
    template <typename Input, typename Store>
    static DS4_DEVICE void run(const WeightRows &weights, int64_t columns, int64_t first_row, int count, std::byte *memory,
                               Input input, Store store) {
        auto      &shared = *reinterpret_cast<Shared *>(memory);
        const int  units = static_cast<int>((columns + 31) / 32);
        const auto thread = static_cast<int>(threadIdx.x);

        /* Threads 0..63 bring a row's 32 values, 64..191 a token's. */
        const bool       brings_row = thread < kRows;
        const bool       brings_token = thread >= kRows && thread < kRows + kTokens;
        const int        mine = brings_row ? thread : thread - kRows;
        const int64_t    row = first_row + mine < weights.rows ? first_row + mine : weights.rows - 1;
        const std::byte *from_row = weights.data + row * weights.row_bytes;
        const float     *from_token = brings_token ? input(mine < count ? mine : count - 1) : nullptr;
        float carried[32];

        Walk       fetched, added;
        const auto fetch = [&] {
            const int unit = fetched.unit;
            fetched.advance(units, kChains);
            if (brings_row) {
                floats<format>(from_row, columns, unit, carried);
            } else if (brings_token) {
                load_inputs(from_token, columns, unit, carried);
            }
        };
        const auto land = [&](int half) {
            if (brings_row) {
#pragma unroll
                for (int i = 0; i < 32; ++i) {
                    shared.weights[half][i][mine] = carried[i];
                }
            } else if (brings_token) {
#pragma unroll
                for (int i = 0; i < 32; ++i) {
                    shared.inputs[half][i][mine] = carried[i];
                }
            }
        };

        const int first_of_rows = thread / 16 * 4;   /* this thread's rows in the tile: 4 */
        const int first_of_tokens = thread % 16 * 4; /* its tokens: 4, and 4 that are 64 further on */
        float     chain[4][8] = {};
        float     sum[4][8] = {};

        const bool busy = first_of_tokens < count && first_row + first_of_rows < weights.rows;

        fetch();
        land(0);
        for (int position = 0; position < units; ++position) {
            sync_block();
            const int half = position % 2;
            if (position + 1 < units) {
                fetch();
            }
#pragma unroll 4
            for (int i = 0; i < (busy ? 32 : 0); ++i) {
                const float4 w = load_floats4(&shared.weights[half][i][first_of_rows]);
                const float4 low = load_floats4(&shared.inputs[half][i][first_of_tokens]);
                const float4 high = load_floats4(&shared.inputs[half][i][64 + first_of_tokens]);
                const float  rows[4] = {w.x, w.y, w.z, w.w};
                const float  tokens[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
                for (int r = 0; r < 4; ++r) {
#pragma unroll
                    for (int t = 0; t < 8; ++t) {
                        chain[r][t] = fmaf(rows[r], tokens[t], chain[r][t]);
                    }
                }
            }
            if (added.advance(units, kChains)) {
#pragma unroll
                for (int r = 0; r < 4; ++r) {
#pragma unroll
                    for (int t = 0; t < 8; ++t) {
                        sum[r][t] += chain[r][t];
                        chain[r][t] = 0.0f;
                    }
                }
            }
            if (position + 1 < units) {
                land(1 - half);
            }
        }
        sync_block(); /* the memory may be used again */

#pragma unroll
        for (int r = 0; r < 4; ++r) {
#pragma unroll
            for (int t = 0; t < 8; ++t) {
                const int64_t at = first_row + first_of_rows + r;
                const int     token = first_of_tokens + t % 4 + t / 4 * 64;
                if (at < weights.rows && token < count) {
                    store(at, token, sum[r][t]);
                }
            }
        }
    }
};

} // namespace ds4::backend::gpu
