/* The inner loops, once per instruction set. A table of plain functions, so that code for a wide instruction set is
 * reached through a pointer only and never inlined or merged into code that must run on any processor.
 *
 * Every kernel computes a value in one order of operations, whatever the number of tokens, rows or heads it is given. */
#pragma once

#include <cstddef>
#include <cstdint>

#include "quant/type.h"

namespace ds4::backend::cpu {

/* y[t][y_offset + r] = weights[r] . x[t] for all rows and tokens. */
struct MultiplyJob {
    quant::Type        type;
    const std::byte   *weights; /* row 0 */
    int64_t            row_bytes;
    int64_t            rows;
    int64_t            columns;
    int64_t            tokens;
    const void *const *x; /* [tokens] float32 or prepared activations, 64-byte aligned if prepared */
    float *const      *y; /* [tokens] */
    int64_t            y_offset;
    std::byte         *scratch; /* [multiply_scratch_bytes(columns)], 64-byte aligned, of this thread */
};

/* How many heads attend() takes at a time at most. */
constexpr int kAttendHeads = 8;

/* Attention of `heads` heads of one token over a list of rows. */
struct AttendJob {
    int64_t             heads;
    int64_t             dim;
    int64_t             row_count;
    const float        *q;     /* [heads, dim] */
    const float *const *rows;  /* [row_count] */
    const float        *sinks; /* [heads] */
    float               scale;
    float              *out;     /* [heads, dim] */
    float              *weights; /* scratch [kAttendHeads, round_up(row_count, 16)] */
};

/* score[c] = sum over heads, in order, of weight[h] * max(0, q[h] . row[c]) */
struct IndexScoreJob {
    int64_t      heads;
    int64_t      dim;
    int64_t      row_count;
    const float *q;       /* [heads, dim] */
    const float *weights; /* [heads] scaled */
    const float *rows;    /* [row_count, dim] */
    float       *scores;  /* [row_count] */
};

/* Per channel: softmax over the slots of gate, weighted sum of key. */
struct PoolJob {
    int64_t             dim;
    int64_t             slots;
    const float *const *keys;  /* [slots], each [dim] */
    const float *const *gates; /* [slots] */
    float              *out;   /* [dim] */
};

struct Kernels {
    uint32_t instruction_set;

    /* Weights of any type, expanded to float32, with float32 x. */
    void (*multiply_float)(const MultiplyJob &job);
    /* Q8_0 and MXFP4 with x prepared by quantise_32. */
    void (*multiply_32)(const MultiplyJob &job);
    /* Q2_K, Q4_K, Q5_K, Q6_K and IQ2_XXS with x prepared by quantise_256. */
    void (*multiply_256)(const MultiplyJob &job);
    size_t (*multiply_scratch_bytes)(int64_t columns);

    /* Rows are best handed out in multiples of this. */
    int64_t panel_rows;

    /* Bytes of one prepared token (a multiple of 64), and the preparation itself. */
    size_t (*bytes_32)(int64_t columns);
    size_t (*bytes_256)(int64_t columns);
    void (*quantise_32)(const float *x, int64_t columns, std::byte *out);
    void (*quantise_256)(const float *x, int64_t columns, std::byte *out);

    /* 1 / sqrt(mean of squares + epsilon) */
    float (*inverse_rms)(const float *x, int64_t width, float epsilon);
    /* out = x * scale * weight; weight may be nullptr for 1, out may be x. */
    void (*scale)(const float *x, const float *weight, float scale, int64_t width, float *out);
    /* Interleaved pairs (a, b) -> (a cos - b sin, a sin + b cos), in place. */
    void (*rotate)(float *x, const float *cosine, const float *sine, int64_t pairs);
    /* (a, b) -> (a cos + b sin, b cos - a sin) */
    void (*rotate_back)(float *x, const float *cosine, const float *sine, int64_t pairs);
    void (*fp8_round_trip)(float *x, int64_t values);
    void (*fp4_round_trip)(float *x, int64_t values);
    void (*hadamard)(float *x, int64_t values);

    /* out[d] = sum over s, in order, of weights[s] * streams[s][d] */
    void (*collapse)(const float *streams, const float *weights, int64_t hc, int64_t width, float *out);
    /* streams[b][d] = post[b] * y[d] + sum over a, in order, of comb[a][b] * streams[a][d], in place */
    void (*expand)(float *streams, const float *y, const float *post, const float *comb, int64_t hc, int64_t width);

    /* out = weight * silu(min(gate, clamp)) * clip(up, -clamp, clamp); out may be gate or up. Not-a-number passes. */
    void (*gated)(const float *gate, const float *up, float clamp, float weight, int64_t width, float *out);
    void (*add)(float *out, const float *x, int64_t width); /* out += x */

    void (*attend)(const AttendJob &job);
    void (*index_scores)(const IndexScoreJob &job);
    void (*pool)(const PoolJob &job);
};

const Kernels &plain_kernels();
const Kernels &avx2_kernels();   /* x86-64 only, and only on a processor that has it */
const Kernels &avx512_kernels(); /* likewise */

/* The table of a DS4_ISA_* this machine has. */
const Kernels &kernels_of(uint32_t instruction_set);

} // namespace ds4::backend::cpu
