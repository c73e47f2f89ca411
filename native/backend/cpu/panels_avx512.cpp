/* 8-bit activations against quantised weights with AVX-512 and VNNI; the rules of kernels_avx512.cpp hold here too.
 *
 * Products with 8-bit activations work on panels of 16 weight rows, one row per 32-bit lane: a panel's bytes are
 * transposed so that a register holds four consecutive columns of 16 rows, and one instruction multiplies them with
 * four bytes of a token, broadcast from memory. Integer sums end after each group of columns that shares a scale, so
 * no lanes have to be added up at the end. The processor multiplies unsigned with signed bytes: signed weights are
 * stored 128 too high, and the sum starts at -128 times the sum of the group's activations. */
#if defined(__x86_64__)

#include "backend/cpu/panels.h"

/* GCC 12 takes the don't-care operands inside its own intrinsics for variables that someone forgot to set. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#include "quant/blocks.h"
#include "quant/iq2_xxs_grid.h"

namespace ds4::backend::cpu::avx512 {

namespace {

using Vec = __m512;

Vec zero() {
    return _mm512_setzero_ps();
}

Vec splat(float x) {
    return _mm512_set1_ps(x);
}

Vec load(const float *p) {
    return _mm512_loadu_ps(p);
}

float peak(Vec v) {
    return _mm512_reduce_max_ps(v);
}

int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* ---- activations of 8 bits --------------------------------------------------------------------------------------- */

constexpr size_t whole_lines(size_t bytes) {
    return (bytes + 63) / 64 * 64;
}

/* A prepared token of `columns` values, one array after another:
 *   int8 q[columns]            the values
 *   float d[columns / block]   block 32 or 256
 *   int32 start32[columns / 32]   -128 * sum of 32 values
 * and with blocks of 256 also
 *   int32 start16[columns / 16]   -128 * sum of 16 values
 *   float dsum32[columns / 32]    d * sum of 32 values
 *   float dsum16[columns / 16] */
struct Offsets {
    int64_t d, start32, start16, dsum32, dsum16, end;
};

Offsets offsets_of(int64_t columns, int64_t block) {
    Offsets o{};
    o.d = static_cast<int64_t>(whole_lines(static_cast<size_t>(columns)));
    o.start32 = o.d + columns / block * 4;
    o.start16 = o.start32 + columns / 32 * 4;
    o.dsum32 = block == 256 ? o.start16 + columns / 16 * 4 : o.start16;
    o.dsum16 = block == 256 ? o.dsum32 + columns / 32 * 4 : o.dsum32;
    o.end = block == 256 ? o.dsum16 + columns / 16 * 4 : o.dsum16;
    return o;
}

__mmask16 not_finite(Vec magnitude) {
    return _mm512_cmp_ps_mask(magnitude, _mm512_set1_ps(__builtin_inff()), _CMP_NLT_UQ);
}

float not_a_number() {
    return __builtin_nanf("");
}

/* 16 values to bytes: x * inverse, halves to even, saturated. */
__m128i to_bytes(Vec x, Vec inverse) {
    return _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(x, inverse)));
}

int32_t sum_of_bytes(__m128i bytes) {
    /* Sums of unsigned bytes exist; move the range up and take the shift away again. */
    const __m128i sums = _mm_sad_epu8(_mm_xor_si128(bytes, _mm_set1_epi8(-128)), _mm_setzero_si128());
    return _mm_cvtsi128_si32(sums) + _mm_extract_epi32(sums, 2) - 16 * 128;
}

/* ---- panels of 16 rows ------------------------------------------------------------------------------------------- */

constexpr int64_t kChunk = 1024; /* columns unpacked at a time: such a panel stays in the first-level cache */

/* An unpacked piece of a panel. Group g has its bytes at bytes[g * registers per group], four columns of 16 rows each,
 * and its scale and minimum, if the format has one, per row. */
