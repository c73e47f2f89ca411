/* Weights as the product kernels see them: one set of inline functions per format, for one token and for many alike, so
 * that both compute the same bits.
 *
 * A row is cut into units; a unit has one float scale (and, for some formats, a scale of minima):
 *   32 values:  f32, f16, bf16, q8_0, mxfp4, and every format when weights are expanded to float32
 *   256 values: q2_k, q4_k, q5_k, q6_k, iq2_xxs
 * A row's sum has one order, whichever kernel forms it. There are C chains, 32 for units of 32 values and 4 for units of
 * 256: chain c adds units c, c + C, c + 2 C, ... in that order, starting from 0. The result is 0 + chain 0 + chain 1 + ...
 * from left to right; a chain without units may be added or left out. A float unit is added by fmaf over its values in
 * order (values beyond the row's end may be left out or be 0 times 0); a unit of bytes by accumulate(), from the exact
 * integer sums of its products.
 *
 * Bytes<format>: weights as signed bytes, to be multiplied with activations in 8 bits. The work of a unit is cut into
 * kShares shares of 32 values each (8 for 256 values), one for a lane:
 *   Raw load(row, columns, unit, share)      reads; all loads of a share are independent of each other
 *   expand(raw, share, tables, words, scale) the share's 32 values as 8 words of 4 signed bytes. Words 0..3 are to be
 *                                            multiplied with scale[0], words 4..7 with scale[1]; with !kScales both are 1
 *   word_place(share, k)                     which of the unit's words (of 4 activations) meets word k of the share
 *   piece_scales(raw, share)                 the integer scales of *piece* `share`: values 32 share .. + 31 of the unit, in
 *                                            order: byte 0 for the first 16, byte 1 for the other 16, signed
 *   piece_minima(raw, share)                 with kMinima, the same for the minima that meet the sums of 16 activations
 *   scale(raw)                               the unit's float scales
 * So a decode lane takes a share, and adds its integers to those of the unit's other lanes; a tile writes the shares' words
 * to their places, which restores the order of the values, and applies the scales piece by piece.
 *
 * floats<format>(row, columns, piece, out): values 32 piece .. + 31 of a row as float32, with the multiplications in the
 * order of native/quant; 0 beyond the row's end. */
#pragma once

#include <bit>
#include <cstdint>

#include "backend/gpu/gpu.h"
#include "backend/ops.h"
#include "quant/blocks.h"
#include "quant/iq2_xxs_codes.h"

