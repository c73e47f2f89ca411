/* Q2_K, Q4_K, Q5_K, Q6_K: blocks of 256 values in groups of 16 or 32. Each group has a small integer scale (and, but for
 * Q6_K, a minimum); the block has the float scales of these integers. */
#include "quant/blocks.h"
#include "quant/dequantise.h"
#include "quant/half.h"
#include "quant/k_scales.h"

namespace ds4::quant {

void dequantise_q2_k(const std::byte *row, int64_t values, float *out) {
    const auto *blocks = reinterpret_cast<const BlockQ2K *>(row);
    for (int64_t b = 0; b < values / 256; ++b) {
        const BlockQ2K &block = blocks[b];
        const float     d = f16_to_f32(block.d);
        const float     dmin = f16_to_f32(block.dmin);
        for (int group = 0; group < 16; ++group) {
            /* Half of the block, which two bits of a byte, which 16 of the 32 bytes. */
            const int   half = group / 8;
            const int   shift = 2 * (group % 8 / 2);
            const int   first = 32 * half + 16 * (group % 2);
            const float scale = d * static_cast<float>(block.scales[group] & 15);
            const float min = dmin * static_cast<float>(block.scales[group] >> 4);
            for (int i = 0; i < 16; ++i) {
                *out++ = scale * static_cast<float>((block.q[first + i] >> shift) & 3) - min;
            }
        }
    }
}

void dequantise_q4_k(const std::byte *row, int64_t values, float *out) {
    const auto *blocks = reinterpret_cast<const BlockQ4K *>(row);
    for (int64_t b = 0; b < values / 256; ++b) {
        const BlockQ4K &block = blocks[b];
        const float     d = f16_to_f32(block.d);
        const float     dmin = f16_to_f32(block.dmin);
        for (int group = 0; group < 8; ++group) {
            const ScaleAndMin packed = unpack_k_scale(block.scales, group);
            const float       scale = d * static_cast<float>(packed.scale);
            const float       min = dmin * static_cast<float>(packed.min);
            const int         shift = 4 * (group % 2);
            for (int i = 0; i < 32; ++i) {
                *out++ = scale * static_cast<float>((block.q[32 * (group / 2) + i] >> shift) & 15) - min;
            }
        }
    }
}

void dequantise_q5_k(const std::byte *row, int64_t values, float *out) {
    const auto *blocks = reinterpret_cast<const BlockQ5K *>(row);
    for (int64_t b = 0; b < values / 256; ++b) {
        const BlockQ5K &block = blocks[b];
        const float     d = f16_to_f32(block.d);
        const float     dmin = f16_to_f32(block.dmin);
        for (int group = 0; group < 8; ++group) {
            const ScaleAndMin packed = unpack_k_scale(block.scales, group);
            const float       scale = d * static_cast<float>(packed.scale);
            const float       min = dmin * static_cast<float>(packed.min);
            const int         shift = 4 * (group % 2);
            for (int i = 0; i < 32; ++i) {
                const int low = (block.q[32 * (group / 2) + i] >> shift) & 15;
                const int high = (block.high[i] >> group) & 1;
                *out++ = scale * static_cast<float>(low + 16 * high) - min;
            }
        }
    }
}

void dequantise_q6_k(const std::byte *row, int64_t values, float *out) {
    const auto *blocks = reinterpret_cast<const BlockQ6K *>(row);
    for (int64_t b = 0; b < values / 256; ++b) {
        const BlockQ6K &block = blocks[b];
        const float     d = f16_to_f32(block.d);
        for (int half = 0; half < 2; ++half) {
            for (int quarter = 0; quarter < 4; ++quarter) {
                for (int i = 0; i < 32; ++i) {
                    const int   low = block.low[64 * half + 32 * (quarter % 2) + i] >> (4 * (quarter / 2)) & 15;
                    const int   high = block.high[32 * half + i] >> (2 * quarter) & 3;
                    const float scale = d * static_cast<float>(block.scales[8 * half + 2 * quarter + i / 16]);
                    *out++ = scale * static_cast<float>((low | high << 4) - 32);
                }
            }
        }
    }
}

} // namespace ds4::quant