struct Panel {
    __m512i bytes[kChunk / 4];
    Vec     scale[kChunk / 16];
    Vec     minimum[kChunk / 16];
};

/* 16 rows of a matrix; rows past the end repeat the last one. */
struct Rows {
    const std::byte *row[kPanelRows];
    __m512i          offset; /* of each row from the first, for gathering */
};

Rows point_at(const std::byte *weights, int64_t row_bytes, int64_t count) {
    Rows rows;
    alignas(64) int32_t offset[kPanelRows];
    for (int i = 0; i < kPanelRows; ++i) {
        const int64_t r = i < count ? i : count - 1;
        rows.row[i] = weights + r * row_bytes;
        offset[i] = static_cast<int32_t>(r * row_bytes);
    }
    rows.offset = _mm512_load_si512(offset);
    return rows;
}

/* Four bytes at `at` of every row. */
__m512i gather(const Rows &rows, int64_t at) {
    return _mm512_i32gather_epi32(rows.offset, rows.row[0] + at, 1);
}

Vec low_f16(__m512i dwords) {
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(dwords));
}

Vec high_f16(__m512i dwords) {
    return low_f16(_mm512_srli_epi32(dwords, 16));
}

__m512i two_rows(const std::byte *a, const std::byte *b) {
    const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(a));
    const __m256i second = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(b));
    return _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
}

/* 32 bytes at `at` of 16 rows -> out[c] = bytes 4 c .. 4 c + 3 of each row. */
[[gnu::always_inline]] inline void transpose_32(const Rows &rows, int64_t at, __m512i *out) {
    __m512i z[8];
    for (int i = 0; i < 4; ++i) {
        z[i] = two_rows(rows.row[i] + at, rows.row[i + 4] + at);
        z[i + 4] = two_rows(rows.row[i + 8] + at, rows.row[i + 12] + at);
    }
    for (int half = 0; half < 8; half += 4) {
        const __m512i a = _mm512_unpacklo_epi32(z[half], z[half + 1]);
        const __m512i b = _mm512_unpackhi_epi32(z[half], z[half + 1]);
        const __m512i c = _mm512_unpacklo_epi32(z[half + 2], z[half + 3]);
        const __m512i d = _mm512_unpackhi_epi32(z[half + 2], z[half + 3]);
        z[half] = _mm512_unpacklo_epi64(a, c);
        z[half + 1] = _mm512_unpackhi_epi64(a, c);
        z[half + 2] = _mm512_unpacklo_epi64(b, d);
        z[half + 3] = _mm512_unpackhi_epi64(b, d);
    }
    for (int c = 0; c < 4; ++c) {
        out[c] = _mm512_shuffle_i64x2(z[c], z[c + 4], 0x88);
        out[c + 4] = _mm512_shuffle_i64x2(z[c], z[c + 4], 0xdd);
    }
}

/* The same for 16 bytes: four registers. */
[[gnu::always_inline]] inline void transpose_16(const Rows &rows, int64_t at, __m512i *out) {
    __m512i z[4];
    for (int i = 0; i < 4; ++i) {
        const auto load_row = [&](int row) {
            return _mm_loadu_si128(reinterpret_cast<const __m128i *>(rows.row[row] + at));
        };
        z[i] = _mm512_castsi128_si512(load_row(i));
        z[i] = _mm512_inserti32x4(z[i], load_row(i + 4), 1);
        z[i] = _mm512_inserti32x4(z[i], load_row(i + 8), 2);
        z[i] = _mm512_inserti32x4(z[i], load_row(i + 12), 3);
    }
    const __m512i a = _mm512_unpacklo_epi32(z[0], z[1]);
    const __m512i b = _mm512_unpackhi_epi32(z[0], z[1]);
    const __m512i c = _mm512_unpacklo_epi32(z[2], z[3]);
    const __m512i d = _mm512_unpackhi_epi32(z[2], z[3]);
    out[0] = _mm512_unpacklo_epi64(a, c);
    out[1] = _mm512_unpackhi_epi64(a, c);
    out[2] = _mm512_unpacklo_epi64(b, d);
    out[3] = _mm512_unpackhi_epi64(b, d);
}

