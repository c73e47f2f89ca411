/* The roundings of quant/round_trip.h on a card: equal inputs give equal bits. Included by kernels only. */
#pragma once

#include "backend/gpu/gpu.h"

namespace ds4::backend::gpu {

/* The smallest power of two that is not below x, from the bits. */
DS4_DEVICE float power_of_two_at_least(float x) {
    const uint32_t bits = bits_as<uint32_t>(x);
    uint32_t       exponent = (bits >> 23) + ((bits & 0x7fffffu) != 0 ? 1u : 0u);
    exponent = exponent < 1u ? 1u : exponent > 254u ? 254u : exponent;
    return bits_as<float>(exponent << 23);
}

/* Nearest value of a float format with `mantissa` explicit mantissa bits, smallest normal exponent `least` and largest value
 * `max`; ties to even. Not-a-number passes. */
template <int mantissa, int least> DS4_DEVICE float round_to_format(float x, float max) {
    x = x > max ? max : x;
    x = x < -max ? -max : x;
    const uint32_t exponent = bits_as<uint32_t>(x) >> 23 & 255u;
    constexpr auto kLeast = static_cast<uint32_t>(127 + least);
    const uint32_t bounded = exponent > kLeast ? exponent : kLeast;
    const float    spacing = bits_as<float>((bounded - mantissa) << 23);
    const float    inverse = bits_as<float>((254u - (bounded - mantissa)) << 23);
    constexpr float kMagic = 12582912.0f; /* adding 1.5 * 2^23 leaves no bits below one */
    return (x * inverse + kMagic - kMagic) * spacing;
}

/* Largest value, and least magnitude that a piece's scale is chosen for. */
template <int mantissa, int least> struct SmallFloat;
template <> struct SmallFloat<3, -6> { /* E4M3 */
    static constexpr float kMax = 448.0f;
    static constexpr float kFloor = 1e-4f;
};
template <> struct SmallFloat<1, 0> { /* E2M1 */
    static constexpr float kMax = 6.0f;
    static constexpr float kFloor = 6.0f * 0x1p-126f;
};

/* To the format and back with the scale of a piece whose largest magnitude, or kFloor if that is more, is `largest`. */
template <int mantissa, int least, int count> DS4_DEVICE void round_trip_values(float (&value)[count], float largest) {
    constexpr float kMax = SmallFloat<mantissa, least>::kMax;
    const float     scale = power_of_two_at_least(largest / kMax);
    const float     inverse = 1.0f / scale;
#pragma unroll
    for (int i = 0; i < count; ++i) {
        value[i] = round_to_format<mantissa, least>(value[i] * inverse, kMax) * scale;
    }
}

/* One piece of at most 32 * per_lane values, held by a group of 32 lanes in any order. A lane without a value passes 0. */
template <int mantissa, int least, int per_lane> DS4_DEVICE void round_trip_piece(float (&value)[per_lane]) {
    float largest = SmallFloat<mantissa, least>::kFloor;
#pragma unroll
    for (int i = 0; i < per_lane; ++i) {
        largest = fmaxf(largest, fabsf(value[i]));
    }
    round_trip_values<mantissa, least>(value, group_max(largest));
}

/* A row in memory that all lanes of `groups` groups of 32 lanes share; this one is group `group` of them, and each takes
 * every groups-th piece of 32 * per_lane values. All lanes of a group take part. There is no barrier inside: the row has to
 * be visible before and becomes visible to others after the caller's next barrier. */
template <int mantissa, int least, int per_lane>
DS4_DEVICE void round_trip_row(float *x, int values, int group, int groups) {
    constexpr int kPiece = kLanes * per_lane;
    for (int first = group * kPiece; first < values; first += groups * kPiece) {
        float value[per_lane];
        for (int i = 0; i < per_lane; ++i) {
            const int at = first + i * kLanes + lane();
            value[i] = at < values ? x[at] : 0.0f;
        }
        round_trip_piece<mantissa, least, per_lane>(value);
        for (int i = 0; i < per_lane; ++i) {
            const int at = first + i * kLanes + lane();
            if (at < values) {
                x[at] = value[i];
            }
        }
    }
}

/* Pieces of 64 values to E4M3 and back. By one group of 32 lanes: group 0 of 1. */
DS4_DEVICE void fp8_round_trip(float *x, int values, int group = 0, int groups = 1) {
    round_trip_row<3, -6, 2>(x, values, group, groups);
}

/* Pieces of 32 values to E2M1 and back. */
DS4_DEVICE void fp4_round_trip(float *x, int values, int group = 0, int groups = 1) {
    round_trip_row<1, 0, 1>(x, values, group, groups);
}

/* Walsh-Hadamard transform of a row in memory, divided by the square root of `values`, a power of two, by one group of 32
 * lanes; what they wrote before is seen, and all of them see the result. The sums of a stage do not depend on each other, so
 * their order does not matter. */
DS4_DEVICE void hadamard(float *x, int values) {
    for (int stride = 1; stride < values; stride *= 2) {
        sync_group();
        for (int pair = lane(); pair < values / 2; pair += kLanes) {
            const int   i = pair / stride * 2 * stride + pair % stride;
            const float a = x[i];
            const float b = x[i + stride];
            x[i] = a + b;
            x[i + stride] = a - b;
        }
    }
    sync_group();
    const float scale = 1.0f / sqrtf(static_cast<float>(values));
    for (int i = lane(); i < values; i += kLanes) {
        x[i] *= scale;
    }
    sync_group();
}

} // namespace ds4::backend::gpu
