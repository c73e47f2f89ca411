/* The mixing matrix of a token's streams. */
#pragma once

#include <cstdint>

namespace ds4::backend::cpu {

/* comb [hc, hc] (source, destination), logits in, matrix out: softmax over the destinations of each source plus
 * epsilon, then rows and columns are divided by their sums plus epsilon in turn, `iterations` times, beginning and
 * ending with the columns. */
void balance(float *comb, int64_t hc, int64_t iterations, float epsilon);

} // namespace ds4::backend::cpu