__m512i all_bytes(int value) {
    return _mm512_set1_epi8(static_cast<char>(value));
}

__m512i bits_at(__m512i v, int shift, int mask) {
    return _mm512_and_si512(_mm512_srli_epi32(v, static_cast<unsigned>(shift)), all_bytes(mask));
}

/* Byte `index` of each lane as a float. */
Vec byte_as_float(__m512i v, int index) {
    const __m512i shifted = _mm512_srli_epi32(v, static_cast<unsigned>(8 * index));
    return _mm512_cvtepi32_ps(_mm512_and_si512(shifted, _mm512_set1_epi32(255)));
}

/* A format says: values per block, columns per scale, whether its bytes are stored 128 too high, whether it has minima,
 * the block size of the activations, and how to unpack one block into the panel from group `group` on. */
struct FormatQ8_0 {
    static constexpr int  kBlock = 32, kGroup = 32, kActivation = 32;
    static constexpr bool kShifted = true, kMinimum = false;
    static constexpr int64_t kBytes = sizeof(quant::BlockQ8_0);

    static void unpack(const Rows &rows, int64_t at, Panel &panel, int group) {
        __m512i *bytes = panel.bytes + group * 8;
        transpose_32(rows, at + 2, bytes);
        for (int c = 0; c < 8; ++c) {
            bytes[c] = _mm512_xor_si512(bytes[c], all_bytes(128));
        }
        panel.scale[group] = low_f16(gather(rows, at));
    }
};

struct FormatMxfp4 {
    static constexpr int  kBlock = 32, kGroup = 32, kActivation = 32;
    static constexpr bool kShifted = true, kMinimum = false;
    static constexpr int64_t kBytes = sizeof(quant::BlockMxfp4);

    static void unpack(const Rows &rows, int64_t at, Panel &panel, int group) {
        /* Twice the value of each code, and 128. */
        const __m512i table = _mm512_broadcast_i32x4(_mm_setr_epi8(-128, -127, -126, -125, -124, -122, -120, -116, -128,
                                                                   127, 126, 125, 124, 122, 120, 116));
        __m512i packed[4];
        transpose_16(rows, at + 1, packed);
        __m512i *bytes = panel.bytes + group * 8;
        for (int c = 0; c < 4; ++c) {
            bytes[c] = _mm512_shuffle_epi8(table, bits_at(packed[c], 0, 15));
            bytes[c + 4] = _mm512_shuffle_epi8(table, bits_at(packed[c], 4, 15));
        }
        const __m512i   exponent = _mm512_and_si512(gather(rows, at), _mm512_set1_epi32(255));
        const __m512i   normal = _mm512_slli_epi32(_mm512_sub_epi32(exponent, _mm512_set1_epi32(1)), 23);
        const __m512i   subnormal = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), exponent);
        const __mmask16 small = _mm512_cmplt_epi32_mask(exponent, _mm512_set1_epi32(2));
        panel.scale[group] = _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, small, subnormal));
    }
};

struct FormatQ2K {
    static constexpr int  kBlock = 256, kGroup = 16, kActivation = 256;
    static constexpr bool kShifted = false, kMinimum = true;
    static constexpr int64_t kBytes = sizeof(quant::BlockQ2K);

