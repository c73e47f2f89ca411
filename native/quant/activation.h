/* 8-bit activations, in plain C++: the definition that every instruction set has to reproduce. */
#pragma once

#include <cstdint>

#include "quant/blocks.h"

namespace ds4::quant {

/* Per 32 values: d = max |x| / 127, q = rint(x / d), halves to even. `values` is a multiple of 32. A block with a value
 * that is not finite becomes one whose scale is not a number, so that it shows in the result. */
void quantise_q8_32(const float *x, int64_t values, Q8Block32 *out);

/* Per 256 values: the value m with the largest magnitude (the first of equals) becomes -127, d = -m / 127. `values` is a
 * multiple of 256. Not-finite values as above. */
void quantise_q8_256(const float *x, int64_t values, Q8Block256 *out);

} // namespace ds4::quant
