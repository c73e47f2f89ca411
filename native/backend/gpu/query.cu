/* Queries: RMS norm per head without weight, then rotation. */
#include "backend/gpu/gpu_ops.h"
#include "backend/gpu/rope.h"

namespace ds4::backend::gpu {

namespace {

constexpr int kGroups = 4; /* of a block; one head each */
constexpr int kPiece = 4 * kLanes;
constexpr int kMostPieces = 4;

struct Queries {
    int64_t   vectors;
    int32_t   heads;
    int32_t   dim;
    Position  at;
    RopeTable rope;
    float     epsilon;
    float    *q; /* in place [vectors, dim] */
};

DS4_DEVICE float inverse_rms(float squares, int dim, float epsilon) {
    return 1.0f / sqrtf(group_sum(squares) / static_cast<float>(dim) + epsilon);
}

/* A head of kPiece * pieces values stays in registers: value 4 lane .. 4 lane + 3 of each piece. */
template <int pieces> DS4_KERNEL query_whole_pieces(Queries job) {
    wait_for_inputs();
    let_next_start();
    const int64_t vector = static_cast<int64_t>(blockIdx.x) * kGroups + group();
    if (vector >= job.vectors) {
        return;
    }
    auto  *q = reinterpret_cast<float4 *>(job.q + vector * job.dim) + lane();
    float4 v[pieces];
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        v[i] = q[i * kLanes];
    }
    const uint64_t position = position_of(job.at) + static_cast<uint64_t>(vector / job.heads);

    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        squares = fmaf(v[i].x, v[i].x, squares);
        squares = fmaf(v[i].y, v[i].y, squares);
        squares = fmaf(v[i].z, v[i].z, squares);
        squares = fmaf(v[i].w, v[i].w, squares);
    }
    const float inverse = inverse_rms(squares, job.dim, job.epsilon);
    const int   unrotated = job.dim - 2 * job.rope.pairs;
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        v[i] = {v[i].x * inverse, v[i].y * inverse, v[i].z * inverse, v[i].w * inverse};
        const int first = i * kPiece + 4 * lane();
        if (first >= unrotated) {
            rotate_pair(v[i].x, v[i].y, angle_of(job.rope, position, (first - unrotated) / 2));
        }
        if (first + 2 >= unrotated) {
            rotate_pair(v[i].z, v[i].w, angle_of(job.rope, position, (first + 2 - unrotated) / 2));
        }
        q[i * kLanes] = v[i];
    }
}

DS4_KERNEL query_any(Queries job) {
    wait_for_inputs();
    let_next_start();
    const int64_t vector = static_cast<int64_t>(blockIdx.x) * kGroups + group();
    if (vector >= job.vectors) {
        return;
    }
    float *q = job.q + vector * job.dim;
    float  squares = 0.0f;
    for (int i = lane(); i < job.dim; i += kLanes) {
        squares = fmaf(q[i], q[i], squares);
    }
    const float inverse = inverse_rms(squares, job.dim, job.epsilon);
    for (int i = lane(); i < job.dim; i += kLanes) {
        q[i] *= inverse;
    }
    sync_group();
    const uint64_t position = position_of(job.at) + static_cast<uint64_t>(vector / job.heads);
    rotate(q + job.dim - 2 * job.rope.pairs, job.rope, position, lane(), kLanes);
}

} // namespace

void GpuOps::query(const QueryArgs &args) {
    const Queries job = {
        .vectors = args.tokens * args.heads,
        .heads = static_cast<int32_t>(args.heads),
        .dim = static_cast<int32_t>(args.dim),
        .at = at(args.position),
        .rope = rope_table(args.rope),
        .epsilon = args.epsilon,
        .q = args.q,
    };
    const auto          blocks = static_cast<unsigned>((job.vectors + kGroups - 1) / kGroups);
    constexpr void (*kWhole[kMostPieces])(Queries) = {query_whole_pieces<1>, query_whole_pieces<2>, query_whole_pieces<3>,
                                                      query_whole_pieces<4>};
    const bool          whole = job.dim % kPiece == 0 && job.dim / kPiece <= kMostPieces;
    launch(stream_, whole ? kWhole[job.dim / kPiece - 1] : query_any, {blocks}, kGroups * kLanes, 0, job);
}

} // namespace ds4::backend::gpu
