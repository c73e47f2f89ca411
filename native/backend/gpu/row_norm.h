/* The root mean square of a row that a block holds in its registers. */
#pragma once

#include "backend/gpu/gpu.h"

namespace ds4::backend::gpu {

/* Threads of a block that normalises rows of this width, four values or more each. It depends on nothing else, because
 * the order of the sum does. */
inline unsigned row_threads(int64_t width) {
    constexpr int64_t kMost = 512;
    const int64_t     threads = (width / 4 + kLanes - 1) / kLanes * kLanes;
    return static_cast<unsigned>(threads < kLanes ? kLanes : threads > kMost ? kMost : threads);
}

/* 1 / sqrt(mean + epsilon), where `squares` is the sum of the squares of each thread's own values. To be called once in a
 * kernel, by the whole block. */
DS4_DEVICE float inverse_rms_of_block(float squares, int64_t width, float epsilon) {
    __shared__ float of_group[32];
    float            total = group_sum(squares);
    if (groups() > 1) {
        if (lane() == 0) {
            of_group[group()] = total;
        }
        sync_block();
        total = 0.0f;
        for (int i = 0; i < groups(); ++i) {
            total += of_group[i];
        }
    }
    return 1.0f / sqrtf(total / static_cast<float>(width) + epsilon);
}

} // namespace ds4::backend::gpu
