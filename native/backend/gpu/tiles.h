/* Products of many tokens, by tiles of rows times tokens, one tile per block. Used with the rows of one matrix and the
 * tokens of a batch, or with an expert's rows and the tokens that chose it.
 *
 * Both tiles walk a row's units chain by chain, in the order that units.h gives a row's sum: the value of an element is the
 * same in every tile, and the same that project_few makes. */
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/gpu/gpu.h"
#include "backend/gpu/gpu_device.h"
#include "backend/gpu/products.h"
#include "backend/gpu/units.h"

namespace ds4::backend::gpu {

/* Rows of weights; `rows` is where a tile must end. */
struct WeightRows {
    const std::byte *data;
    int64_t          row_bytes;
    int64_t          rows;
};

/* 4 bytes from device to shared memory, as copy_async. */
DS4_DEVICE void copy_async4(void *to, const void *from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    const uint32_t shared = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(from) : "memory");
#else
    *static_cast<uint32_t *>(to) = *static_cast<const uint32_t *>(from);
#endif
}

/* A group's share of 16 rows, and of 8 tokens, times 32 bytes. With a matrix instruction it is the fragments of
 * multiply_bytes; without, a lane has all 32 bytes of its two rows and two tokens. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
struct RowFragment {
    uint32_t words[4];
};
struct TokenFragment {
    uint32_t words[2];
};

/* Four matrices of 8 rows and 16 bytes: word i of lane l is bytes 4 (l % 4) .. + 3 of row l / 4 of matrix i. */
DS4_DEVICE void load_matrices(uint32_t (&out)[4], const std::byte *row_of_lane) {
    const uint32_t shared = static_cast<uint32_t>(__cvta_generic_to_shared(row_of_lane));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared)
                 : "memory");
}
DS4_DEVICE void load_fragment(RowFragment &out, const std::byte *tile, int stride) {
    load_matrices(out.words, tile + (lane() / 8 % 2 * 8 + lane() % 8) * stride + lane() / 16 * 16);
}
/* Of 16 tokens. */
DS4_DEVICE void load_fragments(TokenFragment &low, TokenFragment &high, const std::byte *tile, int stride) {
    uint32_t words[4];
    load_matrices(words, tile + (lane() / 16 * 8 + lane() % 8) * stride + lane() / 8 % 2 * 16);
    low = {{words[0], words[1]}};
    high = {{words[2], words[3]}};
}

/* c += A B, over all 32 bytes, the first 16 or the other 16. */
enum class Range { all, first, second };
template <Range range> DS4_DEVICE void add_products(int (&c)[4], const RowFragment &a, const TokenFragment &b) {
    if constexpr (range == Range::all) {
        multiply_bytes(c, a.words, b.words);
    } else if constexpr (range == Range::first) {
        const uint32_t half[4] = {a.words[0], a.words[1], 0, 0};
        multiply_bytes(c, half, b.words);
    } else {
        const uint32_t half[4] = {0, 0, a.words[2], a.words[3]};
        multiply_bytes(c, half, b.words);
    }
}

/* A B as floats. The sums start at the bits of 1.5 * 2^23 and end as the bits of that number plus the sum, which saves the
 * conversion. Sums stay below 2^22: 32 * 128 * 128 is 2^19. */
DS4_DEVICE void float_products(float (&out)[4], const RowFragment &a, const TokenFragment &b) {
    uint32_t c[4];
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a.words[0]), "r"(a.words[1]), "r"(a.words[2]), "r"(a.words[3]), "r"(b.words[0]), "r"(b.words[1]),
          "r"(0x4b400000));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        out[i] = bits_as<float>(c[i]) - 12582912.0f;
    }
}
#else
struct RowFragment {
    uint32_t words[2][8];
};
struct TokenFragment {
    uint32_t words[2][8];
};

