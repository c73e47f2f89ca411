/* Weights as signed bytes, format by format. Included by units.h, which says what the names mean. */
#pragma once

#include "backend/gpu/units.h"
#include "quant/mxfp4.h"

namespace ds4::backend::gpu {

template <Format format> struct Bytes;

/* 2^(exponent - 128), a subnormal for the two smallest exponents. */
DS4_DEVICE float mxfp4_scale(uint32_t exponent) {
    return bits_as<float>(exponent < 2 ? 0x00200000u << exponent : (exponent - 1u) << 23);
}

template <> struct Bytes<Format::q8_0_arranged> {
    static constexpr int  kShares = 1, kRun = 8;
    static constexpr bool kScales = false, kMinima = false;
    using Tables = NoTables;
    struct Raw {
        uint32_t q[8];
        uint16_t d;
    };
    static DS4_DEVICE Raw load(const std::byte *row, int64_t columns, int64_t unit, int) {
        Raw raw;
        load_quads(row + 32 * unit, raw.q);
        raw.d = load_half(row + columns + 2 * unit);
        return raw;
    }
    static DS4_DEVICE void expand(const Raw &raw, int, const Tables &, uint32_t (&words)[8], int (&)[2]) {
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            words[k] = raw.q[k];
        }
    }
    static DS4_BOTH int word_place(int, int k) { return k; }
    static DS4_DEVICE uint32_t  piece_scales(const Raw &, int) { return 0x0101u; }
    static DS4_DEVICE uint32_t  piece_minima(const Raw &, int) { return 0; }
    static DS4_DEVICE UnitScale scale(const Raw &raw) { return {half_to_float(raw.d), 0.0f}; }
};

template <> struct Bytes<Format::q8_0> : Bytes<Format::q8_0_arranged> {
    static DS4_DEVICE Raw load(const std::byte *row, int64_t, int64_t unit, int) {
        const std::byte *block = row + static_cast<int64_t>(sizeof(quant::BlockQ8_0)) * unit;
        Raw              raw;
        load_words(block + 2, raw.q);
        raw.d = load_half(block);
        return raw;
    }
};

/* The doubled values of eight 4-bit codes: of the low nibbles of the four bytes, and of the high ones. */
DS4_DEVICE void mxfp4_values(uint32_t codes, uint32_t &low, uint32_t &high) {
    uint32_t pairs[2]; /* in the order of the nibbles */
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const uint32_t nibbles = codes >> (16 * i) & 0xffffu;
        const uint32_t magnitude = nibbles & 0x7777u;
        const uint32_t positive = pick_bytes(0x03020100u, 0x0c080604u, magnitude);
        const uint32_t negative = pick_bytes(0xfdfeff00u, 0xf4f8fafcu, magnitude);
        pairs[i] = pick_bytes(positive, negative, 0x3210u | (nibbles & 0x8888u) >> 1);
    }
    low = pick_bytes(pairs[0], pairs[1], 0x6420u);
    high = pick_bytes(pairs[0], pairs[1], 0x7531u);
}

template <> struct Bytes<Format::mxfp4> {
    static constexpr int  kShares = 1, kRun = 8;
    static constexpr bool kScales = false, kMinima = false;
    using Tables = NoTables;
    struct Raw {
        uint32_t q[4];
        uint8_t  exponent;
    };
    static DS4_DEVICE Raw load(const std::byte *row, int64_t, int64_t unit, int) {
        const std::byte *block = row + static_cast<int64_t>(sizeof(quant::BlockMxfp4)) * unit;
        Raw              raw;
        load_words(block + 1, raw.q);
        raw.exponent = load_once(reinterpret_cast<const uint8_t *>(block));
        return raw;
    }
    static DS4_DEVICE void expand(const Raw &raw, int, const Tables &, uint32_t (&words)[8], int (&)[2]) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            mxfp4_values(raw.q[k], words[k], words[k + 4]);
        }
    }
    static DS4_BOTH int word_place(int, int k) { return k; }
    static DS4_DEVICE uint32_t  piece_scales(const Raw &, int) { return 0x0101u; }
    static DS4_DEVICE uint32_t  piece_minima(const Raw &, int) { return 0; }
    static DS4_DEVICE UnitScale scale(const Raw &raw) { return {mxfp4_scale(raw.exponent), 0.0f}; }
};

/* The small scales (0 to 15) are multiplied into the values (0 to 3): 45 still fits a byte. A share has the same 8 bytes of
 * the block for each of four pieces: a byte holds values of four pieces. */
