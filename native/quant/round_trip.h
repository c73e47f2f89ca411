/* Roundings that the model was trained with: stored rows pass through 8-bit and 4-bit floats and back. In place. */
#pragma once

#include <cstdint>

namespace ds4::quant {

/* Groups of 64 (the last may be shorter): value -> E4M3 times a power of two per group. */
void fp8_round_trip(float *x, int64_t values);

/* Groups of 32 (the last may be shorter): value -> E2M1 times a power of two per group. */
void fp4_round_trip(float *x, int64_t values);

/* Walsh-Hadamard transform in natural order, divided by the square root of `values`, a power of two. */
void hadamard(float *x, int64_t values);

} // namespace ds4::quant