DS4_DEVICE void load_row_words(uint32_t (&out)[8], const std::byte *from) {
    for (int i = 0; i < 8; i += 4) {
        const uint4 quad = *reinterpret_cast<const uint4 *>(from + 4 * i);
        out[i] = quad.x;
        out[i + 1] = quad.y;
        out[i + 2] = quad.z;
        out[i + 3] = quad.w;
    }
}
DS4_DEVICE void load_fragment(RowFragment &out, const std::byte *tile, int stride) {
    load_row_words(out.words[0], tile + lane() / 4 * stride);
    load_row_words(out.words[1], tile + (lane() / 4 + 8) * stride);
}
DS4_DEVICE void load_fragments(TokenFragment &low, TokenFragment &high, const std::byte *tile, int stride) {
    for (int i = 0; i < 2; ++i) {
        load_row_words(low.words[i], tile + (lane() % 4 * 2 + i) * stride);
        load_row_words(high.words[i], tile + (lane() % 4 * 2 + i + 8) * stride);
    }
}

enum class Range { all, first, second };
template <Range range> DS4_DEVICE void add_products(int (&c)[4], const RowFragment &a, const TokenFragment &b) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int k = range == Range::second ? 4 : 0; k < (range == Range::first ? 4 : 8); ++k) {
            c[i] = dot4(static_cast<int>(a.words[i / 2][k]), static_cast<int>(b.words[i % 2][k]), c[i]);
        }
    }
}

DS4_DEVICE void float_products(float (&out)[4], const RowFragment &a, const TokenFragment &b) {
    int c[4] = {};
    add_products<Range::all>(c, a, b);
    for (int i = 0; i < 4; ++i) {
        out[i] = static_cast<float>(c[i]);
    }
}
#endif

/* The units of a row in the order of its sum. Beyond the end: units that exist, but do not count any more. */
struct Walk {
    int unit = 0;
    int chain = 0;

    /* Whether that was the chain's last. */
    DS4_DEVICE bool advance(int units, int chain_count) {
        unit += chain_count;
        if (unit < units) {
            return false;
        }
        ++chain;
        unit = chain < units ? chain : 0;
        return true;
    }
};

constexpr int kTileThreads = 256;

/* Shared memory of a block when a multiprocessor has two of them, which hide each other's waits better than further stages
 * of one block would; 1 KiB of each goes to the system. */
inline size_t shared_bytes_of_two(const CardFacts &card) { return card.shared_bytes / 2 - 1024; }

/* ---- bytes ----------------------------------------------------------------------------------------- */

/* kRows rows times kTokens (16, 32, 64 or 128) tokens with activations in 8 bits. Weights and activations pass through stages
 * in shared memory, several of which are on their way: by asynchronous copies where no bit has to move, else through
 * registers. A group of lanes has 16 kRowTiles rows times 8 kTokenTiles tokens; integers come from the matrix instruction. */