namespace ds4::backend::gpu {

#if defined(DS4_EMULATED)
#define DS4_BOTH constexpr
#else
#define DS4_BOTH constexpr __host__ __device__
#endif

/* A weight type together with how its rows lie. */
enum class Format : uint8_t { f32, f16, bf16, q8_0, q8_0_arranged, mxfp4, q2_k, q4_k, q5_k, q6_k, iq2_xxs };

inline Format format_of(quant::Type type, RowLayout layout = RowLayout::file) {
    switch (type) {
    case quant::Type::f16: return Format::f16;
    case quant::Type::bf16: return Format::bf16;
    case quant::Type::q8_0: return layout == RowLayout::arranged ? Format::q8_0_arranged : Format::q8_0;
    case quant::Type::mxfp4: return Format::mxfp4;
    case quant::Type::q2_k: return Format::q2_k;
    case quant::Type::q4_k: return Format::q4_k;
    case quant::Type::q5_k: return Format::q5_k;
    case quant::Type::q6_k: return Format::q6_k;
    case quant::Type::iq2_xxs: return Format::iq2_xxs;
    default: return Format::f32;
    }
}

/* What the activations of a product are: float32, or 8 bits with a scale per 32 or per 256 values. */
enum class Inputs : uint8_t { floats, bytes_32, bytes_256 };

DS4_BOTH Inputs inputs_of(Format format, bool exact) {
    if (exact || format == Format::f32 || format == Format::f16 || format == Format::bf16) {
        return Inputs::floats;
    }
    return format == Format::q8_0 || format == Format::q8_0_arranged || format == Format::mxfp4 ? Inputs::bytes_32
                                                                                                : Inputs::bytes_256;
}

DS4_BOTH int unit_values(Inputs inputs) { return inputs == Inputs::bytes_256 ? 256 : 32; }
DS4_BOTH int chains(Inputs inputs) { return inputs == Inputs::bytes_256 ? 4 : 32; }

/* ---- bytes in words ------------------------------------------------------------------------------ */

/* The low word of high:low >> shift, of which the low five bits count. */
DS4_DEVICE uint32_t funnel_right(uint32_t low, uint32_t high, uint32_t shift) {
#if defined(__CUDA_ARCH__)
    return __funnelshift_r(low, high, shift);
#else
    return static_cast<uint32_t>((static_cast<uint64_t>(high) << 32 | low) >> (shift & 31u));
#endif
}

/* Four bytes out of the eight of high:low; each of the selector's four low nibbles is 0..7, its other bits are ignored. */
DS4_DEVICE uint32_t pick_bytes(uint32_t low, uint32_t high, uint32_t selector) {
#if defined(__CUDA_ARCH__)
    uint32_t out; /* the intrinsic clears bits of the selector first */
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(low), "r"(high), "r"(selector));
    return out;
#elif defined(__HIP_DEVICE_COMPILE__)
    uint32_t spread = (selector & 0xffffu) | (selector & 0xff00u) << 8;
    spread &= 0x00ff00ffu;
    spread = (spread | spread << 4) & 0x0f0f0f0fu;
    return __builtin_amdgcn_perm(high, low, spread);
#else
    const uint64_t all = static_cast<uint64_t>(high) << 32 | low;
    uint32_t       out = 0;
    for (int i = 0; i < 4; ++i) {
        out |= static_cast<uint32_t>(all >> (8 * (selector >> (4 * i) & 7u)) & 255u) << (8 * i);
    }
    return out;
#endif
}

/* `count` words from any address. Reads whole aligned words, so up to 3 bytes in front of and behind the range, never
 * beyond a word that holds a byte of it. */
template <int count> class AlignedWords {
    const std::byte *first_;
#if !defined(DS4_EMULATED)
    const std::byte *last_; /* the word behind the others or, where there is nothing in it, the last of them */
    uint32_t         shift_;
#endif

public:
#if defined(DS4_EMULATED)
    DS4_DEVICE explicit AlignedWords(const std::byte *from) : first_(from) {}
    DS4_DEVICE void load(int offset, uint32_t (&out)[count]) const { __builtin_memcpy(out, first_ + offset, sizeof out); }
#else
    DS4_DEVICE explicit AlignedWords(const std::byte *from) {
        const auto     address = reinterpret_cast<uintptr_t>(from);
        const uint32_t beside = static_cast<uint32_t>(address) & 3u;
        first_ = from - beside;
        last_ = first_ + 4 * (beside != 0 ? count : count - 1);
        shift_ = 8 * beside;
    }
    /* `offset` bytes behind: a multiple of 4. */
    DS4_DEVICE void load(int offset, uint32_t (&out)[count]) const {
        uint32_t raw[count + 1];
#pragma unroll
        for (int i = 0; i < count; ++i) {
            raw[i] = load_once(reinterpret_cast<const uint32_t *>(first_ + offset + 4 * i));
        }
        raw[count] = load_once(reinterpret_cast<const uint32_t *>(last_ + offset));
#pragma unroll
        for (int i = 0; i < count; ++i) {
            out[i] = funnel_right(raw[i], raw[i + 1], shift_);
        }
    }
#endif
};
template <int count> DS4_DEVICE void load_words(const std::byte *from, uint32_t (&out)[count]) {
    AlignedWords<count>(from).load(0, out);
}

