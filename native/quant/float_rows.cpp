/* F16 and BF16: no blocks, one value after another. */
#include "quant/dequantise.h"
#include "quant/half.h"

namespace ds4::quant {

void dequantise_f16(const std::byte *row, int64_t values, float *out) {
    const auto *halves = reinterpret_cast<const uint16_t *>(row);
    for (int64_t i = 0; i < values; ++i) {
        out[i] = f16_to_f32(halves[i]);
    }
}

void dequantise_bf16(const std::byte *row, int64_t values, float *out) {
    const auto *halves = reinterpret_cast<const uint16_t *>(row);
    for (int64_t i = 0; i < values; ++i) {
        out[i] = bf16_to_f32(halves[i]);
    }
}

} // namespace ds4::quant
