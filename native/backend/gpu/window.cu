/* Raw rows: norm, rotation, FP8 round trip of what is not rotated, then into the ring. */
#include "backend/gpu/gpu_ops.h"
#include "backend/gpu/rope.h"
#include "backend/gpu/round_trip.h"

namespace ds4::backend::gpu {

namespace {

constexpr int kPiece = 4 * kLanes;
constexpr int kMostPieces = 4;
constexpr int kRoundedTogether = 64; /* values with one scale, quant/round_trip.h */

struct WindowRows {
    int32_t      dim;
    Position     at;
    RopeTable    rope;
    const float *kv;   /* [tokens, dim] */
    const float *norm; /* [dim] */
    float        epsilon;
    bool         round_trip;
    int64_t      ring_rows;
    float       *ring; /* [ring_rows, dim] */
};

DS4_DEVICE float inverse_rms(float squares, int dim, float epsilon) {
    return 1.0f / sqrtf(group_sum(squares) / static_cast<float>(dim) + epsilon);
}

/* The round trip of 64 values that 16 neighbouring lanes hold, four each. */
DS4_DEVICE void fp8_round_trip_of_four(float (&v)[4]) {
    using Format = SmallFloat<3, -6>;
    float largest = Format::kFloor;
    for (int i = 0; i < 4; ++i) {
        largest = fmaxf(largest, fabsf(v[i]));
    }
    for (int mask = 1; mask < kRoundedTogether / 4; mask *= 2) {
        largest = fmaxf(largest, shuffle_xor(largest, mask));
    }
    round_trip_values<3, -6>(v, largest);
}

/* One group of 32 lanes per token, because one token must not pay a barrier. A row of kPiece * pieces values stays in
 * registers: value 4 lane .. 4 lane + 3 of each piece. The unrotated part is a multiple of 64 values. */
template <int pieces> DS4_KERNEL window_whole_pieces(WindowRows job) {
    float weight[pieces][4];
    float v[pieces][4];
    const auto load = [](float (&to)[4], const float *from) {
        const float4 four = *reinterpret_cast<const float4 *>(from);
        to[0] = four.x;
        to[1] = four.y;
        to[2] = four.z;
        to[3] = four.w;
    };
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        load(weight[i], job.norm + i * kPiece + 4 * lane());
    }
    wait_for_inputs();
    let_next_start();
    const auto   token = static_cast<int64_t>(blockIdx.x);
    const float *kv = job.kv + token * job.dim;
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        load(v[i], kv + i * kPiece + 4 * lane());
    }
    const uint64_t position = position_of(job.at) + static_cast<uint64_t>(token);
    float         *row = job.ring + static_cast<int64_t>(position % static_cast<uint64_t>(job.ring_rows)) * job.dim;

    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            squares = fmaf(v[i][j], v[i][j], squares);
        }
    }
    const float inverse = inverse_rms(squares, job.dim, job.epsilon);
    const int   unrotated = job.dim - 2 * job.rope.pairs;
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        const int first = i * kPiece + 4 * lane();
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            v[i][j] = v[i][j] * inverse * weight[i][j];
        }
        float rounded[4] = {v[i][0], v[i][1], v[i][2], v[i][3]};
        fp8_round_trip_of_four(rounded);
        if (first >= unrotated) {
            rotate_pair(v[i][0], v[i][1], angle_of(job.rope, position, (first - unrotated) / 2));
            rotate_pair(v[i][2], v[i][3], angle_of(job.rope, position, (first - unrotated) / 2 + 1));
        } else if (job.round_trip) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                v[i][j] = rounded[j];
            }
        }
        *reinterpret_cast<float4 *>(row + first) = {v[i][0], v[i][1], v[i][2], v[i][3]};
    }
}

DS4_KERNEL window_any(WindowRows job) {
    wait_for_inputs();
    let_next_start();
    const auto     token = static_cast<int64_t>(blockIdx.x);
    const float   *kv = job.kv + token * job.dim;
    const uint64_t position = position_of(job.at) + static_cast<uint64_t>(token);
    float         *row = job.ring + static_cast<int64_t>(position % static_cast<uint64_t>(job.ring_rows)) * job.dim;

    float squares = 0.0f;
    for (int i = lane(); i < job.dim; i += kLanes) {
        squares = fmaf(kv[i], kv[i], squares);
    }
    const float inverse = inverse_rms(squares, job.dim, job.epsilon);
    for (int i = lane(); i < job.dim; i += kLanes) {
        row[i] = kv[i] * inverse * job.norm[i];
    }
    sync_group();
    const int unrotated = job.dim - 2 * job.rope.pairs;
    rotate(row + unrotated, job.rope, position, lane(), kLanes);
    if (job.round_trip) {
        fp8_round_trip(row, unrotated);
    }
}

} // namespace

void GpuOps::window(const WindowArgs &args) {
    const WindowRows job = {
        .dim = static_cast<int32_t>(args.dim),
        .at = at(args.position),
        .rope = rope_table(args.rope),
        .kv = args.kv,
        .norm = args.norm,
        .epsilon = args.epsilon,
        .round_trip = args.round_trip,
        .ring_rows = args.ring_rows,
        .ring = args.ring,
    };
    constexpr void (*kWhole[kMostPieces])(WindowRows) = {window_whole_pieces<1>, window_whole_pieces<2>,
                                                         window_whole_pieces<3>, window_whole_pieces<4>};
    const bool whole = job.dim % kPiece == 0 && job.dim / kPiece <= kMostPieces &&
                       (args.dim - args.rope.dims) % kRoundedTogether == 0;
    launch(stream_, whole ? kWhole[job.dim / kPiece - 1] : window_any, {static_cast<unsigned>(args.tokens)}, kLanes, 0, job);
}

} // namespace ds4::backend::gpu
