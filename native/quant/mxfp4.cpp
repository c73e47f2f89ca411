/* MXFP4: 32 values of one sign, two exponent and one mantissa bit (E2M1), and a power of two. The table holds twice the
 * values so that it is one of integers; the power is halved to match. Code 8, minus zero, decodes to plus zero. */
#include <bit>

#include "quant/blocks.h"
#include "quant/dequantise.h"
#include "quant/mxfp4.h"

namespace ds4::quant {

/* 2^(exponent - 128), a subnormal for the two smallest exponents. */
float mxfp4_half_scale(uint8_t exponent) {
    const uint32_t bits = exponent < 2 ? 0x00200000u << exponent : (static_cast<uint32_t>(exponent) - 1u) << 23;
    return std::bit_cast<float>(bits);
}

void dequantise_mxfp4(const std::byte *row, int64_t values, float *out) {
    const auto *blocks = reinterpret_cast<const BlockMxfp4 *>(row);
    for (int64_t b = 0; b < values / 32; ++b) {
        const float scale = mxfp4_half_scale(blocks[b].exponent);
        for (int i = 0; i < 16; ++i) {
            const uint8_t pair = blocks[b].q[i];
            out[b * 32 + i] = static_cast<float>(kMxfp4Doubled[pair & 15]) * scale;
            out[b * 32 + 16 + i] = static_cast<float>(kMxfp4Doubled[pair >> 4]) * scale;
        }
    }
}

} // namespace ds4::quant