    static void unpack(const Rows &rows, int64_t at, Panel &panel, int group) {
        for (int half = 0; half < 2; ++half) {
            __m512i packed[8];
            transpose_32(rows, at + 16 + 32 * half, packed);
            for (int pair = 0; pair < 4; ++pair) {
                __m512i *bytes = panel.bytes + (group + 8 * half + 2 * pair) * 4;
                for (int c = 0; c < 8; ++c) {
                    bytes[c] = bits_at(packed[c], 2 * pair, 3);
                }
            }
        }
        const __m512i both = gather(rows, at + 80);
        const Vec     d = low_f16(both);
        const Vec     dmin = high_f16(both);
        for (int four = 0; four < 4; ++four) {
            const __m512i scales = gather(rows, at + 4 * four);
            const __m512i low = bits_at(scales, 0, 15);
            const __m512i high = bits_at(scales, 4, 15);
            for (int i = 0; i < 4; ++i) {
                panel.scale[group + 4 * four + i] = d * byte_as_float(low, i);
                panel.minimum[group + 4 * four + i] = dmin * byte_as_float(high, i);
            }
        }
    }
};

/* Scales and minima of Q4_K and Q5_K, see quant/k_scales.h. */
[[gnu::always_inline]] inline void unpack_k_scales(const Rows &rows, int64_t at, Panel &panel, int group) {
    const __m512i both = gather(rows, at);
    const Vec     d = low_f16(both);
    const Vec     dmin = high_f16(both);
    const __m512i a = gather(rows, at + 4);
    const __m512i b = gather(rows, at + 8);
    const __m512i c = gather(rows, at + 12);
    const __m512i scale_low = bits_at(a, 0, 63);
    const __m512i min_low = bits_at(b, 0, 63);
    const __m512i scale_high = _mm512_or_si512(bits_at(c, 0, 15), bits_at(a, 2, 0x30));
    const __m512i min_high = _mm512_or_si512(bits_at(c, 4, 15), bits_at(b, 2, 0x30));
    for (int i = 0; i < 4; ++i) {
        panel.scale[group + i] = d * byte_as_float(scale_low, i);
        panel.scale[group + 4 + i] = d * byte_as_float(scale_high, i);
        panel.minimum[group + i] = dmin * byte_as_float(min_low, i);
        panel.minimum[group + 4 + i] = dmin * byte_as_float(min_high, i);
    }
}

struct FormatQ4K {
    static constexpr int  kBlock = 256, kGroup = 32, kActivation = 256;
    static constexpr bool kShifted = false, kMinimum = true;
    static constexpr int64_t kBytes = sizeof(quant::BlockQ4K);

    static void unpack(const Rows &rows, int64_t at, Panel &panel, int group) {
        for (int pair = 0; pair < 4; ++pair) {
            __m512i packed[8];
            transpose_32(rows, at + 16 + 32 * pair, packed);
            __m512i *bytes = panel.bytes + (group + 2 * pair) * 8;
            for (int c = 0; c < 8; ++c) {
                bytes[c] = bits_at(packed[c], 0, 15);
                bytes[c + 8] = bits_at(packed[c], 4, 15);
            }
        }
        unpack_k_scales(rows, at, panel, group);
    }
};

struct FormatQ5K {
    static constexpr int  kBlock = 256, kGroup = 32, kActivation = 256;
    static constexpr bool kShifted = false, kMinimum = true;
    static constexpr int64_t kBytes = sizeof(quant::BlockQ5K);

    static void unpack(const Rows &rows, int64_t at, Panel &panel, int group) {
        __m512i high[8];
        transpose_32(rows, at + 16, high);
        for (int pair = 0; pair < 4; ++pair) {
            __m512i packed[8];
            transpose_32(rows, at + 48 + 32 * pair, packed);
            __m512i *bytes = panel.bytes + (group + 2 * pair) * 8;
            for (int c = 0; c < 8; ++c) {
                const __m512i fifth = _mm512_slli_epi32(bits_at(high[c], 2 * pair, 1), 4);
                const __m512i next_fifth = _mm512_slli_epi32(bits_at(high[c], 2 * pair + 1, 1), 4);
                bytes[c] = _mm512_or_si512(bits_at(packed[c], 0, 15), fifth);
                bytes[c + 8] = _mm512_or_si512(bits_at(packed[c], 4, 15), next_fifth);
            }
        }
        unpack_k_scales(rows, at, panel, group);
    }
};