/* From an address that is a multiple of 16. */
template <int count> DS4_DEVICE void load_quads(const std::byte *from, uint32_t (&out)[count]) {
    static_assert(count % 4 == 0);
#pragma unroll
    for (int i = 0; i < count; i += 4) {
        const uint4 quad = load_once(reinterpret_cast<const uint4 *>(from) + i / 4);
        out[i] = quad.x;
        out[i + 1] = quad.y;
        out[i + 2] = quad.z;
        out[i + 3] = quad.w;
    }
}

/* From an address that is a multiple of 4. Four-byte loads, because a file only promises that much for a row that is no
 * multiple of 16 bytes, and an aligned 16 only where the whole file is aligned so. */
DS4_DEVICE void load_quad(const std::byte *from, uint32_t *out) {
    if ((reinterpret_cast<uintptr_t>(from) & 15u) == 0) {
        const uint4 quad = load_once(reinterpret_cast<const uint4 *>(from));
        out[0] = quad.x;
        out[1] = quad.y;
        out[2] = quad.z;
        out[3] = quad.w;
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            out[i] = load_once(reinterpret_cast<const uint32_t *>(from) + i);
        }
    }
}

DS4_DEVICE uint16_t load_half(const std::byte *from) { return load_once(reinterpret_cast<const uint16_t *>(from)); }
DS4_DEVICE uint8_t  byte_of(const std::byte *from) { return static_cast<uint8_t>(*from); }

/* ---- the codebook of IQ2_XXS ---------------------------------------------------------------------- */

/* As pick_bytes wants it, a nibble per value: the code in the low two bits, the sign in the third, so that one word
 * selects eight values from {8, 25, 43, -, -8, -25, -43, -}. In shared memory, in several copies: lanes read at random,
 * and neighbours would wait for each other at the same banks. Word `entry * kCopies + lane % kCopies`. */
template <int copies> struct Iq2TablesOf {
    static constexpr int kCopies = copies;
    static constexpr int kShift = std::countr_zero(4u * copies); /* of an entry's number to its offset in bytes */
    uint32_t grid[256 * copies];
    uint32_t sign[128 * copies];

    /* The entry with the number in bits `bit` and higher of `codes`. A mask takes the place of cutting it out and
     * multiplying: this happens for every eight weights. */
    template <int bit, int entries> static DS4_DEVICE uint32_t entry(const uint32_t (&table)[entries * copies], uint32_t codes) {
        constexpr uint32_t kMask = (entries - 1u) << kShift;
        const uint32_t     number = (bit < kShift ? codes << (kShift - bit) : codes >> (bit - kShift)) & kMask;
        const uint32_t     offset = number | static_cast<uint32_t>(lane() % copies) * 4u;
        return *reinterpret_cast<const uint32_t *>(reinterpret_cast<const std::byte *>(table) + offset);
    }
};
using Iq2Tables = Iq2TablesOf<8>;

#if defined(DS4_EMULATED)
constexpr quant::Iq2XxsCodes kIq2Codes = quant::iq2_xxs_codes();
#else
static __device__ const quant::Iq2XxsCodes kIq2Codes = quant::iq2_xxs_codes();
#endif

/* Bit i of 8 to bit 4 i. */
DS4_DEVICE uint32_t spread_bits(uint32_t bits) {
    bits = (bits | bits << 12) & 0x000f000fu;
    bits = (bits | bits << 6) & 0x03030303u;
    return (bits | bits << 3) & 0x11111111u;
}
/* Two bits i of 16 to bits 4 i. */
DS4_DEVICE uint32_t spread_pairs(uint32_t bits) {
    bits = (bits | bits << 8) & 0x00ff00ffu;
    bits = (bits | bits << 4) & 0x0f0f0f0fu;
    return (bits | bits << 2) & 0x33333333u;
}

