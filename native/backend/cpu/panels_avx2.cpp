/* 8-bit activations against quantised weights with AVX2; the rules of kernels_avx2.cpp hold here too.
 *
 * Products with 8-bit activations work on panels of 8 weight rows, one row per 32-bit lane. Bytes are widened to 16 bits
 * and multiplied in pairs, which is exact for every value; the faster instruction for unsigned times signed bytes
 * saturates for Q8_0. A register of four columns splits into its even and its odd bytes at the cost of one instruction
 * each, so prepared activations hold columns 0, 2, 1, 3 of each four. */
#if defined(__x86_64__)

#include "backend/cpu/panels.h"

#include <immintrin.h>

#include "quant/blocks.h"
#include "quant/iq2_xxs_grid.h"

namespace ds4::backend::cpu::avx2 {

namespace {

using Vec = __m256;
using Ints = __m256i;

constexpr int kLanes = 8;

Vec zero() {
    return _mm256_setzero_ps();
}

Vec splat(float x) {
    return _mm256_set1_ps(x);
}

Vec load(const float *p) {
    return _mm256_loadu_ps(p);
}

Vec magnitude_of(Vec v) {
    return _mm256_andnot_ps(splat(-0.0f), v);
}

float peak(Vec v) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

/* ---- activations of 8 bits --------------------------------------------------------------------------------------- */

/* A prepared token of `columns` values, one array after another:
 *   int16 q[columns]             the values, columns 0, 2, 1, 3 of each four
 *   float d[columns / block]     block 32 or 256
 * and with blocks of 256 also
 *   float dsum32[columns / 32]   d * sum of 32 values
 *   float dsum16[columns / 16] */
struct Offsets {
    int64_t d, dsum32, dsum16, end;
};

Offsets offsets_of(int64_t columns, int64_t block) {
    Offsets o{};
    o.d = columns * 2;
    o.dsum32 = o.d + columns / block * 4;
    o.dsum16 = o.dsum32 + (block == 256 ? columns / 32 * 4 : 0);
    o.end = o.dsum16 + (block == 256 ? columns / 16 * 4 : 0);
    return o;
}

size_t whole_lines(int64_t bytes) {
    return (static_cast<size_t>(bytes) + 63) / 64 * 64;
}

/* Sets a bit for each lane that is not finite. */
int not_finite(Vec magnitude) {
    return _mm256_movemask_ps(_mm256_cmp_ps(magnitude, splat(__builtin_inff()), _CMP_NLT_UQ));
}

/* 16 values rounded to -128 .. 127 as 16-bit numbers in the stored order; returns their sum. */
int32_t to_words(const float *x, Vec inverse, int16_t *out) {
    const Ints low = _mm256_cvtps_epi32(load(x) * inverse);
    const Ints high = _mm256_cvtps_epi32(load(x + 8) * inverse);
    /* Words of 0-3, 8-11, 4-7, 12-15; then the quarters and the words in each into order. */
    Ints words = _mm256_packs_epi32(low, high);
    words = _mm256_max_epi16(_mm256_min_epi16(words, _mm256_set1_epi16(127)), _mm256_set1_epi16(-128));
    words = _mm256_permute4x64_epi64(words, 0xd8);
    const Ints pairs = _mm256_madd_epi16(words, _mm256_set1_epi16(1));
    const Ints order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
    _mm256_storeu_si256(reinterpret_cast<Ints *>(out), _mm256_shuffle_epi8(words, order));
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(four) + _mm_extract_epi32(four, 1);
}

/* ---- panels of 8 rows -------------------------------------------------------------------------------------------- */

/* First what panel_formats.inc and panel_products.inc ask for; they tell what each name means. */

/* The bytes of signed weights stand in a panel as they are. */
constexpr int kStoredAbove = 0;

constexpr int kTileTokens = 4;

Ints load_ints(const int32_t *p) {
    return _mm256_load_si256(reinterpret_cast<const Ints *>(p));
}

Ints gather_at(const std::byte *p, Ints offsets) {
    return _mm256_i32gather_epi32(reinterpret_cast<const int *>(p), offsets, 1);
}

Ints shift_left(Ints v, int bits) {
    return _mm256_slli_epi32(v, bits);
}

Vec to_floats(Ints v) {
    return _mm256_cvtepi32_ps(v);
}

Vec multiply_add(Vec a, Vec b, Vec c) {
    return _mm256_fmadd_ps(a, b, c);
}

Vec subtract_product(Vec a, Vec b, Vec c) {
    return _mm256_fnmadd_ps(a, b, c);
}

void store_part(float *p, Vec v, int n) {
    const Ints lanes = _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    _mm256_maskstore_ps(p, lanes, v);
}

Vec low_f16(Ints dwords) {
    const Ints low = _mm256_and_si256(dwords, _mm256_set1_epi32(0xffff));
    const Ints words = _mm256_packus_epi32(low, low);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64(words, 0x08)));
}

Vec high_f16(Ints dwords) {
    return low_f16(_mm256_srli_epi32(dwords, 16));
}

