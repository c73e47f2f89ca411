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
using Ints = __m512i;

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

/* First what panel_formats.inc and panel_products.inc ask for; they tell what each name means. */

/* The bytes of signed weights stand in a panel 128 too high, so that they are unsigned. */
constexpr int kStoredAbove = 128;

constexpr int kTileTokens = 8;

Ints load_ints(const int32_t *p) {
    return _mm512_load_si512(p);
}

Ints gather_at(const std::byte *p, Ints offsets) {
    return _mm512_i32gather_epi32(offsets, p, 1);
}

Ints shift_left(Ints v, int bits) {
    return _mm512_slli_epi32(v, static_cast<unsigned>(bits));
}

Vec to_floats(Ints v) {
    return _mm512_cvtepi32_ps(v);
}

Vec multiply_add(Vec a, Vec b, Vec c) {
    return _mm512_fmadd_ps(a, b, c);
}

Vec subtract_product(Vec a, Vec b, Vec c) {
    return _mm512_fnmadd_ps(a, b, c);
}

void store_part(float *p, Vec v, int n) {
    _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1u), v);
}

Vec low_f16(Ints dwords) {
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(dwords));
}

Vec high_f16(Ints dwords) {
    return low_f16(_mm512_srli_epi32(dwords, 16));
}

Ints two_rows(const std::byte *a, const std::byte *b) {
    const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(a));
    const __m256i second = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(b));
    return _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
}

/* 32 bytes at `at` of 16 rows -> out[c] = bytes 4 c .. 4 c + 3 of each row. */
[[gnu::always_inline]] inline void transpose_32(const std::byte *const *row, int64_t at, Ints *out) {
    Ints z[8];
    for (int i = 0; i < 4; ++i) {
        z[i] = two_rows(row[i] + at, row[i + 4] + at);
        z[i + 4] = two_rows(row[i + 8] + at, row[i + 12] + at);
    }
    for (int half = 0; half < 8; half += 4) {
        const Ints a = _mm512_unpacklo_epi32(z[half], z[half + 1]);
        const Ints b = _mm512_unpackhi_epi32(z[half], z[half + 1]);
        const Ints c = _mm512_unpacklo_epi32(z[half + 2], z[half + 3]);
        const Ints d = _mm512_unpackhi_epi32(z[half + 2], z[half + 3]);
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
[[gnu::always_inline]] inline void transpose_16(const std::byte *const *row, int64_t at, Ints *out) {
    Ints z[4];
    for (int i = 0; i < 4; ++i) {
        const auto load_row = [&](int r) {
            return _mm_loadu_si128(reinterpret_cast<const __m128i *>(row[r] + at));
        };
        z[i] = _mm512_castsi128_si512(load_row(i));
        z[i] = _mm512_inserti32x4(z[i], load_row(i + 4), 1);
        z[i] = _mm512_inserti32x4(z[i], load_row(i + 8), 2);
        z[i] = _mm512_inserti32x4(z[i], load_row(i + 12), 3);
    }
    const Ints a = _mm512_unpacklo_epi32(z[0], z[1]);
    const Ints b = _mm512_unpackhi_epi32(z[0], z[1]);
    const Ints c = _mm512_unpacklo_epi32(z[2], z[3]);
    const Ints d = _mm512_unpackhi_epi32(z[2], z[3]);
    out[0] = _mm512_unpacklo_epi64(a, c);
    out[1] = _mm512_unpackhi_epi64(a, c);
    out[2] = _mm512_unpacklo_epi64(b, d);
    out[3] = _mm512_unpackhi_epi64(b, d);
}

Ints all_bytes(int value) {
    return _mm512_set1_epi8(static_cast<char>(value));
}

Ints bits_at(Ints v, int shift, int mask) {
    return _mm512_and_si512(_mm512_srli_epi32(v, static_cast<unsigned>(shift)), all_bytes(mask));
}

/* Byte `index` of each lane as a float. */
Vec byte_as_float(Ints v, int index) {
    const Ints shifted = _mm512_srli_epi32(v, static_cast<unsigned>(8 * index));
    return _mm512_cvtepi32_ps(_mm512_and_si512(shifted, _mm512_set1_epi32(255)));
}

Vec signed_byte_as_float(Ints v, int index) {
    return to_floats(_mm512_srai_epi32(shift_left(v, 24 - 8 * index), 24));
}

Ints add_bytes(Ints a, Ints b) {
    return _mm512_add_epi8(a, b);
}

/* Twice the value of each code, and 128. */
Ints mxfp4_bytes(Ints codes) {
    const __m128i table = _mm_setr_epi8(-128, -127, -126, -125, -124, -122, -120, -116, -128, 127, 126, 125, 124, 122,
                                        120, 116);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), codes);
}

Vec mxfp4_scale(Ints v) {
    const Ints      exponent = _mm512_and_si512(v, _mm512_set1_epi32(255));
    const Ints      normal = shift_left(_mm512_sub_epi32(exponent, _mm512_set1_epi32(1)), 23);
    const Ints      subnormal = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), exponent);
    const __mmask16 small = _mm512_cmplt_epi32_mask(exponent, _mm512_set1_epi32(2));
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, small, subnormal));
}

