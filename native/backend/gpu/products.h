/* What the products with weight matrices have in common: activations in 8 bits, in device memory or in the shared memory of
 * a block. The rounding is that of quant/activation.h, bit for bit. */
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/gpu/launch.h"
#include "backend/gpu/units.h"
#include "backend/ops.h"

namespace ds4::backend::gpu {

/* Whether project, grouped_project and experts take a matrix of this type. */
bool product_supports(quant::Type type);

/* Rows of activations in 8 bits. Scales lie unit by unit, so that those of neighbouring rows are neighbours. */
struct Activations {
    int8_t  *q;      /* [rows, columns], 16-byte aligned */
    float   *d;      /* [columns / 32 or 256, d_stride] */
    int16_t *sums;   /* [rows, columns / 16], of bytes_256 */
    int64_t  columns;
    int64_t  d_stride; /* rows rounded up to 4 */
};

/* `inputs` is bytes_32 or bytes_256. The memory is 256-byte aligned. */
size_t      activation_bytes(Inputs inputs, int64_t rows, int64_t columns);
Activations activations_at(std::byte *memory, Inputs inputs, int64_t rows, int64_t columns);

/* x: [rows] rows of `columns` values, `stride` values apart, both multiples of 4 and x 16-byte aligned. */
void quantise(const Stream &stream, Inputs inputs, const float *x, int64_t rows, int64_t columns, int64_t stride,
              const Activations &out);

/* ---- for kernels ----------------------------------------------------------------------------------- */

DS4_DEVICE uint32_t rounded_byte(float scaled) {
    /* Adding and taking away 1.5 * 2^23 rounds to an integer, halves to even. */
    const float rounded = scaled + 12582912.0f - 12582912.0f;
    const int   value = static_cast<int>(fminf(fmaxf(rounded, -128.0f), 127.0f));
    return static_cast<uint32_t>(value) & 255u;
}

DS4_DEVICE uint32_t rounded_bytes(float4 v, float inverse) {
    return rounded_byte(v.x * inverse) | rounded_byte(v.y * inverse) << 8 | rounded_byte(v.z * inverse) << 16 |
           rounded_byte(v.w * inverse) << 24;
}

constexpr float kLargestFloat = 3.4028234663852886e38f;

/* Not a number when one of the values is not finite, which maxima alone would hide. */
DS4_DEVICE float magnitude_of(float4 v) {
    const float poison = v.x * 0.0f + v.y * 0.0f + v.z * 0.0f + v.w * 0.0f;
    return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))) + poison;
}
DS4_DEVICE float larger_or_poison(float a, float b) { return a > b || a != a ? a : b; }

struct RoundedQuad {
    uint32_t word;
    float    d;
};

/* Four of a unit's 32 values per lane, eight neighbouring lanes per unit. By all lanes of a group. */
DS4_DEVICE RoundedQuad quantise_32(float4 v) {
    float largest = magnitude_of(v);
    for (int mask = 1; mask < 8; mask *= 2) {
        largest = larger_or_poison(largest, shuffle_xor(largest, mask));
    }
    const float d = largest / 127.0f;
    if (!(d > 0.0f)) {
        return {0, d};
    }
    return {rounded_bytes(v, fminf(1.0f / d, kLargestFloat)), d};
}

struct RoundedOctet {
    uint32_t first;  /* values 4 lane .. */
    uint32_t second; /* values 128 + 4 lane .. */
    float    d;
};

/* Eight of a unit's 256 values per lane: values 4 lane .. + 3, and 128 more. By all lanes of a group. */
DS4_DEVICE RoundedOctet quantise_256(float4 a, float4 b) {
    float largest = larger_or_poison(magnitude_of(a), magnitude_of(b));
    for (int mask = 1; mask < kLanes; mask *= 2) {
        largest = larger_or_poison(largest, shuffle_xor(largest, mask));
    }
    /* The first value of that magnitude decides the sign: its place and sign in one number, the smallest wins. */
    int         key = 1 << 20;
    const float values[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 7; i >= 0; --i) {
        const int place = (i < 4 ? 0 : 128) + 4 * lane() + i % 4;
        key = fabsf(values[i]) == largest ? 2 * place + (values[i] < 0.0f ? 1 : 0) : key;
    }
    for (int mask = 1; mask < kLanes; mask *= 2) {
        const int other = shuffle_xor(key, mask);
        key = other < key ? other : key;
    }
    if (!(largest > 0.0f)) {
        return {0, 0, largest};
    }
    const float extreme = (key & 1) != 0 ? -largest : largest;
    const float inverse = fminf(fmaxf(-127.0f / extreme, -kLargestFloat), kLargestFloat);
    return {rounded_bytes(a, inverse), rounded_bytes(b, inverse), 1.0f / inverse};
}

/* The sum of 16 values in every of the four lanes that have them. */
DS4_DEVICE int sum_of_16(uint32_t word) {
    int sum = dot4(static_cast<int>(word), 0x01010101, 0);
    sum += shuffle_xor(sum, 1);
    return sum + shuffle_xor(sum, 2);
}

DS4_DEVICE float4 load_floats4(const float *from) { return *reinterpret_cast<const float4 *>(from); }

/* One row by all threads of a block, a multiple of 32 values. words: [columns / 4], d: [columns / 32]. Loads go ahead of the
 * arithmetic, a few at a time: it is their latency that a kernel for one token waits for. */
DS4_DEVICE void quantise_row_32(const float *x, int64_t columns, uint32_t *words, float *d) {
    constexpr int kAhead = 2;
    const int     quads = static_cast<int>(columns / 4);
    const auto    step = static_cast<int>(blockDim.x);
    for (int first = group() * kLanes; first < quads; first += kAhead * step) {
        float4 v[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            const int quad = first + i * step + lane();
            v[i] = quad < quads ? load_floats4(x + 4 * quad) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            const int         quad = first + i * step + lane();
            const RoundedQuad rounded = quantise_32(v[i]);
            if (quad < quads) {
                words[quad] = rounded.word;
                if (quad % 8 == 0) {
                    d[quad / 8] = rounded.d;
                }
            }
        }
    }
}

/* The same for a multiple of 256 values; sums: [columns / 16]. */
DS4_DEVICE void quantise_row_256(const float *x, int64_t columns, uint32_t *words, float *d, int16_t *sums) {
    constexpr int kAhead = 2;
    const int     units = static_cast<int>(columns / 256);
    for (int first = group(); first < units; first += kAhead * groups()) {
        float4 a[kAhead], b[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            const int    unit = first + i * groups();
            const float *from = x + 256 * (unit < units ? unit : first) + 4 * lane();
            a[i] = load_floats4(from);
            b[i] = load_floats4(from + 128);
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            const int unit = first + i * groups();
            if (unit >= units) {
                break; /* the whole group */
            }
            const RoundedOctet rounded = quantise_256(a[i], b[i]);
            words[64 * unit + lane()] = rounded.first;
            words[64 * unit + 32 + lane()] = rounded.second;
            const int first_sum = sum_of_16(rounded.first);
            const int second_sum = sum_of_16(rounded.second);
            if (lane() % 4 == 0) {
                sums[16 * unit + lane() / 4] = static_cast<int16_t>(first_sum);
                sums[16 * unit + 8 + lane() / 4] = static_cast<int16_t>(second_sum);
            }
            if (lane() == 0) {
                d[unit] = rounded.d;
            }
        }
    }
}

} // namespace ds4::backend::gpu