/* 4 x 4 dwords in each half of four registers. */
void transpose_quarters(Ints *z) {
    const Ints a = _mm256_unpacklo_epi32(z[0], z[1]);
    const Ints b = _mm256_unpackhi_epi32(z[0], z[1]);
    const Ints c = _mm256_unpacklo_epi32(z[2], z[3]);
    const Ints d = _mm256_unpackhi_epi32(z[2], z[3]);
    z[0] = _mm256_unpacklo_epi64(a, c);
    z[1] = _mm256_unpackhi_epi64(a, c);
    z[2] = _mm256_unpacklo_epi64(b, d);
    z[3] = _mm256_unpackhi_epi64(b, d);
}

/* 32 bytes at `at` of 8 rows -> out[c] = bytes 4 c .. 4 c + 3 of each row. */
[[gnu::always_inline]] inline void transpose_32(const std::byte *const *row, int64_t at, Ints *out) {
    Ints z[8];
    for (int i = 0; i < 8; ++i) {
        z[i] = _mm256_loadu_si256(reinterpret_cast<const Ints *>(row[i] + at));
    }
    transpose_quarters(z);
    transpose_quarters(z + 4);
    for (int c = 0; c < 4; ++c) {
        out[c] = _mm256_permute2x128_si256(z[c], z[c + 4], 0x20);
        out[c + 4] = _mm256_permute2x128_si256(z[c], z[c + 4], 0x31);
    }
}

/* The same for 16 bytes: four registers. */
[[gnu::always_inline]] inline void transpose_16(const std::byte *const *row, int64_t at, Ints *out) {
    for (int i = 0; i < 4; ++i) {
        const auto half = [&](int r) {
            return _mm_loadu_si128(reinterpret_cast<const __m128i *>(row[r] + at));
        };
        out[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(half(i)), half(i + 4), 1);
    }
    transpose_quarters(out);
}

Ints all_bytes(int value) {
    return _mm256_set1_epi8(static_cast<char>(value));
}

Ints bits_at(Ints v, int shift, int mask) {
    return _mm256_and_si256(_mm256_srli_epi32(v, shift), all_bytes(mask));
}

/* Byte `index` of each lane as a float. */
Vec byte_as_float(Ints v, int index) {
    return _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(v, 8 * index), _mm256_set1_epi32(255)));
}

Vec signed_byte_as_float(Ints v, int index) {
    return to_floats(_mm256_srai_epi32(shift_left(v, 24 - 8 * index), 24));
}

Ints add_bytes(Ints a, Ints b) {
    return _mm256_add_epi8(a, b);
}

/* Twice the value of each code. */
Ints mxfp4_bytes(Ints codes) {
    const __m128i table = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), codes);
}

Vec mxfp4_scale(Ints v) {
    const Ints exponent = _mm256_and_si256(v, _mm256_set1_epi32(255));
    const Ints normal = shift_left(_mm256_sub_epi32(exponent, _mm256_set1_epi32(1)), 23);
    const Ints subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), exponent);
    const Ints small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), exponent);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, subnormal, small));
}

#include "backend/cpu/panel_formats.inc"

struct FormatIq2Xxs {
    static constexpr int  kBlock = 256, kGroup = 32, kActivation = 256;
    static constexpr bool kSigned = true, kMinimum = false;
    static constexpr int64_t kBytes = sizeof(quant::BlockIq2Xxs);

    static void unpack(const Rows &rows, int64_t at, Panel &panel, int group) {
        const quant::Iq2XxsTables &tables = quant::iq2_xxs_tables();
        const auto                *grid = reinterpret_cast<const int *>(tables.grid);
        const auto                *sign = reinterpret_cast<const int *>(tables.sign);
        const Vec                  eighth_of_d = low_f16(gather(rows, at)) * splat(0.125f);
        for (int g = 0; g < 8; ++g) {
            const Ints indices = gather(rows, at + 2 + 8 * g);
            const Ints packed = gather(rows, at + 6 + 8 * g);
            Ints      *bytes = panel.bytes + (group + g) * 8;
            for (int part = 0; part < 4; ++part) {
                const Ints index = _mm256_and_si256(_mm256_srli_epi32(indices, 8 * part), _mm256_set1_epi32(255));
                const Ints pattern = _mm256_and_si256(_mm256_srli_epi32(packed, 7 * part), _mm256_set1_epi32(127));
                for (int half = 0; half < 2; ++half) {
                    bytes[2 * part + half] = _mm256_sign_epi8(_mm256_i32gather_epi32(grid + half, index, 8),
                                                              _mm256_i32gather_epi32(sign + half, pattern, 8));
                }
            }
            const Ints steps = _mm256_srli_epi32(packed, 28);
            panel.scale[group + g] =
                eighth_of_d * _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_add_epi32(steps, steps), _mm256_set1_epi32(1)));
        }
    }
};

typedef int32_t AnyInt32 __attribute__((may_alias, aligned(1)));