template <> struct Bytes<Format::q2_k> {
    static constexpr int  kShares = 8, kRun = 2;
    static constexpr bool kScales = false, kMinima = true;
    using Tables = NoTables;
    struct Raw {
        uint32_t q[2];
        uint32_t scales[2]; /* of the share's half of the block */
        uint32_t d;
    };
    static DS4_DEVICE Raw load(const std::byte *row, int64_t, int64_t unit, int share) {
        const auto *words = reinterpret_cast<const uint32_t *>(row + static_cast<int64_t>(sizeof(quant::BlockQ2K)) * unit);
        Raw         raw;
        raw.q[0] = load_once(words + 4 + 2 * share);
        raw.q[1] = load_once(words + 5 + 2 * share);
        raw.scales[0] = load_once(words + share / 4 * 2);
        raw.scales[1] = load_once(words + share / 4 * 2 + 1);
        raw.d = load_once(words + 20);
        return raw;
    }
    static DS4_DEVICE void expand(const Raw &raw, int share, const Tables &, uint32_t (&words)[8], int (&scale)[2]) {
        /* Bytes 0, 2, 4, 6 of the half's scales for the first 16 bytes of q, bytes 1, 3, 5, 7 for the rest. */
        const uint32_t odd = static_cast<uint32_t>(share % 4 / 2);
        const uint32_t scales = pick_bytes(raw.scales[0], raw.scales[1], 0x6420u + 0x1111u * odd);
#pragma unroll
        for (int piece = 0; piece < 4; ++piece) {
            const uint32_t small = scales >> (8 * piece) & 15u;
            words[2 * piece] = (raw.q[0] >> (2 * piece) & 0x03030303u) * small;
            words[2 * piece + 1] = (raw.q[1] >> (2 * piece) & 0x03030303u) * small;
        }
        scale[0] = scale[1] = 1;
    }
    static DS4_BOTH int word_place(int share, int k) {
        return 32 * (share / 4) + 8 * (k / 2) + 2 * (share % 4) + k % 2;
    }
    static DS4_DEVICE uint32_t piece_scales(const Raw &, int) { return 0x0101u; }
    static DS4_DEVICE uint32_t piece_minima(const Raw &raw, int share) {
        const uint32_t word = (share % 4 < 2 ? raw.scales[0] : raw.scales[1]) >> (16 * (share % 2));
        return word >> 4 & 0x0f0fu;
    }
    static DS4_DEVICE UnitScale scale(const Raw &raw) {
        return {half_to_float(static_cast<uint16_t>(raw.d)), half_to_float(static_cast<uint16_t>(raw.d >> 16))};
    }
};

/* The eight scales and minima of a Q4_K or Q5_K block, a byte each; `head` is the block's first 16 bytes. */
struct KScales {
    uint2 scales;
    uint2 minima;
};
/* An index would move the words from registers to memory. */
DS4_DEVICE uint32_t word_of(uint2 words, int index) { return index == 0 ? words.x : words.y; }
DS4_DEVICE KScales unpack_k_scales(const uint32_t (&head)[4]) {
    return {{head[1] & 0x3f3f3f3fu, (head[3] & 0x0f0f0f0fu) | (head[1] >> 2 & 0x30303030u)},
            {head[2] & 0x3f3f3f3fu, (head[3] >> 4 & 0x0f0f0f0fu) | (head[2] >> 2 & 0x30303030u)}};
}

/* What Q4_K and Q5_K have in common. A share has 16 bytes of the block: the low nibbles are of one piece, the high ones of
 * the next. */
struct BytesQ45K {
    static constexpr int  kShares = 8, kRun = 4;
    static constexpr bool kScales = true, kMinima = true;
    using Tables = NoTables;
    static DS4_BOTH int word_place(int share, int k) {
        return 16 * (share / 2) + 4 * (share % 2) + 8 * (k / 4) + k % 4;
    }
    static DS4_DEVICE void share_scales(const uint32_t (&head)[4], int share, int (&scale)[2]) {
        const KScales  all = unpack_k_scales(head);
        const uint32_t pair = word_of(all.scales, share / 4) >> (16 * (share % 4 / 2));
        scale[0] = static_cast<int>(pair & 255u);
        scale[1] = static_cast<int>(pair >> 8 & 255u);
    }
    static DS4_DEVICE uint32_t scales_of(const uint32_t (&head)[4], int share) {
        return (word_of(unpack_k_scales(head).scales, share / 4) >> (8 * (share % 4)) & 255u) * 0x0101u;
    }
    static DS4_DEVICE uint32_t minima_of(const uint32_t (&head)[4], int share) {
        return (word_of(unpack_k_scales(head).minima, share / 4) >> (8 * (share % 4)) & 255u) * 0x0101u;
    }
    static DS4_DEVICE UnitScale scale_of(const uint32_t (&head)[4]) {
        return {half_to_float(static_cast<uint16_t>(head[0])), half_to_float(static_cast<uint16_t>(head[0] >> 16))};
    }
};

