/* What the mixing weights of streams are made of: fn . streams and the sum of the squares, in partial sums. */
#pragma once

#include "backend/gpu/launch.h"
#include "backend/ops.h"

namespace ds4::backend::gpu {

constexpr int kMixRows = 8; /* rows of fn that a group holds */

/* The partial sums of a token: [slices][values], one value per row of fn, up to a multiple of kMixRows, then the sum of
 * the squares, which has the first place of kMixRows for itself. */
struct MixShape {
    int64_t tokens;
    int64_t columns; /* hc * width */
    int32_t rows;
    int32_t row_sets;
    int32_t slices;
    int32_t values;
    int32_t tokens_per_block;
};

DS4_DEVICE int square_place(int values) { return values - kMixRows; }

MixShape mix_shape(int64_t tokens, const Matrix &fn, uint32_t multiprocessors);
size_t   mix_bytes(const MixShape &shape, const Matrix &fn);
/* The most for fn of any type. */
size_t mix_bytes(int64_t tokens, int64_t columns, int64_t rows);

/* Partial sums at the beginning of `memory`, of which there are mix_bytes. The kernel that is launched next may read the
 * streams before it waits: this one has waited for them before it lets the next one start. */
void mix_streams(const Stream &stream, const float *streams, const Matrix &fn, const MixShape &shape, std::byte *memory);

} // namespace ds4::backend::gpu
