#include "quant/round_trip.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace ds4::quant {

namespace {

/* The smallest power of two that is not below x, from the bits: logarithms are off by one next to a power. */
float power_of_two_at_least(float x) {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    const uint32_t exponent = (bits >> 23) + ((bits & 0x7fffffu) != 0 ? 1u : 0u);
    return std::bit_cast<float>(std::clamp(exponent, 1u, 254u) << 23);
}

/* A small float format with `mantissa` explicit mantissa bits, smallest normal exponent `least` and largest value `max`:
 * the spacing around x is a power of two, and rounding x to a multiple of it, halves to even, is rounding to the
 * nearest code, ties to the even code. */
template <int mantissa, int least> float round_to_format(float x, float max) {
    /* Comparisons in this order let not-a-number through: it has to reach the logits and be noticed. */
    x = x > max ? max : x;
    x = x < -max ? -max : x;
    const uint32_t exponent = std::bit_cast<uint32_t>(x) >> 23 & 255u;
    const uint32_t bounded = std::max(exponent, static_cast<uint32_t>(127 + least));
    const float    spacing = std::bit_cast<float>((bounded - mantissa) << 23);
    const float    inverse = std::bit_cast<float>((254u - (bounded - mantissa)) << 23);
    constexpr float kMagic = 12582912.0f; /* adding 1.5 * 2^23 leaves no bits below one */
    return (x * inverse + kMagic - kMagic) * spacing;
}

template <int mantissa, int least> void round_trip(float *x, int64_t values, int64_t group, float floor, float max) {
    for (int64_t first = 0; first < values; first += group) {
        const int64_t last = std::min(values, first + group);
        float         largest = floor;
        for (int64_t i = first; i < last; ++i) {
            largest = std::max(largest, std::fabs(x[i]));
        }
        const float scale = power_of_two_at_least(largest / max);
        const float inverse = 1.0f / scale;
        for (int64_t i = first; i < last; ++i) {
            x[i] = round_to_format<mantissa, least>(x[i] * inverse, max) * scale;
        }
    }
}

} // namespace

void fp8_round_trip(float *x, int64_t values) {
    round_trip<3, -6>(x, values, 64, 1e-4f, 448.0f);
}

void fp4_round_trip(float *x, int64_t values) {
    round_trip<1, 0>(x, values, 32, 6.0f * 0x1p-126f, 6.0f);
}

void hadamard(float *x, int64_t values) {
    for (int64_t stride = 1; stride < values; stride *= 2) {
        for (int64_t block = 0; block < values; block += 2 * stride) {
            for (int64_t i = block; i < block + stride; ++i) {
                const float a = x[i];
                const float b = x[i + stride];
                x[i] = a + b;
                x[i + stride] = a - b;
            }
        }
    }
    const float scale = 1.0f / std::sqrt(static_cast<float>(values));
    for (int64_t i = 0; i < values; ++i) {
        x[i] *= scale;
    }
}

} // namespace ds4::quant