struct FormatQ6K {
    static constexpr int  kBlock = 256, kGroup = 16, kActivation = 256;
    static constexpr bool kShifted = true, kMinimum = false;
    static constexpr int64_t kBytes = sizeof(quant::BlockQ6K);

    static void unpack(const Rows &rows, int64_t at, Panel &panel, int group) {
        for (int half = 0; half < 2; ++half) {
            __m512i low[16];
            __m512i high[8];
            transpose_32(rows, at + 64 * half, low);
            transpose_32(rows, at + 64 * half + 32, low + 8);
            transpose_32(rows, at + 128 + 32 * half, high);
            for (int quarter = 0; quarter < 4; ++quarter) {
                __m512i *bytes = panel.bytes + (group + 8 * half + 2 * quarter) * 4;
                for (int c = 0; c < 8; ++c) {
                    const __m512i four = bits_at(low[8 * (quarter % 2) + c], 4 * (quarter / 2), 15);
                    const __m512i two = _mm512_slli_epi32(bits_at(high[c], 2 * quarter, 3), 4);
                    bytes[c] = _mm512_add_epi8(_mm512_or_si512(four, two), all_bytes(128 - 32));
                }
            }
        }
        const Vec d = low_f16(_mm512_srli_epi32(gather(rows, at + 206), 16));
        for (int four = 0; four < 4; ++four) {
            const __m512i scales = gather(rows, at + 192 + 4 * four);
            for (int i = 0; i < 4; ++i) {
                const __m512i top = _mm512_slli_epi32(scales, static_cast<unsigned>(24 - 8 * i));
                panel.scale[group + 4 * four + i] = d * _mm512_cvtepi32_ps(_mm512_srai_epi32(top, 24));
            }
        }
    }
};

struct FormatIq2Xxs {
    static constexpr int  kBlock = 256, kGroup = 32, kActivation = 256;
    static constexpr bool kShifted = true, kMinimum = false;
    static constexpr int64_t kBytes = sizeof(quant::BlockIq2Xxs);

    static void unpack(const Rows &rows, int64_t at, Panel &panel, int group) {
        const auto   *grid = reinterpret_cast<const long long *>(quant::iq2_xxs_tables().grid);
        const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
        const __m512i first_bits = _mm512_set1_epi32(0x08040201);
        const __m512i last_bits = _mm512_set1_epi32(static_cast<int>(0x80402010u));
        const Vec     eighth_of_d = low_f16(gather(rows, at)) * splat(0.125f);
        for (int g = 0; g < 8; ++g) {
            const __m512i indices = gather(rows, at + 2 + 8 * g);
            const __m512i packed = gather(rows, at + 6 + 8 * g);

            /* Four fields of seven sign bits into four bytes, then the parity of each as its eighth bit. */
            const auto field = [&](int index) {
                return _mm512_and_si512(_mm512_slli_epi32(packed, static_cast<unsigned>(index)),
                                        _mm512_set1_epi32(0x7f << (8 * index)));
            };
            __m512i signs = _mm512_or_si512(_mm512_or_si512(field(0), field(1)), _mm512_or_si512(field(2), field(3)));
            __m512i parity = _mm512_xor_si512(signs, bits_at(signs, 4, 15));
            parity = _mm512_xor_si512(parity, bits_at(parity, 2, 3));
            parity = _mm512_xor_si512(parity, bits_at(parity, 1, 1));
            signs = _mm512_or_si512(signs, _mm512_slli_epi32(_mm512_and_si512(parity, all_bytes(1)), 7));

            __m512i *bytes = panel.bytes + (group + g) * 8;
            for (int part = 0; part < 4; ++part) {
                const __m512i index = _mm512_and_si512(_mm512_srli_epi32(indices, static_cast<unsigned>(8 * part)),
                                                       _mm512_set1_epi32(255));
                const __m512i low_rows = _mm512_i32gather_epi64(_mm512_castsi512_si256(index), grid, 8);
                const __m512i high_rows = _mm512_i32gather_epi64(_mm512_extracti64x4_epi64(index, 1), grid, 8);
                const __m512i first = _mm512_permutex2var_epi32(low_rows, even, high_rows);
                const __m512i last = _mm512_permutex2var_epi32(low_rows, odd, high_rows);
                const __m512i spread = _mm512_add_epi32(
                    _mm512_broadcast_i32x4(_mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12)),
                    all_bytes(part));
                const __m512i sign = _mm512_shuffle_epi8(signs, spread);
                const auto    signed_bytes = [&](__m512i grid_bytes, __m512i bits) {
                    const __mmask64 negative = _mm512_test_epi8_mask(sign, bits);
                    return _mm512_xor_si512(
                        _mm512_mask_sub_epi8(grid_bytes, negative, _mm512_setzero_si512(), grid_bytes), all_bytes(128));
                };
                bytes[2 * part] = signed_bytes(first, first_bits);
                bytes[2 * part + 1] = signed_bytes(last, last_bits);
            }
            const __m512i steps = _mm512_srli_epi32(packed, 28);
            panel.scale[group + g] =
                eighth_of_d * _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_add_epi32(steps, steps), _mm512_set1_epi32(1)));
        }
    }
};

