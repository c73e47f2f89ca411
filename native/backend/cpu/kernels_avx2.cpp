/* Kernels for AVX2 with FMA and F16C. This file and panels_avx2.cpp are the only ones compiled for it; they are reached
 * through the table alone. As in kernels_avx512.cpp everything has internal linkage and nothing of the standard library
 * is used, because the linker could keep this file's copy of an inline function for processors that do not know these
 * instructions. */
#if defined(__x86_64__)

#include "backend/cpu/kernels.h"
#include "backend/cpu/panels.h"

#include <immintrin.h>

#include "include/ds4.h"
#include "quant/dequantise.h"

namespace ds4::backend::cpu {

namespace {

using Vec = __m256;

constexpr int kLanes = 8;
constexpr int kDotRows = 4;
constexpr int kDotTokens = 2;
constexpr int kManyHeads = 4;
constexpr int kFewHeads = 2;
constexpr int kMixVectors = 2;

Vec zero() {
    return _mm256_setzero_ps();
}

Vec splat(float x) {
    return _mm256_set1_ps(x);
}

Vec load(const float *p) {
    return _mm256_loadu_ps(p);
}

void store(float *p, Vec v) {
    _mm256_storeu_ps(p, v);
}

__m256i first_lanes(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

Vec load_part(const float *p, int n) {
    return _mm256_maskload_ps(p, first_lanes(n));
}

void store_part(float *p, Vec v, int n) {
    _mm256_maskstore_ps(p, first_lanes(n), v);
}

Vec load_f16(const uint16_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
}

Vec load_bf16(const uint16_t *p) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i *>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

Vec multiply_add(Vec a, Vec b, Vec c) {
    return _mm256_fmadd_ps(a, b, c);
}

/* The second operand is what these give when one of the two is not a number. */
Vec at_least(Vec v, Vec low) {
    return _mm256_max_ps(low, v);
}

Vec at_most(Vec v, Vec high) {
    return _mm256_min_ps(high, v);
}

Vec largest(Vec a, Vec b) {
    return _mm256_max_ps(a, b);
}

Vec round_to_integer(Vec v) {
    return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

Vec times_power_of_two(Vec v, Vec n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(v, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}

Vec zero_below(Vec x, Vec low, Vec v) {
    return _mm256_andnot_ps(_mm256_cmp_ps(x, low, _CMP_LT_OQ), v);
}

float sum(Vec v) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

float peak(Vec v) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

/* The first level of sum() of two vectors: four partial sums of a, then of b. */
Vec halve(Vec a, Vec b) {
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

/* The second level: two partial sums each of a, c, b, d. */
Vec quarter(Vec ab, Vec cd) {
    const __m256d p = _mm256_castps_pd(ab);
    const __m256d q = _mm256_castps_pd(cd);
    return _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(p, q)), _mm256_castpd_ps(_mm256_unpackhi_pd(p, q)));
}

template <int count> void sum_many(const Vec *v, float *out) {
    if constexpr (count == 8) {
        const Vec x = quarter(halve(v[0], v[4]), halve(v[1], v[5]));
        const Vec y = quarter(halve(v[2], v[6]), halve(v[3], v[7]));
        _mm256_storeu_ps(out, _mm256_add_ps(_mm256_shuffle_ps(x, y, 0x88), _mm256_shuffle_ps(x, y, 0xdd)));
    } else if constexpr (count == 4) {
        const Vec x = quarter(halve(v[0], v[2]), halve(v[1], v[3]));
        const Vec sums = _mm256_add_ps(_mm256_shuffle_ps(x, x, 0x88), _mm256_shuffle_ps(x, x, 0xdd));
        _mm_storeu_ps(out, _mm_movelh_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1)));
    } else {
        for (int i = 0; i < count; ++i) {
            out[i] = sum(v[i]);
        }
    }
}

#include "backend/cpu/lane_kernels.inc"

using namespace avx2; /* panels.h */

size_t multiply_scratch_bytes(int64_t columns) {
    const size_t floats = float_scratch_bytes(columns);
    return floats > kPanelScratchBytes ? floats : kPanelScratchBytes;
}

constexpr uint32_t kInstructionSet = DS4_ISA_AVX2;

#include "backend/cpu/kernel_table.inc"

} // namespace

const Kernels &avx2_kernels() {
    return kTable;
}

} // namespace ds4::backend::cpu

#endif
