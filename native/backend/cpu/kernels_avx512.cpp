/* Kernels for AVX-512 (F, BW, VL, DQ, VNNI). This file and panels_avx512.cpp are the only ones
 * compiled for it; they are reached through the table alone.
 *
 * Everything here has internal linkage, and nothing of the standard library is used: an inline function compiled with
 * these instructions could be the copy that the linker keeps for the whole library, which would then stop with an
 * illegal instruction on a lesser processor. */
#if defined(__x86_64__)

#include "backend/cpu/kernels.h"
#include "backend/cpu/panels.h"

/* GCC 12 takes the don't-care operands inside its own intrinsics for variables that someone forgot to set. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#include "include/ds4.h"
#include "quant/dequantise.h"

namespace ds4::backend::cpu {

namespace {

using Vec = __m512;

constexpr int kLanes = 16;
constexpr int kDotRows = 4;
constexpr int kDotTokens = 4;
constexpr int kManyHeads = 8;
constexpr int kFewHeads = 4;
constexpr int kMixVectors = 2;

Vec zero() {
    return _mm512_setzero_ps();
}

Vec splat(float x) {
    return _mm512_set1_ps(x);
}

Vec load(const float *p) {
    return _mm512_loadu_ps(p);
}

void store(float *p, Vec v) {
    _mm512_storeu_ps(p, v);
}

__mmask16 first_lanes(int n) {
    return static_cast<__mmask16>((1u << n) - 1u);
}

Vec load_part(const float *p, int n) {
    return _mm512_maskz_loadu_ps(first_lanes(n), p);
}

void store_part(float *p, Vec v, int n) {
    _mm512_mask_storeu_ps(p, first_lanes(n), v);
}

Vec load_f16(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
}

Vec load_bf16(const uint16_t *p) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

Vec multiply_add(Vec a, Vec b, Vec c) {
    return _mm512_fmadd_ps(a, b, c);
}

/* The second operand is what these give when one of the two is not a number. */
Vec at_least(Vec v, Vec low) {
    return _mm512_max_ps(low, v);
}

Vec at_most(Vec v, Vec high) {
    return _mm512_min_ps(high, v);
}

Vec largest(Vec a, Vec b) {
    return _mm512_max_ps(a, b);
}

Vec round_to_integer(Vec v) {
    return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

Vec times_power_of_two(Vec v, Vec n) {
    return _mm512_scalef_ps(v, n);
}

Vec zero_below(Vec x, Vec low, Vec v) {
    return _mm512_mask_mov_ps(v, _mm512_cmp_ps_mask(x, low, _CMP_LT_OQ), _mm512_setzero_ps());
}

__m128 upper_half(__m128 v) {
    return _mm_movehl_ps(v, v);
}

float sum(Vec v) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, upper_half(four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

float peak(Vec v) {
    const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, upper_half(four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

/* Two vectors' first level of sum(): eight partial sums of a, then of b. */
Vec halve(Vec a, Vec b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
}

/* The second level: a0..a3 b0..b3 from the first argument, c and d from the second. */
Vec quarter(Vec ab, Vec cd) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
}

Vec four_sums_of_four(Vec a, Vec b, Vec c, Vec d) {
    return quarter(halve(a, b), halve(c, d));
}

/* The third level: within each quarter two partial sums of a vector of the first argument, two of the second. */
Vec eighth(Vec abcd, Vec efgh) {
    const __m512d p = _mm512_castps_pd(abcd);
    const __m512d q = _mm512_castps_pd(efgh);
    return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(p, q)), _mm512_castpd_ps(_mm512_unpackhi_pd(p, q)));
}

Vec pairwise(Vec x, Vec y) {
    return _mm512_add_ps(_mm512_shuffle_ps(x, y, 0x88), _mm512_shuffle_ps(x, y, 0xdd));
}

template <int count> void sum_many(const Vec *v, float *out) {
    if constexpr (count == 16) {
        const Vec a = eighth(four_sums_of_four(v[0], v[4], v[8], v[12]), four_sums_of_four(v[1], v[5], v[9], v[13]));
        const Vec b = eighth(four_sums_of_four(v[2], v[6], v[10], v[14]), four_sums_of_four(v[3], v[7], v[11], v[15]));
        _mm512_storeu_ps(out, pairwise(a, b));
    } else if constexpr (count == 8) {
        const Vec a = eighth(four_sums_of_four(v[0], v[2], v[4], v[6]), four_sums_of_four(v[1], v[3], v[5], v[7]));
        const Vec sums = _mm512_add_ps(a, _mm512_permute_ps(a, 0xb1));
        _mm256_storeu_ps(out, _mm512_castps512_ps256(_mm512_maskz_compress_ps(0x5555, sums)));
    } else if constexpr (count == 4) {
        const Vec four = four_sums_of_four(v[0], v[1], v[2], v[3]);
        const Vec two = _mm512_add_ps(four, _mm512_permute_ps(four, 0x4e));
        const Vec sums = _mm512_add_ps(two, _mm512_permute_ps(two, 0xb1));
        _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, sums)));
    } else {
        for (int i = 0; i < count; ++i) {
            out[i] = sum(v[i]);
        }
    }
}

#include "backend/cpu/lane_kernels.inc"

using namespace avx512; /* panels.h */

size_t multiply_scratch_bytes(int64_t columns) {
    const size_t floats = float_scratch_bytes(columns);
    return floats > kPanelScratchBytes ? floats : kPanelScratchBytes;
}

constexpr uint32_t kInstructionSet = DS4_ISA_AVX512;

#include "backend/cpu/kernel_table.inc"

} // namespace

const Kernels &avx512_kernels() {
    return kTable;
}

} // namespace ds4::backend::cpu

#endif
