/* What the programs that measure a card share. */
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "backend/gpu/gpu.h"

namespace bench {

using namespace ds4::backend::gpu;

inline void check(gpuError_t error, const char *what) {
    if (error != gpuSuccess) {
        std::fprintf(stderr, "cannot %s: %s\n", what, gpuGetErrorString(error));
        std::exit(1);
    }
}

/* Every lane keeps several 16-byte loads in flight; the sum is stored only so that the loads stay. */
__global__ void read_all(const uint4 *from, size_t count, uint32_t *sink) {
    constexpr int  kAtOnce = 8;
    const size_t   lanes = static_cast<size_t>(gridDim.x) * blockDim.x;
    size_t         at = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    uint32_t       sum = 0;
    for (; at + (kAtOnce - 1) * lanes < count; at += kAtOnce * lanes) {
        uint4 values[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            values[i] = from[at + i * lanes];
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            sum += values[i].x ^ values[i].y ^ values[i].z ^ values[i].w;
        }
    }
    if (sum == 0x12345678u) {
        *sink = sum;
    }
}

/* The best of several runs, in GB/s. */
template <typename Body> double rate(double bytes, Body &&body) {
    double best = 0.0;
    for (int round = 0; round < 6; ++round) {
        check(gpuDeviceSynchronize(), "wait");
        const auto start = std::chrono::steady_clock::now();
        body();
        check(gpuDeviceSynchronize(), "wait");
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
        best = std::max(best, bytes / seconds.count() / 1e9);
    }
    return best;
}

} // namespace bench
