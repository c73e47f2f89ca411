#include "backend/cpu/cpu_ops.h"

namespace ds4::backend::cpu {

void CpuOps::window(const WindowArgs &args) {
    const Angles angles = rope_.of(args.rope, args.position, args.tokens, pool_);
    pool_.run_ranges(args.tokens, args.tokens * args.dim * 4, [&](int64_t first, int64_t last, uint32_t) {
        for (int64_t t = first; t < last; ++t) {
            const uint64_t position = args.position + static_cast<uint64_t>(t);
            const float   *kv = args.kv + t * args.dim;
            float *row = args.ring + static_cast<int64_t>(position % static_cast<uint64_t>(args.ring_rows)) * args.dim;
            const float inverse = kernels_.inverse_rms(kv, args.dim, args.epsilon);
            kernels_.scale(kv, args.norm, inverse, args.dim, row);
            const int64_t unrotated = args.dim - args.rope.dims;
            kernels_.rotate(row + unrotated, angles.cosine_of(t), angles.sine_of(t), angles.pairs);
            if (args.round_trip) {
                kernels_.fp8_round_trip(row, unrotated);
            }
        }
    });
}

} // namespace ds4::backend::cpu
