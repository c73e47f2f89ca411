/* The packed scales of Q4_K and Q5_K: eight pairs of 6-bit numbers in 12 bytes. Bytes 0..3 and 4..7 hold scales and
 * minima 0..3 in their low six bits; bytes 8..11 hold the low four bits of scales (low nibble) and minima (high nibble)
 * 4..7, whose two high bits sit on top of bytes 0..3 and 4..7. Baseline code only, like half.h. */
#pragma once

#include <cstdint>

namespace ds4::quant {

struct ScaleAndMin {
    uint8_t scale;
    uint8_t min;
};

inline ScaleAndMin unpack_k_scale(const uint8_t *packed, int group) {
    if (group < 4) {
        return {static_cast<uint8_t>(packed[group] & 63), static_cast<uint8_t>(packed[group + 4] & 63)};
    }
    return {static_cast<uint8_t>((packed[group + 4] & 15) | (packed[group - 4] >> 6) << 4),
            static_cast<uint8_t>((packed[group + 4] >> 4) | (packed[group] >> 6) << 4)};
}

} // namespace ds4::quant