typedef int32_t AnyInt32 __attribute__((may_alias, aligned(1)));

/* Sums of `tokens` tokens over the groups of one panel piece that starts at column `first`. */
template <typename Format, int tokens>
[[gnu::always_inline]] inline void multiply_tile(const Panel &panel, int64_t first, int64_t columns,
                                                 const void *const *x, const Offsets &o, Vec *sums) {
    constexpr int kRegisters = Format::kGroup / 4;
    constexpr int kPerScale = Format::kActivation / Format::kGroup;

    const std::byte *token[tokens];
    Vec              total[tokens];
    for (int t = 0; t < tokens; ++t) {
        token[t] = static_cast<const std::byte *>(x[t]);
        total[t] = sums[t];
    }
    const int64_t start_at = Format::kGroup == 16 ? o.start16 : o.start32;
    const int64_t dsum_at = Format::kGroup == 16 ? o.dsum16 : o.dsum32;
    const int64_t first_group = first / Format::kGroup;
    for (int64_t g = 0; g < columns / Format::kGroup; ++g) {
        const int64_t whole = first_group + g;
        __m512i       dots[tokens];
        for (int t = 0; t < tokens; ++t) {
            dots[t] = Format::kShifted
                          ? _mm512_set1_epi32(*reinterpret_cast<const AnyInt32 *>(token[t] + start_at + whole * 4))
                          : _mm512_setzero_si512();
        }
        for (int c = 0; c < kRegisters; ++c) {
            const __m512i weights = panel.bytes[g * kRegisters + c];
            const int64_t column = whole * Format::kGroup + 4 * c;
            for (int t = 0; t < tokens; ++t) {
                const __m512i values = _mm512_set1_epi32(*reinterpret_cast<const AnyInt32 *>(token[t] + column));
                dots[t] = _mm512_dpbusd_epi32(dots[t], weights, values);
            }
        }
        const Vec scale = panel.scale[g];
        for (int t = 0; t < tokens; ++t) {
            const float *d = reinterpret_cast<const float *>(token[t] + o.d) + whole / kPerScale;
            total[t] = _mm512_fmadd_ps(scale * splat(*d), _mm512_cvtepi32_ps(dots[t]), total[t]);
            if constexpr (Format::kMinimum) {
                const float *dsum = reinterpret_cast<const float *>(token[t] + dsum_at) + whole;
                total[t] = _mm512_fnmadd_ps(panel.minimum[g], splat(*dsum), total[t]);
            }
        }
    }
    for (int t = 0; t < tokens; ++t) {
        sums[t] = total[t];
    }
}

