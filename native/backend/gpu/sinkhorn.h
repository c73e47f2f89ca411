/* The mixing matrix of a token's streams: what backend/cpu/sinkhorn.h describes, by a group of 32 lanes. */
#pragma once

#include "backend/gpu/gpu.h"

namespace ds4::backend::gpu {

/* 1 / x of an ordinary sum, right to the last bit or next to it: one instruction where the exact one takes a sequence, and the
 * steps below wait for one reciprocal after the other. */
DS4_DEVICE float reciprocal(float x) {
#if defined(__CUDA_ARCH__)
    return __fdividef(1.0f, x);
#elif defined(__HIP_DEVICE_COMPILE__)
    return __builtin_amdgcn_rcpf(x);
#else
    return 1.0f / x;
#endif
}

/* Four streams: every lane holds the whole matrix (source, destination) and computes the same. The lanes have nothing
 * better to do, and no step waits for a shuffle. */
DS4_DEVICE void balance_four(float (&comb)[4][4], int iterations, float epsilon) {
#pragma unroll
    for (int a = 0; a < 4; ++a) {
        const float highest = fmaxf(fmaxf(comb[a][0], comb[a][1]), fmaxf(comb[a][2], comb[a][3]));
        float       total = 0.0f;
#pragma unroll
        for (int b = 0; b < 4; ++b) {
            comb[a][b] = expf(comb[a][b] - highest);
            total += comb[a][b];
        }
#pragma unroll
        for (int b = 0; b < 4; ++b) {
            comb[a][b] = comb[a][b] / total + epsilon;
        }
    }
    for (int i = 0;; ++i) {
#pragma unroll
        for (int b = 0; b < 4; ++b) {
            const float inverse = reciprocal(epsilon + comb[0][b] + comb[1][b] + comb[2][b] + comb[3][b]);
#pragma unroll
            for (int a = 0; a < 4; ++a) {
                comb[a][b] *= inverse;
            }
        }
        if (i + 1 >= iterations) {
            return;
        }
#pragma unroll
        for (int a = 0; a < 4; ++a) {
            const float inverse = reciprocal(epsilon + comb[a][0] + comb[a][1] + comb[a][2] + comb[a][3]);
#pragma unroll
            for (int b = 0; b < 4; ++b) {
                comb[a][b] *= inverse;
            }
        }
    }
}

/* Divides each of `hc` lines by its sum: a lane per line, whose values are `step` apart. */
DS4_DEVICE void divide_lines(float *comb, int hc, int line_step, int step, float epsilon) {
    if (lane() < hc) {
        float *line = comb + lane() * line_step;
        float  total = epsilon;
        for (int i = 0; i < hc; ++i) {
            total += line[i * step];
        }
        const float inverse = reciprocal(total);
        for (int i = 0; i < hc; ++i) {
            line[i * step] *= inverse;
        }
    }
    sync_group();
}

/* Up to 32 streams, in shared memory of the group. Call after sync_group; visible to the group when it returns. */
DS4_DEVICE void balance_any(float *comb, int hc, int iterations, float epsilon) {
    if (lane() < hc) {
        float *row = comb + lane() * hc;
        float  highest = row[0];
        for (int b = 1; b < hc; ++b) {
            highest = fmaxf(row[b], highest);
        }
        float total = 0.0f;
        for (int b = 0; b < hc; ++b) {
            row[b] = expf(row[b] - highest);
            total += row[b];
        }
        for (int b = 0; b < hc; ++b) {
            row[b] = row[b] / total + epsilon;
        }
    }
    sync_group();
    divide_lines(comb, hc, 1, hc, epsilon);
    for (int i = 1; i < iterations; ++i) {
        divide_lines(comb, hc, hc, 1, epsilon);
        divide_lines(comb, hc, 1, hc, epsilon);
    }
}

} // namespace ds4::backend::gpu
