/* What the kernels of project have in common: one file for few tokens (project_few.cu), one for many with activations in 8
 * bits (project_bytes.cu), one for float32 activations (project_floats.cu), and project.cu, which chooses. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/gpu/gpu_device.h"
#include "backend/gpu/launch.h"
#include "backend/gpu/products.h"

namespace ds4::backend::gpu {

/* Rows of one matrix with the inputs they meet: out[t * out_stride + r] = row r . x[t * x_stride ...]. */
struct Part {
    const std::byte *data;
    int64_t          row_bytes;
    int64_t          rows;
    const float     *x;
    int64_t          x_stride;
    float           *out;
    int64_t          out_stride;
    int32_t          input_row;    /* of activations in 8 bits: token t is row input_row + t * input_stride */
    int32_t          input_stride;
    int32_t          first_block;  /* the grid's blocks are shared out among the parts */
    Format           format;
};

/* Parts with the same number of columns, by value in a kernel's parameters. */
struct Parts {
    static constexpr int kMost = 8;
    Part    part[kMost];
    int32_t count;
    int64_t columns;
};

/* The part of this block. */
DS4_DEVICE int part_of_block(const Parts &parts) {
    int found = 0;
    for (int i = 1; i < parts.count; ++i) {
        found = static_cast<int>(blockIdx.x) >= parts.part[i].first_block ? i : found;
    }
    return found;
}

/* Up to 8 tokens at once; fewer where their activations do not fit the shared memory of a block, and 0 for none. */
int64_t few_tokens(const CardFacts &card, int64_t columns, std::span<const Part> parts);
/* All parts in one launch. */
void project_few(const Stream &stream, const CardFacts &card, Parts parts, int64_t tokens);

/* Up to so many tokens a matrix has too few wide tiles for the whole card. */
constexpr int64_t kThinTokens = 64;
/* Parts of one format, when it is one of floats and the tokens are few enough; else nothing happens and it is false. */
bool project_thin_floats(const Stream &stream, const Parts &parts, int64_t tokens);

/* Parts of one format, any number of tokens. */
void project_bytes(const Stream &stream, const CardFacts &card, Parts parts, int64_t tokens, const Activations &x);
void project_floats(const Stream &stream, const CardFacts &card, Parts parts, int64_t tokens);

} // namespace ds4::backend::gpu
