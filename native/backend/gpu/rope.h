/* Rotations of vectors, as backend/cpu/rope_angles.cpp means them. Included by kernels only. */
#pragma once

#include "backend/gpu/gpu.h"
#include "backend/gpu/gpu_ops.h"

namespace ds4::backend::gpu {

struct Angle {
    float cosine;
    float sine;
};

/* The angle of a pair at a position. The product is formed in float32, as the model's own code does; sine and cosine are
 * those of the whole product, however large it is: the card's quick approximations are wrong far from zero. */
DS4_DEVICE Angle angle_of(const RopeTable &rope, uint64_t position, int pair) {
    const float angle = static_cast<float>(position) * rope.frequency[pair];
    Angle       result;
    sincosf(angle, &result.sine, &result.cosine);
    return result;
}

/* (a, b) -> (a cos - b sin, a sin + b cos), with both products rounded. */
DS4_DEVICE void rotate_pair(float &a, float &b, Angle angle) {
    const float x = a;
    const float y = b;
    a = x * angle.cosine - y * angle.sine;
    b = x * angle.sine + y * angle.cosine;
}

DS4_DEVICE void rotate_pair_back(float &a, float &b, Angle angle) {
    const float x = a;
    const float y = b;
    a = x * angle.cosine + y * angle.sine;
    b = y * angle.cosine - x * angle.sine;
}

/* Rotates `x`, the last 2 * rope.pairs values of a vector, in place. Turns pairs
 * first, first + step, ... only, so that lanes can share the work; there is no barrier inside. */
DS4_DEVICE void rotate(float *x, const RopeTable &rope, uint64_t position, int first, int step) {
    for (int i = first; i < rope.pairs; i += step) {
        rotate_pair(x[2 * i], x[2 * i + 1], angle_of(rope, position, i));
    }
}

} // namespace ds4::backend::gpu
