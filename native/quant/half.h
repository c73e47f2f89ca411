/* Conversions of the two 16-bit float formats, exact for every bit pattern. Only for code compiled for the baseline:
 * an inline function of this file inside a SIMD file could be merged into code that must run anywhere. */
#pragma once

#include <bit>
#include <cstdint>

namespace ds4::quant {

inline float f16_to_f32(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
    const uint32_t magnitude = half & 0x7fffu;
    if (magnitude >= 0x7c00u) {
        /* Infinity, or not-a-number, which becomes a quiet one as in the processor's own conversion. */
        const uint32_t quiet = magnitude > 0x7c00u ? 0x400000u : 0u;
        return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13 | quiet);
    }
    /* The exponent field moves by 127 - 15; multiplying does it for subnormals too, exactly. */
    const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | sign);
}

inline float bf16_to_f32(uint16_t half) {
    return std::bit_cast<float>(static_cast<uint32_t>(half) << 16);
}

} // namespace ds4::quant