template <> struct Bytes<Format::q4_k> : BytesQ45K {
    struct Raw {
        uint32_t head[4];
        uint32_t q[4];
    };
    static DS4_DEVICE Raw load(const std::byte *row, int64_t, int64_t unit, int share) {
        const std::byte *block = row + static_cast<int64_t>(sizeof(quant::BlockQ4K)) * unit;
        Raw              raw;
        load_quad(block, raw.head);
        load_quad(block + 16 + 16 * share, raw.q);
        return raw;
    }
    static DS4_DEVICE void expand(const Raw &raw, int share, const Tables &, uint32_t (&words)[8], int (&scale)[2]) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            words[k] = raw.q[k] & 0x0f0f0f0fu;
            words[k + 4] = raw.q[k] >> 4 & 0x0f0f0f0fu;
        }
        share_scales(raw.head, share, scale);
    }
    static DS4_DEVICE uint32_t  piece_scales(const Raw &raw, int share) { return scales_of(raw.head, share); }
    static DS4_DEVICE uint32_t  piece_minima(const Raw &raw, int share) { return minima_of(raw.head, share); }
    static DS4_DEVICE UnitScale scale(const Raw &raw) { return scale_of(raw.head); }
};

template <> struct Bytes<Format::q5_k> : BytesQ45K {
    struct Raw {
        uint32_t head[4];
        uint32_t high[4];
        uint32_t q[4];
    };
    static DS4_DEVICE Raw load(const std::byte *row, int64_t, int64_t unit, int share) {
        const std::byte *block = row + static_cast<int64_t>(sizeof(quant::BlockQ5K)) * unit;
        Raw              raw;
        load_quad(block, raw.head);
        load_quad(block + 16 + 16 * (share % 2), raw.high);
        load_quad(block + 48 + 16 * share, raw.q);
        return raw;
    }
    static DS4_DEVICE void expand(const Raw &raw, int share, const Tables &, uint32_t (&words)[8], int (&scale)[2]) {
        const int piece = share / 2 * 2;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            words[k] = (raw.q[k] & 0x0f0f0f0fu) | (raw.high[k] >> piece & 0x01010101u) << 4;
            words[k + 4] = (raw.q[k] >> 4 & 0x0f0f0f0fu) | (raw.high[k] >> (piece + 1) & 0x01010101u) << 4;
        }
        share_scales(raw.head, share, scale);
    }
    static DS4_DEVICE uint32_t  piece_scales(const Raw &raw, int share) { return scales_of(raw.head, share); }
    static DS4_DEVICE uint32_t  piece_minima(const Raw &raw, int share) { return minima_of(raw.head, share); }
    static DS4_DEVICE UnitScale scale(const Raw &raw) { return scale_of(raw.head); }
};

/* A share has 16 bytes of `low`: their low nibbles are 16 values of one piece, the high ones 16 of the piece after the next. */
template <> struct Bytes<Format::q6_k> {
    static constexpr int  kShares = 8, kRun = 4;
    static constexpr bool kScales = true, kMinima = false;
    using Tables = NoTables;
    struct Raw {
        uint32_t low[4];
        uint32_t high[4];
        int8_t   scales[2]; /* of the share */
        uint16_t piece;     /* scales of the piece */
        uint16_t d;
    };
    static DS4_DEVICE Raw load(const std::byte *row, int64_t, int64_t unit, int share) {
        const std::byte *block = row + static_cast<int64_t>(sizeof(quant::BlockQ6K)) * unit;
        const int        half = share / 4, part = share % 4;
        Raw              raw;
        load_words(block + 16 * share, raw.low);
        load_words(block + 128 + 32 * half + 16 * (part % 2), raw.high);
        const auto *scales = reinterpret_cast<const int8_t *>(block + 192 + 8 * half + 2 * (part / 2) + part % 2);
        raw.scales[0] = scales[0];
        raw.scales[1] = scales[4];
        raw.piece = load_half(block + 192 + 2 * share);
        raw.d = load_half(block + 208);
        return raw;
    }
    static DS4_DEVICE uint32_t centred(uint32_t low, uint32_t high) { /* (low + 16 high) - 32 in each byte */
        return (((low | high << 4) | 0x80808080u) - 0x20202020u) ^ 0x80808080u;
    }
    static DS4_DEVICE void expand(const Raw &raw, int share, const Tables &, uint32_t (&words)[8], int (&scale)[2]) {
        const int shift = share % 4 / 2 * 2;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            words[k] = centred(raw.low[k] & 0x0f0f0f0fu, raw.high[k] >> shift & 0x03030303u);
            words[k + 4] = centred(raw.low[k] >> 4 & 0x0f0f0f0fu, raw.high[k] >> (shift + 4) & 0x03030303u);
        }
        scale[0] = raw.scales[0];
        scale[1] = raw.scales[1];
    }
    static DS4_BOTH int word_place(int share, int k) {
        return 32 * (share / 4) + 8 * (share % 4 / 2) + 4 * (share % 2) + 16 * (k / 4) + k % 4;
    }
    static DS4_DEVICE uint32_t  piece_scales(const Raw &raw, int) { return raw.piece; }
    static DS4_DEVICE uint32_t  piece_minima(const Raw &, int) { return 0; }
    static DS4_DEVICE UnitScale scale(const Raw &raw) { return {half_to_float(raw.d), 0.0f}; }
};

