#include "backend/cpu/cpu_ops.h"

namespace ds4::backend::cpu {

void CpuOps::query(const QueryArgs &args) {
    const Angles  angles = rope_.of(args.rope, args.position, args.tokens, pool_);
    const int64_t vectors = args.tokens * args.heads;
    pool_.run_ranges(vectors, vectors * args.dim * 2, [&](int64_t first, int64_t last, uint32_t) {
        for (int64_t v = first; v < last; ++v) {
            const int64_t token = v / args.heads;
            float        *q = args.q + v * args.dim;
            const float   inverse = kernels_.inverse_rms(q, args.dim, args.epsilon);
            kernels_.scale(q, nullptr, inverse, args.dim, q);
            kernels_.rotate(q + args.dim - args.rope.dims, angles.cosine_of(token), angles.sine_of(token), angles.pairs);
        }
    });
}

} // namespace ds4::backend::cpu