template <Format format, int tokens> struct ByteTile {
    using Unit = Bytes<format>;
    using Tables = typename Unit::Tables;
    static constexpr Inputs kInputs = inputs_of(format, false);
    static constexpr bool   kSmallUnits = kInputs == Inputs::bytes_32;
    static constexpr bool   kCopied = format == Format::q8_0_arranged;
    static_assert(kInputs != Inputs::floats &&
                  (tokens == 16 || tokens == 32 || tokens == 64 || (tokens == 128 && kSmallUnits)));

    static constexpr int kRows =
        tokens > 32 && ((kLittleShared && !kSmallUnits) || (kSmallUnits && tokens == 128)) ? 64 : 128;
    static constexpr int kTokens = tokens;
    static constexpr int kChains = chains(kInputs);
    static constexpr int kPieces = !kSmallUnits ? 8 : kLittleShared ? 2 : 4; /* of a stage, 32 values each */
    static constexpr int kUnits = kSmallUnits ? kPieces : 1;
    static constexpr int kStride = 32 * kPieces + 16; /* lanes of a fragment then meet different banks */
    static constexpr int kSumsStride = 12;            /* words; likewise */
    static constexpr int kTokenTiles = tokens == 16 ? 2 : 4;
    static constexpr int kTokenGroups = kTokens / (8 * kTokenTiles);
    static constexpr int kRowGroups = kTileThreads / kLanes / kTokenGroups;
    static constexpr int kRowTiles = kRows / kRowGroups / 16;
    static_assert(kRowTiles >= 1);
    static constexpr int kItems = kRows * kPieces / kTileThreads; /* shares of a stage per thread */

    struct Stage {
        alignas(16) std::byte weights[kRows * kStride];
        alignas(16) std::byte inputs[kTokens * kStride];
        alignas(16) float dx[kUnits * kTokens];
        alignas(16) uint32_t sums[kSmallUnits ? 4 : kTokens * kSumsStride];
        float    d[kUnits * kRows];
        float    dmin[kSmallUnits ? 1 : kRows];
        uint32_t scales[kSmallUnits ? 1 : kPieces * kRows]; /* of pieces; minima in the high halves */
    };
    struct Shared {
        Tables  tables;
        int32_t input_rows[kTokens];
        int64_t input_offsets[kTokens]; /* of the rows, in bytes */
    };
    static constexpr size_t kFixedBytes = (sizeof(Shared) + 15) / 16 * 16;
    static constexpr size_t kStageBytes = (sizeof(Stage) + 15) / 16 * 16;

    /* How many stages fit, 1 to 3, and the dynamic shared memory of a block with them. */
    static int stages_in(size_t bytes) {
        const size_t fit = bytes > kFixedBytes ? (bytes - kFixedBytes) / kStageBytes : 0;
        return fit >= 3 && kSmallUnits ? 3 : fit >= 2 ? 2 : 1;
    }
    static size_t shared_bytes(int stages) { return kFixedBytes + static_cast<size_t>(stages) * kStageBytes; }

    /* store(row, token, value) for the tile's elements: rows from first_row on that exist, and the first `count` tokens,
     * at least 1. input_row(token) is the token's row of the activations. By all threads of a block of kTileThreads. */
    template <typename InputRow, typename Store>
    static DS4_DEVICE void run(const WeightRows &weights, int64_t first_row, const Activations &x, int count, int stages,
                               std::byte *memory, InputRow input_row, Store store) {
        auto &shared = *reinterpret_cast<Shared *>(memory);
        for (int t = static_cast<int>(threadIdx.x); t < kTokens; t += kTileThreads) {
            const auto row = static_cast<int32_t>(input_row(t < count ? t : count - 1));
            shared.input_rows[t] = row;
            shared.input_offsets[t] = row * x.columns;
        }
        fill_tables(shared.tables);
        sync_block();
        ByteTile tile{weights, first_row, x, shared, memory + kFixedBytes,
                      static_cast<int>(x.columns / unit_values(kInputs)), stages};
        tile.walk(count, store);
        sync_block(); /* the memory may be used again */
    }

    const WeightRows  &weights;
    const int64_t      first_row;
    const Activations &x;
    const Shared      &shared;
    std::byte         *stage_memory;
    const int          units;
    const int          stages;

    DS4_DEVICE Stage &stage(int slot) const {
        return *reinterpret_cast<Stage *>(stage_memory + slot * static_cast<int>(kStageBytes));
    }
    DS4_DEVICE int slot_after(int slot) const { return slot + 1 == stages ? 0 : slot + 1; }
    DS4_DEVICE const std::byte *row_of(int row) const {
        const int64_t known = first_row + row < weights.rows ? first_row + row : weights.rows - 1;
        return weights.data + known * weights.row_bytes;
    }
    /* One of a stage's units. */
    static DS4_DEVICE int select(const int (&of_stage)[kUnits], int k) {
        int unit = of_stage[0];
#pragma unroll
        for (int i = 1; i < kUnits; ++i) {
            unit = k == i ? of_stage[i] : unit; /* an index would move them to memory */
        }
        return unit;
    }

    /* What passes through registers. */
    struct Carried {
        typename Unit::Raw raw[kCopied ? 1 : kItems];
        uint16_t           d[kCopied ? kItems : 1];
    };

    /* Starts the loads of a stage, from where `walk` is. */
    DS4_DEVICE void issue(Stage &to, Walk &walk, Carried &carried) const {
        int       of_stage[kUnits];
#pragma unroll
        for (int k = 0; k < kUnits; ++k) {
            of_stage[k] = walk.unit;
            walk.advance(units, kChains);
        }
        const int thread = static_cast<int>(threadIdx.x);
        constexpr int kQuads = 2 * kPieces; /* 16 bytes each, of a row */
        static_assert(kTileThreads % kQuads == 0);
        const int quad = thread % kQuads;
        const int place = kSmallUnits ? select(of_stage, quad / 2) * 32 + quad % 2 * 16 : of_stage[0] * 256 + quad * 16;
#pragma unroll
        for (int i = 0; i < (kTokens * kQuads + kTileThreads - 1) / kTileThreads; ++i) {
            const int token = (i * kTileThreads + thread) / kQuads;
            if (token < kTokens) {
                copy_async(to.inputs + token * kStride + 16 * quad, x.q + shared.input_offsets[token] + place);
            }
        }
#pragma unroll
        for (int i = 0; i < (kTokens * kUnits + kTileThreads - 1) / kTileThreads; ++i) {
            const int item = i * kTileThreads + thread;
            if (item < kTokens * kUnits) {
                const int token = item % kTokens, k = item / kTokens;
                copy_async4(to.dx + item, x.d + select(of_stage, k) * x.d_stride + shared.input_rows[token]);
            }
        }
        if constexpr (Unit::kMinima) {
            if (thread < 2 * kTokens) {
                const int token = thread / 2;
                copy_async(to.sums + token * kSumsStride + thread % 2 * 4,
                           x.sums + shared.input_rows[token] * (x.columns / 16) + of_stage[0] * 16 + thread % 2 * 8);
            }
        }
        if constexpr (kCopied) {
#pragma unroll
            for (int i = 0; i < kRows * kQuads / kTileThreads; ++i) {
                const int row = (i * kTileThreads + thread) / kQuads;
                copy_async(to.weights + row * kStride + 16 * quad, row_of(row) + place);
            }
#pragma unroll
            for (int i = 0; i < kItems; ++i) {
                const int item = i * kTileThreads + thread;
                carried.d[i] = load_half(row_of(item % kRows) + x.columns + 2 * select(of_stage, item / kRows));
            }
        } else {
#pragma unroll
            for (int i = 0; i < kItems; ++i) {
                const int item = i * kTileThreads + thread;
                const int unit = select(of_stage, kSmallUnits ? item % kPieces : 0);
                carried.raw[i] = Unit::load(row_of(item / kPieces), x.columns, unit, item % kPieces % Unit::kShares);
            }
        }
    }

    /* Puts what came by registers into the stage. */
    DS4_DEVICE void land(Stage &to, const Carried &carried) const {
        const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
        for (int i = 0; i < kItems; ++i) {
            const int item = i * kTileThreads + thread;
            if constexpr (kCopied) {
                to.d[item] = half_to_float(carried.d[i]);
            } else {
                const int row = item / kPieces, piece = item % kPieces, share = piece % Unit::kShares;
                uint32_t  words[8];
                int       scale[2];
                Unit::expand(carried.raw[i], share, shared.tables, words, scale);
                std::byte *unit_start = to.weights + row * kStride + (kSmallUnits ? 32 * piece : 0);
#pragma unroll
                for (int k = 0; k < 8; k += 2) {
                    *reinterpret_cast<uint2 *>(unit_start + 4 * Unit::word_place(share, k)) =
                        make_uint2(words[k], words[k + 1]);
                }
                const UnitScale unit_scale = Unit::scale(carried.raw[i]);
                if constexpr (kSmallUnits) {
                    to.d[piece * kRows + row] = unit_scale.d;
                } else {
                    to.scales[piece * kRows + row] =
                        Unit::piece_scales(carried.raw[i], share) | Unit::piece_minima(carried.raw[i], share) << 16;
                    if (share == 0) {
                        to.d[row] = unit_scale.d;
                        to.dmin[row] = unit_scale.dmin;
                    }
                }
            }
        }
    }

    /* Sums of a group's elements, as multiply_bytes has them. */
    template <typename T> using Elements = T[kRowTiles][kTokenTiles][4];

    struct Place {
        int row;   /* of the group's first row and token in the tile */
        int token;
    };

    static DS4_DEVICE void load_piece(const Stage &from, Place place, int piece, RowFragment (&a)[kRowTiles],
                                      TokenFragment (&b)[kTokenTiles]) {
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
            load_fragment(a[m], from.weights + (place.row + 16 * m) * kStride + 32 * piece, kStride);
        }
#pragma unroll
        for (int n = 0; n < kTokenTiles; n += 2) {
            load_fragments(b[n], b[n + 1], from.inputs + (place.token + 8 * n) * kStride + 32 * piece, kStride);
        }
    }

    /* Of the lane's two rows in each row tile. */
    template <typename T> static DS4_DEVICE void load_rows(const T *from, Place place, T (&out)[kRowTiles][2]) {
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
            out[m][0] = from[place.row + 16 * m + lane() / 4];
            out[m][1] = from[place.row + 16 * m + 8 + lane() / 4];
        }
    }
    static DS4_DEVICE void load_tokens(const float *from, Place place, float (&out)[kTokenTiles][2]) {
#pragma unroll
        for (int n = 0; n < kTokenTiles; ++n) {
            const float2 two = *reinterpret_cast<const float2 *>(from + place.token + 8 * n + 2 * (lane() % 4));
            out[n][0] = two.x;
            out[n][1] = two.y;
        }
    }

    /* One unit of 32 values. */
    static DS4_DEVICE void add_small(const Stage &from, Place place, int k, Elements<float> &acc) {
        RowFragment   a[kRowTiles];
        TokenFragment b[kTokenTiles];
        float         d[kRowTiles][2], dx[kTokenTiles][2];
        load_piece(from, place, k, a, b);
        load_rows(from.d + k * kRows, place, d);
        load_tokens(from.dx + k * kTokens, place, dx);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
            for (int n = 0; n < kTokenTiles; ++n) {
                float total[4];
                float_products(total, a[m], b[n]);
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    acc[m][n][e] = accumulate<false>(acc[m][n][e], {d[m][e / 2], 0.0f}, dx[n][e % 2], total[e], 0.0f);
                }
            }
        }
    }

    /* One unit of 256 values. */
    static DS4_DEVICE void add_large(const Stage &from, Place place, Elements<float> &acc) {
        Elements<int> total = {};
        Elements<int> minima = {};
#pragma unroll 1
        for (int piece = 0; piece < kPieces; ++piece) {
            RowFragment   a[kRowTiles];
            TokenFragment b[kTokenTiles];
            uint32_t      scales[kRowTiles][2];
            load_piece(from, place, piece, a, b);
            load_rows(from.scales + piece * kRows, place, scales);
#pragma unroll
            for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
                for (int m = 0; m < kRowTiles; ++m) {
                    add_piece(total[m][n], a[m], b[n], scales[m]);
                }
                if constexpr (Unit::kMinima) {
                    const uint32_t *sums = from.sums + (place.token + 8 * n + 2 * (lane() % 4)) * kSumsStride + piece;
#pragma unroll
                    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
                        for (int e = 0; e < 4; ++e) {
                            minima[m][n][e] =
                                add_minima(scales[m][e / 2] >> 16, sums[e % 2 * kSumsStride], minima[m][n][e]);
                        }
                    }
                }
            }
        }
        float d[kRowTiles][2], dmin[kRowTiles][2], dx[kTokenTiles][2];
        load_rows(from.d, place, d);
        load_rows(from.dmin, place, dmin);
        load_tokens(from.dx, place, dx);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
            for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    acc[m][n][e] = accumulate<Unit::kMinima>(acc[m][n][e], {d[m][e / 2], dmin[m][e / 2]}, dx[n][e % 2],
                                                             static_cast<float>(total[m][n][e]),
                                                             static_cast<float>(minima[m][n][e]));
                }
            }
        }
    }

    static DS4_DEVICE void add_piece(int (&total)[4], const RowFragment &a, const TokenFragment &b,
                                     const uint32_t (&scales)[2]) {
        if constexpr (!Unit::kScales) {
            add_products<Range::all>(total, a, b);
        } else if constexpr (format == Format::q6_k) {
            /* 16 values have a scale of their own. */
            int low[4] = {}, high[4] = {};
            add_products<Range::first>(low, a, b);
            add_products<Range::second>(high, a, b);
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                total[e] += static_cast<int8_t>(scales[e / 2]) * low[e] + static_cast<int8_t>(scales[e / 2] >> 8) * high[e];
            }
        } else {
            int all[4] = {};
            add_products<Range::all>(all, a, b);
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                total[e] += static_cast<int>(scales[e / 2] & 255u) * all[e];
            }
        }
    }

    template <typename Store> DS4_DEVICE void walk(int count, Store store) {
        const Place     place = {group() / kTokenGroups * kRowTiles * 16, group() % kTokenGroups * kTokenTiles * 8};
        const bool      busy = place.token < count && first_row + place.row < weights.rows;
        const int       stage_count = (units + kUnits - 1) / kUnits;
        Elements<float> chain = {};
        Elements<float> sum = {};
        Walk            added, issued;

        const auto add = [&](const Stage &from, int index) {
#pragma unroll 1
            for (int k = 0; k < kUnits && index * kUnits + k < units; ++k) {
                if (busy) {
                    if constexpr (kSmallUnits) {
                        add_small(from, place, k, chain);
                    } else {
                        add_large(from, place, chain);
                    }
                }
                if (added.advance(units, kChains)) {
#pragma unroll
                    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
                        for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
                            for (int e = 0; e < 4; ++e) {
                                sum[m][n][e] += chain[m][n][e];
                                chain[m][n][e] = 0.0f;
                            }
                        }
                    }
                }
            }
        };

        Carried carried;
        if (stages == 1) {
            Stage &only = stage(0);
            for (int index = 0; index < stage_count; ++index) {
                sync_block();
                issue(only, issued, carried);
                copies_commit();
                land(only, carried);
                copies_wait<0>();
                sync_block();
                add(only, index);
            }
        } else {
            for (int index = 0; index < stages - 1; ++index) {
                if (index < stage_count) {
                    issue(stage(index), issued, carried);
                    land(stage(index), carried);
                }
                copies_commit();
            }
            int slot = 0, next_slot = stages - 1;
            for (int index = 0; index < stage_count; ++index) {
                if (stages == 3) {
                    copies_wait<1>();
                } else {
                    copies_wait<0>();
                }
                sync_block();
                const bool more = index + stages - 1 < stage_count;
                if (more) {
                    issue(stage(next_slot), issued, carried);
                }
                copies_commit();
                add(stage(slot), index);
                if (more) {
                    land(stage(next_slot), carried);
                }
                slot = slot_after(slot);
                next_slot = slot_after(next_slot);
            }
        }

        if (!busy) {
            return;
        }
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
            for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int64_t row = first_row + place.row + 16 * m + 8 * (e / 2) + lane() / 4;
                    const int     token = place.token + 8 * n + 2 * (lane() % 4) + e % 2;
                    if (row < weights.rows && token < count) {
                        store(row, token, sum[m][n][e]);
                    }
                }
            }
        }
    }
};

} // namespace ds4::backend::gpu