#include "backend/cpu/panel_formats.inc"

struct FormatIq2Xxs {
    static constexpr int  kBlock = 256, kGroup = 32, kActivation = 256;
    static constexpr bool kSigned = true, kMinimum = false;
    static constexpr int64_t kBytes = sizeof(quant::BlockIq2Xxs);

    static void unpack(const Rows &rows, int64_t at, Panel &panel, int group) {
        const auto *grid = reinterpret_cast<const long long *>(quant::iq2_xxs_tables().grid);
        const Ints  even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        const Ints  odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
        const Ints  first_bits = _mm512_set1_epi32(0x08040201);
        const Ints  last_bits = _mm512_set1_epi32(static_cast<int>(0x80402010u));
        const Vec   eighth_of_d = low_f16(gather(rows, at)) * splat(0.125f);
        for (int g = 0; g < 8; ++g) {
            const Ints indices = gather(rows, at + 2 + 8 * g);
            const Ints packed = gather(rows, at + 6 + 8 * g);

            /* Four fields of seven sign bits into four bytes, then the parity of each as its eighth bit. */
            const auto field = [&](int index) {
                return _mm512_and_si512(_mm512_slli_epi32(packed, static_cast<unsigned>(index)),
                                        _mm512_set1_epi32(0x7f << (8 * index)));
            };
            Ints signs = _mm512_or_si512(_mm512_or_si512(field(0), field(1)), _mm512_or_si512(field(2), field(3)));
            Ints parity = _mm512_xor_si512(signs, bits_at(signs, 4, 15));
            parity = _mm512_xor_si512(parity, bits_at(parity, 2, 3));
            parity = _mm512_xor_si512(parity, bits_at(parity, 1, 1));
            signs = _mm512_or_si512(signs, _mm512_slli_epi32(_mm512_and_si512(parity, all_bytes(1)), 7));

            Ints *bytes = panel.bytes + (group + g) * 8;
            for (int part = 0; part < 4; ++part) {
                const Ints index = _mm512_and_si512(_mm512_srli_epi32(indices, static_cast<unsigned>(8 * part)),
                                                    _mm512_set1_epi32(255));
                const Ints low_rows = _mm512_i32gather_epi64(_mm512_castsi512_si256(index), grid, 8);
                const Ints high_rows = _mm512_i32gather_epi64(_mm512_extracti64x4_epi64(index, 1), grid, 8);
                const Ints first = _mm512_permutex2var_epi32(low_rows, even, high_rows);
                const Ints last = _mm512_permutex2var_epi32(low_rows, odd, high_rows);
                const Ints spread = _mm512_add_epi32(
                    _mm512_broadcast_i32x4(_mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12)),
                    all_bytes(part));
                const Ints sign = _mm512_shuffle_epi8(signs, spread);
                const auto signed_bytes = [&](Ints grid_bytes, Ints bits) {
                    const __mmask64 negative = _mm512_test_epi8_mask(sign, bits);
                    return _mm512_xor_si512(
                        _mm512_mask_sub_epi8(grid_bytes, negative, _mm512_setzero_si512(), grid_bytes), all_bytes(128));
                };
                bytes[2 * part] = signed_bytes(first, first_bits);
                bytes[2 * part + 1] = signed_bytes(last, last_bits);
            }
            const Ints steps = _mm512_srli_epi32(packed, 28);
            panel.scale[group + g] =
                eighth_of_d * _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_add_epi32(steps, steps), _mm512_set1_epi32(1)));
        }
    }
};

typedef int32_t AnyInt32 __attribute__((may_alias, aligned(1)));

template <typename Format, int tokens>
[[gnu::always_inline]] inline void group_products(const Ints *weights, const std::byte *const *token, const Offsets &o,
                                                  int64_t group, Ints *dots) {
    const int64_t start_at = Format::kGroup == 16 ? o.start16 : o.start32;
    for (int t = 0; t < tokens; ++t) {
        dots[t] = Format::kSigned
                      ? _mm512_set1_epi32(*reinterpret_cast<const AnyInt32 *>(token[t] + start_at + group * 4))
                      : _mm512_setzero_si512();
    }
    for (int c = 0; c < Format::kGroup / 4; ++c) {
        const int64_t column = group * Format::kGroup + 4 * c;
        const Ints    four = weights[c];
        for (int t = 0; t < tokens; ++t) {
            const Ints values = _mm512_set1_epi32(*reinterpret_cast<const AnyInt32 *>(token[t] + column));
            dots[t] = _mm512_dpbusd_epi32(dots[t], four, values);
        }
    }
}

#include "backend/cpu/panel_products.inc"

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
    multiply_any_32(job);
}

void multiply_256(const MultiplyJob &job) {
    multiply_any_256(job);
}

} // namespace ds4::backend::cpu::avx512

#endif
