/* IQ2_XXS: per 32 values four grid indices, four sign indices and a scale of 4 bits that counts in steps of a quarter,
 * starting at an eighth. */
#include "quant/blocks.h"
#include "quant/dequantise.h"
#include "quant/half.h"
#include "quant/iq2_xxs_grid.h"

namespace ds4::quant {

void dequantise_iq2_xxs(const std::byte *row, int64_t values, float *out) {
    const auto         *blocks = reinterpret_cast<const BlockIq2Xxs *>(row);
    const Iq2XxsTables &tables = iq2_xxs_tables();
    for (int64_t b = 0; b < values / 256; ++b) {
        const float d = f16_to_f32(blocks[b].d);
        for (int group = 0; group < 8; ++group) {
            const uint16_t *packed = blocks[b].q + 4 * group;
            const uint32_t  indices = packed[0] | static_cast<uint32_t>(packed[1]) << 16;
            const uint32_t  signs = packed[2] | static_cast<uint32_t>(packed[3]) << 16;
            const float     scale = d * (0.5f + static_cast<float>(signs >> 28)) * 0.25f;
            for (int part = 0; part < 4; ++part) {
                const uint8_t *grid = tables.grid[indices >> (8 * part) & 255];
                const int8_t  *sign = tables.sign[signs >> (7 * part) & 127];
                for (int i = 0; i < 8; ++i) {
                    *out++ = scale * static_cast<float>(grid[i]) * static_cast<float>(sign[i]);
                }
            }
        }
    }
}

} // namespace ds4::quant
