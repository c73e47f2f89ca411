/* Weights as float32, format by format: values 32 piece .. + 31 of a row. Included by units.h. The multiplications are in
 * the order of native/quant, so that the numbers are the same. */
#pragma once

#include "backend/gpu/units.h"

namespace ds4::backend::gpu {

/* The bytes of `count` values of F32, F16 or BF16 that lie one after another, a multiple of 16 bytes; a row may have any
 * number of values and start anywhere. Two values to a word, or one. */
template <Format format, int count = 32> struct PlainFloats {
    static constexpr int kValuesPerWord = format == Format::f32 ? 1 : 2;
    uint32_t             words[count / kValuesPerWord];

    DS4_DEVICE float value(int i) const {
        if constexpr (format == Format::f32) {
            return bits_as<float>(words[i]);
        } else if constexpr (format == Format::f16) {
            return half_to_float(static_cast<uint16_t>(words[i / 2] >> (16 * (i % 2))));
        } else {
            return bits_as<float>(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000u);
        }
    }
};

/* Values count * piece .. + count - 1 of a row; 0 beyond its end. */
template <Format format, int count = 32>
DS4_DEVICE PlainFloats<format, count> load_plain(const std::byte *row, int64_t columns, int64_t piece) {
    constexpr int              kBytes = format == Format::f32 ? 4 : 2;
    const std::byte           *from = row + count * kBytes * piece;
    PlainFloats<format, count> raw;
    if (count * piece + count <= columns && (reinterpret_cast<uintptr_t>(from) & 15u) == 0) {
        load_quads(from, raw.words);
        return raw;
    }
    const auto end = static_cast<int>(columns - count * piece);
#pragma unroll
    for (int i = 0; i < count; i += raw.kValuesPerWord) {
        if constexpr (format == Format::f32) {
            raw.words[i] = i < end ? load_once(reinterpret_cast<const uint32_t *>(from) + i) : 0u;
        } else {
            const uint32_t low = i < end ? load_half(from + 2 * i) : 0u;
            const uint32_t high = i + 1 < end ? load_half(from + 2 * i + 2) : 0u;
            raw.words[i / 2] = low | high << 16;
        }
    }
    return raw;
}

template <Format format> DS4_DEVICE void floats(const std::byte *row, int64_t columns, int64_t piece, float (&out)[32]) {
    const int64_t unit = piece / 8;
    const int     part = static_cast<int>(piece % 8);
    if constexpr (format == Format::f32 || format == Format::f16 || format == Format::bf16) {
        const PlainFloats<format> raw = load_plain<format>(row, columns, piece);
#pragma unroll
        for (int i = 0; i < 32; ++i) {
            out[i] = raw.value(i);
        }
    } else if constexpr (format == Format::q8_0 || format == Format::q8_0_arranged) {
        const auto  raw = Bytes<format>::load(row, columns, piece, 0);
        const float d = half_to_float(raw.d);
#pragma unroll
        for (int i = 0; i < 32; ++i) {
            out[i] = d * static_cast<float>(static_cast<int8_t>(raw.q[i / 4] >> (8 * (i % 4))));
        }
    } else if constexpr (format == Format::mxfp4) {
        const auto  raw = Bytes<format>::load(row, columns, piece, 0);
        const float scale = mxfp4_scale(raw.exponent);
        uint32_t    words[8];
        int         none[2];
        Bytes<format>::expand(raw, 0, {}, words, none);
#pragma unroll
        for (int i = 0; i < 32; ++i) {
            out[i] = static_cast<float>(static_cast<int8_t>(words[i / 4] >> (8 * (i % 4)))) * scale;
        }
    } else if constexpr (format == Format::q2_k) {
        const auto *block = reinterpret_cast<const quant::BlockQ2K *>(row) + unit;
        const float d = half_to_float(block->d), dmin = half_to_float(block->dmin);
#pragma unroll
        for (int i = 0; i < 32; ++i) {
            const int   packed = block->scales[2 * part + i / 16];
            const float scale = d * static_cast<float>(packed & 15);
            const float min = dmin * static_cast<float>(packed >> 4);
            out[i] = scale * static_cast<float>(block->q[32 * (part / 4) + i] >> (2 * (part % 4)) & 3) - min;
        }
    } else if constexpr (format == Format::q4_k || format == Format::q5_k) {
        constexpr int64_t kBytes = format == Format::q4_k ? sizeof(quant::BlockQ4K) : sizeof(quant::BlockQ5K);
        const std::byte  *block = row + kBytes * unit;
        uint32_t          head[4];
        load_quad(block, head);
        const UnitScale unit_scale = BytesQ45K::scale_of(head);
        const float     scale = unit_scale.d * static_cast<float>(BytesQ45K::scales_of(head, part) & 255u);
        const float     min = unit_scale.dmin * static_cast<float>(BytesQ45K::minima_of(head, part) & 255u);
        const std::byte *q = block + (format == Format::q4_k ? 16 : 48) + 32 * (part / 2);
#pragma unroll
        for (int i = 0; i < 32; ++i) {
            int value = byte_of(q + i) >> (4 * (part % 2)) & 15;
            if constexpr (format == Format::q5_k) {
                value += (byte_of(block + 16 + i) >> part & 1) * 16;
            }
            out[i] = scale * static_cast<float>(value) - min;
        }
    } else if constexpr (format == Format::q6_k) {
        const auto *block = reinterpret_cast<const quant::BlockQ6K *>(row) + unit;
        const float d = half_to_float(block->d);
        const int   half = part / 4, quarter = part % 4;
#pragma unroll
        for (int i = 0; i < 32; ++i) {
            const int   low = block->low[64 * half + 32 * (quarter % 2) + i] >> (4 * (quarter / 2)) & 15;
            const int   high = block->high[32 * half + i] >> (2 * quarter) & 3;
            const float scale = d * static_cast<float>(block->scales[2 * part + i / 16]);
            out[i] = scale * static_cast<float>((low | high << 4) - 32);
        }
    } else {
        /* Without tables in shared memory: this arithmetic is for comparison, not for speed. */
        const auto     raw = Bytes<format>::load(row, columns, unit, part);
        const float    d = half_to_float(raw.d);
        const uint32_t indices = raw.q[0], signs = raw.q[1];
        const float    scale = d * (0.5f + static_cast<float>(signs >> 28)) * 0.25f;
        for (int eight = 0; eight < 4; ++eight) {
            const uint32_t codes = kIq2Codes.code[indices >> (8 * eight) & 255u];
            uint32_t       sign = signs >> (7 * eight) & 127u;
            uint32_t       parity = sign ^ sign >> 4;
            parity ^= parity >> 2;
            parity ^= parity >> 1;
            sign |= (parity & 1u) << 7;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const uint32_t code = codes >> (2 * i) & 3u;
                const float    magnitude = code == 0 ? 8.0f : code == 1 ? 25.0f : 43.0f;
                out[8 * eight + i] = scale * magnitude * ((sign >> i & 1u) != 0 ? -1.0f : 1.0f);
            }
        }
    }
}

} // namespace ds4::backend::gpu