template <typename Format, int tokens>
[[gnu::always_inline]] inline void group_products(const Ints *weights, const std::byte *const *token, const Offsets &,
                                                  int64_t group, Ints *dots) {
    for (int t = 0; t < tokens; ++t) {
        dots[t] = _mm256_setzero_si256();
    }
    for (int c = 0; c < Format::kGroup / 4; ++c) {
        const Ints    even = Format::kSigned ? _mm256_srai_epi16(_mm256_slli_epi16(weights[c], 8), 8)
                                             : _mm256_and_si256(weights[c], _mm256_set1_epi16(255));
        const Ints    odd = Format::kSigned ? _mm256_srai_epi16(weights[c], 8) : _mm256_srli_epi16(weights[c], 8);
        const int64_t column = (group * Format::kGroup + 4 * c) * 2;
        for (int t = 0; t < tokens; ++t) {
            const auto *values = reinterpret_cast<const AnyInt32 *>(token[t] + column);
            dots[t] = _mm256_add_epi32(dots[t], _mm256_madd_epi16(even, _mm256_set1_epi32(values[0])));
            dots[t] = _mm256_add_epi32(dots[t], _mm256_madd_epi16(odd, _mm256_set1_epi32(values[1])));
        }
    }
}

#include "backend/cpu/panel_products.inc"

} // namespace

size_t bytes_32(int64_t columns) {
    return whole_lines(offsets_of(columns, 32).end);
}

size_t bytes_256(int64_t columns) {
    return whole_lines(offsets_of(columns, 256).end);
}

void quantise_32(const float *x, int64_t columns, std::byte *out) {
    const Offsets o = offsets_of(columns, 32);
    auto         *q = reinterpret_cast<int16_t *>(out);
    auto         *d = reinterpret_cast<float *>(out + o.d);
    for (int64_t b = 0; b < columns / 32; ++b, x += 32, q += 32) {
        Vec highest = zero();
        int broken = 0;
        for (int i = 0; i < 32; i += kLanes) {
            const Vec magnitude = magnitude_of(load(x + i));
            highest = _mm256_max_ps(highest, magnitude);
            broken |= not_finite(magnitude);
        }
        const float scale = broken != 0 ? __builtin_nanf("") : peak(highest) / 127.0f;
        d[b] = scale;
        if (!(scale > 0.0f)) {
            __builtin_memset(q, 0, 32 * sizeof(int16_t));
            continue;
        }
        const float inverse = 1.0f / scale;
        const Vec   factor = splat(inverse < __FLT_MAX__ ? inverse : __FLT_MAX__);
        to_words(x, factor, q);
        to_words(x + 16, factor, q + 16);
    }
}

void quantise_256(const float *x, int64_t columns, std::byte *out) {
    const Offsets o = offsets_of(columns, 256);
    auto         *q = reinterpret_cast<int16_t *>(out);
    auto         *d = reinterpret_cast<float *>(out + o.d);
    auto         *dsum32 = reinterpret_cast<float *>(out + o.dsum32);
    auto         *dsum16 = reinterpret_cast<float *>(out + o.dsum16);
    for (int64_t b = 0; b < columns / 256; ++b, x += 256, q += 256) {
        Vec highest = zero();
        int broken = 0;
        for (int i = 0; i < 256; i += kLanes) {
            const Vec magnitude = magnitude_of(load(x + i));
            highest = _mm256_max_ps(highest, magnitude);
            broken |= not_finite(magnitude);
        }
        const float top = peak(highest);
        if (broken != 0 || !(top > 0.0f)) {
            const float scale = broken != 0 ? __builtin_nanf("") : 0.0f;
            __builtin_memset(q, 0, 256 * sizeof(int16_t));
            d[b] = scale;
            for (int i = 0; i < 16; ++i) {
                dsum16[b * 16 + i] = scale;
                dsum32[b * 8 + i / 2] = scale;
            }
            continue;
        }
        float extreme = top;
        for (int i = 0; i < 256; i += kLanes) {
            const Vec values = load(x + i);
            const int found = _mm256_movemask_ps(_mm256_cmp_ps(magnitude_of(values), splat(top), _CMP_EQ_OQ));
            if (found != 0) {
                extreme = x[i + __builtin_ctz(static_cast<unsigned>(found))];
                break;
            }
        }
        float inverse = -127.0f / extreme;
        inverse = inverse > __FLT_MAX__ ? __FLT_MAX__ : inverse < -__FLT_MAX__ ? -__FLT_MAX__ : inverse;
        const float scale = 1.0f / inverse;
        d[b] = scale;
        int32_t before = 0;
        for (int i = 0; i < 16; ++i) {
            const int32_t total = to_words(x + 16 * i, splat(inverse), q + 16 * i);
            dsum16[b * 16 + i] = scale * static_cast<float>(total);
            if (i % 2 == 1) {
                dsum32[b * 8 + i / 2] = scale * static_cast<float>(before + total);
            }
            before = total;
        }
    }
}

void multiply_32(const MultiplyJob &job) {
    multiply_any_32(job);
}

void multiply_256(const MultiplyJob &job) {
    multiply_any_256(job);
}

} // namespace ds4::backend::cpu::avx2

#endif
