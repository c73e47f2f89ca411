/* The tile of tiles.h for so few tokens that wide tiles would leave most of the card idle. A block has 16 rows only, and its
 * groups share out the chains of a row's sum instead of rows: a matrix then makes as many blocks as it has 16 rows, and
 * each reads its weights once, straight into the operands of the matrix instruction. */
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/gpu/project.h"
#include "backend/gpu/tiles.h"

namespace ds4::backend::gpu {

/* 8 of a unit's 32 bytes per lane, where fragments hold a quarter of a row each; the same 8 of rows and of tokens, so the
 * order inside of a unit does not matter. Else all 32. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
/* first, second: the lane's two rows, at the unit. */
DS4_DEVICE void load_rows_directly(RowFragment &out, const std::byte *first, const std::byte *second) {
    const uint2 a = load_once(reinterpret_cast<const uint2 *>(first) + lane() % 4);
    const uint2 b = load_once(reinterpret_cast<const uint2 *>(second) + lane() % 4);
    out.words[0] = a.x;
    out.words[1] = b.x;
    out.words[2] = a.y;
    out.words[3] = b.y;
}
/* The token of 8 that this lane loads, and its bytes at the unit. */
constexpr int kLoadedTokens = 1;
DS4_DEVICE int  loaded_token(int) { return lane() / 4; }
DS4_DEVICE void load_tokens_directly(TokenFragment &out, const int8_t *const (&tokens)[kLoadedTokens]) {
    const uint2 own = *(reinterpret_cast<const uint2 *>(tokens[0]) + lane() % 4);
    out.words[0] = own.x;
    out.words[1] = own.y;
}
#else
DS4_DEVICE void load_rows_directly(RowFragment &out, const std::byte *first, const std::byte *second) {
    load_quads(first, out.words[0]);
    load_quads(second, out.words[1]);
}
constexpr int   kLoadedTokens = 2;
DS4_DEVICE int  loaded_token(int i) { return lane() % 4 * 2 + i; }
DS4_DEVICE void load_tokens_directly(TokenFragment &out, const int8_t *const (&tokens)[kLoadedTokens]) {
    for (int i = 0; i < kLoadedTokens; ++i) {
        load_row_words(out.words[i], reinterpret_cast<const std::byte *>(tokens[i]));
    }
}
#endif

/* 16 rows of arranged Q8_0 times 8 kTokenTiles tokens. */
template <int token_tiles> struct ThinTile {
    static constexpr int kRows = 16;
    static constexpr int kTokenTiles = token_tiles;
    static constexpr int kTokens = 8 * kTokenTiles;
    static constexpr int kGroups = kTileThreads / kLanes;
    static constexpr int kChains = chains(Inputs::bytes_32);
    static constexpr int kRounds = kChains / kGroups; /* a group has one chain of each */
    static constexpr int kOwn = kRows * kTokens / kTileThreads; /* a thread's elements of the result */
    static constexpr int kStride = kTokens + 4; /* lanes that write or read together meet different banks */
    static_assert(kOwn * kTileThreads == kRows * kTokens && kRounds * kGroups == kChains);

    struct Shared {
        float parts[kGroups][kRows * kStride];
    };
    static constexpr size_t kSharedBytes = sizeof(Shared);

    struct Loaded {
        RowFragment   rows;
        TokenFragment tokens[kTokenTiles];
        uint16_t      d[2];
        float         dx[kTokenTiles][2];
    };

    /* As ByteTile's. An element is stored by the same thread in every call. */
    template <typename InputRow, typename Store>
    static DS4_DEVICE void run(const WeightRows &weights, int64_t first_row, const Activations &x, int count, std::byte *memory,
                               InputRow input_row, Store store) {
        auto     &shared = *reinterpret_cast<Shared *>(memory);
        const int units = static_cast<int>(x.columns / 32);

        const std::byte *rows[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int64_t row = first_row + lane() / 4 + 8 * i;
            rows[i] = weights.data + (row < weights.rows ? row : weights.rows - 1) * weights.row_bytes;
        }
        /* Rows of the activations; as numbers they need half the registers of addresses. */
        const auto known_row = [&](int token) { return static_cast<int>(input_row(token < count ? token : count - 1)); };
        int        tokens[kTokenTiles][kLoadedTokens];
        int        scaled[kTokenTiles][2];
#pragma unroll
        for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
            for (int i = 0; i < kLoadedTokens; ++i) {
                tokens[n][i] = known_row(8 * n + loaded_token(i));
            }
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                scaled[n][i] = known_row(8 * n + lane() % 4 * 2 + i);
            }
        }
        const auto load = [&](int unit, Loaded &out) {
            load_rows_directly(out.rows, rows[0] + 32 * unit, rows[1] + 32 * unit);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                out.d[i] = load_half(rows[i] + x.columns + 2 * unit);
            }
            const int8_t *const at_unit = x.q + 32 * unit;
            const float *const  dx = x.d + unit * x.d_stride;
#pragma unroll
            for (int n = 0; n < kTokenTiles; ++n) {
                const int8_t *own[kLoadedTokens];
#pragma unroll
                for (int i = 0; i < kLoadedTokens; ++i) {
                    own[i] = at_unit + tokens[n][i] * x.columns;
                }
                load_tokens_directly(out.tokens[n], own);
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    out.dx[n][i] = dx[scaled[n][i]];
                }
            }
        };

        float sum[kOwn] = {};
        for (int round = 0; round < kRounds; ++round) {
            float  chain[kTokenTiles][4] = {};
            Loaded now;
            int    unit = round * kGroups + group();
            if (unit < units) {
                load(unit, now);
            }
#pragma unroll 2
            while (unit < units) {
                const int next_unit = unit + kChains;
                Loaded    next;
                if (next_unit < units) {
                    load(next_unit, next);
                }
                const float d[2] = {half_to_float(now.d[0]), half_to_float(now.d[1])};
#pragma unroll
                for (int n = 0; n < kTokenTiles; ++n) {
                    float total[4];
                    float_products(total, now.rows, now.tokens[n]);
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        chain[n][e] = accumulate<false>(chain[n][e], {d[e / 2], 0.0f}, now.dx[n][e % 2], total[e], 0.0f);
                    }
                }
                now = next;
                unit = next_unit;
            }
#pragma unroll
            for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int row = 8 * (e / 2) + lane() / 4, token = 8 * n + 2 * (lane() % 4) + e % 2;
                    shared.parts[group()][row * kStride + token] = chain[n][e];
                }
            }
            sync_block();
#pragma unroll
            for (int i = 0; i < kOwn; ++i) {
                const int element = i * kTileThreads + static_cast<int>(threadIdx.x);
#pragma unroll
                for (int g = 0; g < kGroups; ++g) {
                    sum[i] += shared.parts[g][element / kTokens * kStride + element % kTokens];
                }
            }
            sync_block();
        }
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
            const int     element = i * kTileThreads + static_cast<int>(threadIdx.x);
            const int64_t row = first_row + element / kTokens;
            const int     token = element % kTokens;
            if (row < weights.rows && token < count) {
                store(row, token, sum[i]);
            }
        }
    }
};

} // namespace ds4::backend::gpu