constexpr int     kTileTokens = 8;
constexpr int64_t kBatchTokens = 256; /* sums kept at a time while the panel is walked through piece by piece */

template <typename Format> void multiply_panels(const MultiplyJob &job) {
    auto         &panel = *reinterpret_cast<Panel *>(job.scratch);
    Vec          *sums = reinterpret_cast<Vec *>(job.scratch + sizeof(Panel));
    const Offsets o = offsets_of(job.columns, Format::kActivation);
    for (int64_t row = 0; row < job.rows; row += kPanelRows) {
        const int64_t count = smaller(kPanelRows, job.rows - row);
        const Rows    rows = point_at(job.weights + row * job.row_bytes, job.row_bytes, count);
        for (int64_t start = 0; start < job.tokens; start += kBatchTokens) {
            const int64_t tokens = smaller(kBatchTokens, job.tokens - start);
            for (int64_t t = 0; t < tokens; ++t) {
                sums[t] = zero();
            }
            for (int64_t first = 0; first < job.columns; first += kChunk) {
                const int64_t columns = smaller(kChunk, job.columns - first);
                if (start == 0 || job.columns > kChunk) { /* a short row is still there for the next tokens */
                    for (int64_t c = 0; c < columns; c += Format::kBlock) {
                        Format::unpack(rows, (first + c) / Format::kBlock * Format::kBytes, panel,
                                       static_cast<int>(c / Format::kGroup));
                    }
                }
                int64_t t = 0;
                for (; t + kTileTokens <= tokens; t += kTileTokens) {
                    multiply_tile<Format, kTileTokens>(panel, first, columns, job.x + start + t, o, sums + t);
                }
                for (; t + 4 <= tokens; t += 4) {
                    multiply_tile<Format, 4>(panel, first, columns, job.x + start + t, o, sums + t);
                }
                for (; t < tokens; ++t) {
                    multiply_tile<Format, 1>(panel, first, columns, job.x + start + t, o, sums + t);
                }
            }
            const auto lanes = static_cast<__mmask16>((1u << count) - 1u);
            for (int64_t t = 0; t < tokens; ++t) {
                _mm512_mask_storeu_ps(job.y[start + t] + job.y_offset + row, lanes, sums[t]);
            }
        }
    }
}

static_assert(sizeof(Panel) + kBatchTokens * sizeof(Vec) <= kPanelScratchBytes);

} // namespace

size_t bytes_32(int64_t columns) {
    return whole_lines(static_cast<size_t>(offsets_of(columns, 32).end));
}

size_t bytes_256(int64_t columns) {
    return whole_lines(static_cast<size_t>(offsets_of(columns, 256).end));
}

void quantise_32(const float *x, int64_t columns, std::byte *out) {
    const Offsets o = offsets_of(columns, 32);
    auto         *q = reinterpret_cast<int8_t *>(out);
    auto         *d = reinterpret_cast<float *>(out + o.d);
    auto         *start = reinterpret_cast<int32_t *>(out + o.start32);
    for (int64_t b = 0; b < columns / 32; ++b) {
        const Vec lower = load(x + b * 32);
        const Vec upper = load(x + b * 32 + 16);
        const Vec magnitude = _mm512_max_ps(_mm512_abs_ps(lower), _mm512_abs_ps(upper));
        auto     *bytes = reinterpret_cast<__m128i *>(q + b * 32);
        /* The maximum of a pair may hide that one of the two is not a number. */
        const bool  broken = (not_finite(_mm512_abs_ps(lower)) | not_finite(_mm512_abs_ps(upper))) != 0;
        const float scale = broken ? not_a_number() : peak(magnitude) / 127.0f;
        d[b] = scale;
        if (!(scale > 0.0f)) {
            _mm_storeu_si128(bytes, _mm_setzero_si128());
            _mm_storeu_si128(bytes + 1, _mm_setzero_si128());
            start[b] = 0;
            continue;
        }
        const float inverse = 1.0f / scale;
        const Vec   factor = splat(inverse < __FLT_MAX__ ? inverse : __FLT_MAX__);
        const auto  first = to_bytes(lower, factor);
        const auto  second = to_bytes(upper, factor);
        _mm_storeu_si128(bytes, first);
        _mm_storeu_si128(bytes + 1, second);
        start[b] = -128 * (sum_of_bytes(first) + sum_of_bytes(second));
    }
}

