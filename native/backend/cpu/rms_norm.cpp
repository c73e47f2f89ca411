#include "backend/cpu/cpu_ops.h"

namespace ds4::backend::cpu {

void CpuOps::rms_norm(const RmsNormArgs &args) {
    pool_.run_ranges(args.rows, args.rows * args.width * 2, [&](int64_t first, int64_t last, uint32_t) {
        for (int64_t r = first; r < last; ++r) {
            const float *x = args.x + r * args.width;
            const float  inverse = kernels_.inverse_rms(x, args.width, args.epsilon);
            kernels_.scale(x, args.weight, inverse, args.width, args.out + r * args.width);
        }
    });
}

} // namespace ds4::backend::cpu
