/* The codebook of IQ2_XXS: eight magnitudes at a time from a list of 256, and their signs. Only sign patterns with an
 * even number of minus signs exist, so seven bits name one: the eighth value's sign makes the count even. */
#pragma once

#include <cstdint>

namespace ds4::quant {

struct Iq2XxsTables {
    alignas(64) uint8_t grid[256][8]; /* each 8, 25 or 43 */
    alignas(64) int8_t sign[128][8];  /* +1 or -1 */
};

const Iq2XxsTables &iq2_xxs_tables();

} // namespace ds4::quant
