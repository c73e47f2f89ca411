/* Numbers of the MXFP4 format that decoders and dot products share. */
#pragma once

#include <cstdint>

namespace ds4::quant {

/* Twice the value of each 4-bit code. */
constexpr int8_t kMxfp4Doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* What a doubled value is multiplied with: 2^(exponent - 128). */
float mxfp4_half_scale(uint8_t exponent);

} // namespace ds4::quant