/* A share is a piece: four grid indices, four sign indices and a scale that counts in eighths, 2 n + 1 of them. */
template <> struct Bytes<Format::iq2_xxs> {
    static constexpr int  kShares = 8, kRun = 8;
    static constexpr bool kScales = true, kMinima = false;
    using Tables = Iq2Tables;
    struct Raw {
        uint32_t q[2]; /* indices, signs */
        uint16_t d;
    };
    static DS4_DEVICE Raw load(const std::byte *row, int64_t, int64_t unit, int share) {
        const std::byte *block = row + static_cast<int64_t>(sizeof(quant::BlockIq2Xxs)) * unit;
        Raw              raw;
        load_words(block + 2 + 8 * share, raw.q);
        raw.d = load_half(block);
        return raw;
    }
    /* The same share of the units `unit`, `unit` + 4, ..., without working out each address: four units are whole words. */
    template <int count, typename Keep>
    static DS4_DEVICE void load_every_fourth(const std::byte *row, int64_t unit, int share, Keep keep) {
        static_assert(4 * sizeof(quant::BlockIq2Xxs) % sizeof(uint32_t) == 0);
        constexpr int    kStep = 4 * sizeof(quant::BlockIq2Xxs);
        const std::byte *block = row + static_cast<int64_t>(sizeof(quant::BlockIq2Xxs)) * unit;
        const AlignedWords<2> words(block + 2 + 8 * share);
#pragma unroll
        for (int i = 0; i < count; ++i) {
            Raw raw;
            words.load(i * kStep, raw.q);
            raw.d = load_half(block + i * kStep);
            keep(i, raw);
        }
    }
    static DS4_DEVICE int small_scale(const Raw &raw) { return static_cast<int>(raw.q[1] >> 28) * 2 + 1; }
    template <int part, int copies>
    static DS4_DEVICE void expand_part(const Raw &raw, const Iq2TablesOf<copies> &tables, uint32_t (&words)[8]) {
        using Codes = Iq2TablesOf<copies>;
        const uint32_t selector = Codes::template entry<8 * part, 256>(tables.grid, raw.q[0]) |
                                  Codes::template entry<7 * part, 128>(tables.sign, raw.q[1]);
        words[2 * part] = pick_bytes(0x002b1908u, 0x00d5e7f8u, selector);
        words[2 * part + 1] = pick_bytes(0x002b1908u, 0x00d5e7f8u, selector >> 16);
    }
    template <int copies>
    static DS4_DEVICE void expand(const Raw &raw, int, const Iq2TablesOf<copies> &tables, uint32_t (&words)[8],
                                  int (&scale)[2]) {
        expand_part<0>(raw, tables, words);
        expand_part<1>(raw, tables, words);
        expand_part<2>(raw, tables, words);
        expand_part<3>(raw, tables, words);
        scale[0] = scale[1] = small_scale(raw);
    }
    static DS4_BOTH int word_place(int share, int k) { return 8 * share + k; }
    static DS4_DEVICE uint32_t  piece_scales(const Raw &raw, int) { return static_cast<uint32_t>(small_scale(raw)) * 0x0101u; }
    static DS4_DEVICE uint32_t  piece_minima(const Raw &, int) { return 0; }
    static DS4_DEVICE UnitScale scale(const Raw &raw) { return {0.125f * half_to_float(raw.d), 0.0f}; }
};

} // namespace ds4::backend::gpu
