/* Q8_0: 32 signed bytes and their scale, x = d * q. */
#include "quant/blocks.h"
#include "quant/dequantise.h"
#include "quant/half.h"

namespace ds4::quant {

void dequantise_q8_0(const std::byte *row, int64_t values, float *out) {
    const auto *blocks = reinterpret_cast<const BlockQ8_0 *>(row);
    for (int64_t b = 0; b < values / 32; ++b) {
        const float d = f16_to_f32(blocks[b].d);
        for (int i = 0; i < 32; ++i) {
            out[b * 32 + i] = d * static_cast<float>(blocks[b].q[i]);
        }
    }
}

} // namespace ds4::quant