void quantise_256(const float *x, int64_t columns, std::byte *out) {
    const Offsets o = offsets_of(columns, 256);
    auto         *q = reinterpret_cast<int8_t *>(out);
    auto         *d = reinterpret_cast<float *>(out + o.d);
    auto         *start32 = reinterpret_cast<int32_t *>(out + o.start32);
    auto         *start16 = reinterpret_cast<int32_t *>(out + o.start16);
    auto         *dsum32 = reinterpret_cast<float *>(out + o.dsum32);
    auto         *dsum16 = reinterpret_cast<float *>(out + o.dsum16);
    for (int64_t b = 0; b < columns / 256; ++b, x += 256) {
        Vec       highest = zero();
        __mmask16 broken = 0;
        for (int i = 0; i < 16; ++i) {
            const Vec magnitude = _mm512_abs_ps(load(x + 16 * i));
            highest = _mm512_max_ps(highest, magnitude);
            broken = static_cast<__mmask16>(broken | not_finite(magnitude));
        }
        const float top = peak(highest);
        float       scale = broken != 0 ? not_a_number() : 0.0f;
        Vec         factor = zero();
        if (broken == 0 && top > 0.0f) {
            float extreme = top;
            for (int i = 0; i < 16; ++i) {
                const Vec       values = load(x + 16 * i);
                const __mmask16 found = _mm512_cmp_ps_mask(_mm512_abs_ps(values), splat(top), _CMP_EQ_OQ);
                if (found != 0) {
                    extreme = x[16 * i + __builtin_ctz(found)];
                    break;
                }
            }
            float inverse = -127.0f / extreme;
            inverse = inverse > __FLT_MAX__ ? __FLT_MAX__ : inverse < -__FLT_MAX__ ? -__FLT_MAX__ : inverse;
            scale = 1.0f / inverse;
            factor = splat(inverse);
        }
        d[b] = scale;
        for (int i = 0; i < 16; ++i) {
            const __m128i bytes = scale == scale ? to_bytes(load(x + 16 * i), factor) : _mm_setzero_si128();
            _mm_storeu_si128(reinterpret_cast<__m128i *>(q + b * 256 + 16 * i), bytes);
            const int32_t total = sum_of_bytes(bytes);
            start16[b * 16 + i] = -128 * total;
            dsum16[b * 16 + i] = scale * static_cast<float>(total);
            if (i % 2 == 1) {
                const int32_t both = total - start16[b * 16 + i - 1] / 128;
                start32[b * 8 + i / 2] = -128 * both;
                dsum32[b * 8 + i / 2] = scale * static_cast<float>(both);
            }
        }
    }
}

void multiply_32(const MultiplyJob &job) {
    if (job.type == quant::Type::q8_0) {
        multiply_panels<FormatQ8_0>(job);
    } else {
        multiply_panels<FormatMxfp4>(job);
    }
}

void multiply_256(const MultiplyJob &job) {
    switch (job.type) {
    case quant::Type::q2_k: multiply_panels<FormatQ2K>(job); return;
    case quant::Type::q4_k: multiply_panels<FormatQ4K>(job); return;
    case quant::Type::q5_k: multiply_panels<FormatQ5K>(job); return;
    case quant::Type::q6_k: multiply_panels<FormatQ6K>(job); return;
    case quant::Type::iq2_xxs: multiply_panels<FormatIq2Xxs>(job); return;
    default: return;
    }
}

} // namespace ds4::backend::cpu::avx512

#endif