/* By all threads of a block, before a sync_block. */
template <int copies> DS4_DEVICE void fill_tables(Iq2TablesOf<copies> &tables) {
    for (int i = static_cast<int>(threadIdx.x); i < 256 * copies; i += static_cast<int>(blockDim.x)) {
        tables.grid[i] = spread_pairs(kIq2Codes.code[i / copies]);
    }
    for (int i = static_cast<int>(threadIdx.x); i < 128 * copies; i += static_cast<int>(blockDim.x)) {
        const auto index = static_cast<uint32_t>(i / copies);
        uint32_t   parity = index ^ index >> 4;
        parity ^= parity >> 2;
        parity ^= parity >> 1;
        tables.sign[i] = spread_bits(index | (parity & 1u) << 7) << 2;
    }
}

/* What a format needs in shared memory. */
struct NoTables {};
DS4_DEVICE void fill_tables(NoTables &) {}

/* ---- the one formula of each unit ------------------------------------------------------------------ */

struct UnitScale {
    float d;
    float dmin;
};

/* acc + d * dx * total (- dmin * dx * minima) */
template <bool has_minima>
DS4_DEVICE float accumulate(float acc, UnitScale scale, float dx, float total, float minima) {
    acc = fmaf(scale.d * dx, total, acc);
    if constexpr (has_minima) {
        acc = fmaf(-(scale.dmin * dx), minima, acc);
    }
    return acc;
}

/* Two minima (low bytes of `minima`, not negative) times two sums of 16 activations (halves of `sums`). */
DS4_DEVICE int add_minima(uint32_t minima, uint32_t sums, int total) {
#if defined(__CUDA_ARCH__)
    return __dp2a_lo(static_cast<int>(sums), static_cast<int>(minima), total);
#else
    return total + static_cast<int>(minima & 255u) * static_cast<int16_t>(sums) +
           static_cast<int>(minima >> 8 & 255u) * static_cast<int16_t>(sums >> 16);
#endif
}

/* The integers of a share. `x` are the unit's activations, 64 words (8 for a unit of 32 values). */
template <typename Unit> DS4_DEVICE int share_dot(const uint32_t (&words)[8], const int (&scale)[2], const uint32_t (&x)[8]) {
    int first = 0, second = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        first = dot4(static_cast<int>(words[k]), static_cast<int>(x[k]), first);
        second = dot4(static_cast<int>(words[k + 4]), static_cast<int>(x[k + 4]), second);
    }
    if constexpr (Unit::kScales) {
        return scale[0] * first + scale[1] * second;
    } else {
        return first + second;
    }
}

/* Word k of the share's activations. */
template <typename Unit> DS4_DEVICE void share_inputs(const uint32_t *unit_x, int share, uint32_t (&x)[8]) {
    constexpr int kRun = Unit::kRun; /* words that lie side by side */
#pragma unroll
    for (int k = 0; k < 8; k += kRun) {
        const uint32_t *from = unit_x + Unit::word_place(share, k);
        if constexpr (kRun == 2) {
            const uint2 pair = *reinterpret_cast<const uint2 *>(from);
            x[k] = pair.x;
            x[k + 1] = pair.y;
        } else {
#pragma unroll
            for (int i = 0; i < kRun; i += 4) {
                const uint4 quad = *reinterpret_cast<const uint4 *>(from + i);
                x[k + i] = quad.x;
                x[k + i + 1] = quad.y;
                x[k + i + 2] = quad.z;
                x[k + i + 3] = quad.w;
            }
        }
    }
}

/* The sum over the 8 lanes of a unit. */
DS4_DEVICE int sum_of_eight(int value) {
    value += shuffle_xor(value, 1);
    value += shuffle_xor(value, 2);
    return value + shuffle_xor(value, 4);
}

} // namespace ds4::backend::gpu

#include "backend/gpu/unit_bytes.h"
#include "backend/gpu/unit_floats.h"
