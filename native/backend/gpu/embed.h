/* Rows of a weight matrix as float32. */
#pragma once

#include "backend/gpu/launch.h"
#include "backend/ops.h"

namespace ds4::backend::gpu {

/* out[i, copy, :] = matrix[rows[i], :] for `copies` copies each; rows == nullptr: the first `count` rows in order. */
void expand_rows(const Stream &stream, const Matrix &matrix, const int32_t *rows, int64_t count, int64_t copies, float *out);

} // namespace ds4::backend::gpu
