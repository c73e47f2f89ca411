#include "quant/activation.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace ds4::quant {

namespace {

int8_t round_to_byte(float scaled) {
    /* Adding and taking away 1.5 * 2^23 rounds to an integer, halves to even, in the default rounding mode. */
    constexpr float kMagic = 12582912.0f;
    return static_cast<int8_t>(std::clamp(scaled + kMagic - kMagic, -128.0f, 127.0f));
}

/* Largest magnitude; not a number as soon as one value is not finite. */
float largest_magnitude(const float *x, int values) {
    float largest = 0.0f;
    float poison = 0.0f;
    for (int i = 0; i < values; ++i) {
        poison += x[i] * 0.0f;
        largest = std::max(largest, std::fabs(x[i]));
    }
    return largest + poison;
}

} // namespace

void quantise_q8_32(const float *x, int64_t values, Q8Block32 *out) {
    for (int64_t b = 0; b < values / 32; ++b, x += 32) {
        const float largest = largest_magnitude(x, 32);
        const float d = largest / 127.0f;
        out[b].d = d;
        if (!(d > 0.0f)) {
            std::memset(out[b].q, 0, sizeof out[b].q);
            continue;
        }
        /* The inverse of a very small scale is not finite; such values are zero for every purpose. */
        const float inverse = std::min(1.0f / d, std::numeric_limits<float>::max());
        for (int i = 0; i < 32; ++i) {
            out[b].q[i] = round_to_byte(x[i] * inverse);
        }
    }
}

void quantise_q8_256(const float *x, int64_t values, Q8Block256 *out) {
    for (int64_t b = 0; b < values / 256; ++b, x += 256) {
        const float largest = largest_magnitude(x, 256);
        if (!(largest > 0.0f)) {
            out[b] = Q8Block256{};
            out[b].d = largest;
            continue;
        }
        float extreme = largest;
        for (int i = 0; i < 256; ++i) {
            if (std::fabs(x[i]) == largest) {
                extreme = x[i];
                break;
            }
        }
        const float limit = std::numeric_limits<float>::max();
        const float inverse = std::clamp(-127.0f / extreme, -limit, limit);
        out[b].d = 1.0f / inverse;
        for (int group = 0; group < 16; ++group) {
            int sum = 0;
            for (int i = 16 * group; i < 16 * group + 16; ++i) {
                out[b].q[i] = round_to_byte(x[i] * inverse);
                sum += out[b].q[i];
            }
            out[b].sums[group] = static_cast<int16_t>(sum);
        }
    }
}

} // namespace ds4::quant
