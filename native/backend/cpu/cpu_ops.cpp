#include "backend/cpu/cpu_ops.h"

#include "backend/cpu/instruction_set.h"
#include "include/ds4.h"
#include "quant/dequantise.h"

namespace ds4::backend::cpu {

CpuOps::CpuOps(uint32_t threads, Arithmetic arithmetic, uint32_t instruction_set, uint64_t *cancel)
    : kernels_(kernels_of(choose_instruction_set(instruction_set))), arithmetic_(arithmetic),
      pool_(threads == 0 ? usable_processors() : threads, cancel), workspaces_(pool_.threads()) {}

bool CpuOps::supports(quant::Type type) const {
    return quant::is_weight_type(type);
}

const Kernels &kernels_of(uint32_t instruction_set) {
#if defined(__x86_64__)
    switch (instruction_set) {
    case DS4_ISA_AVX512: return avx512_kernels();
    case DS4_ISA_AVX2: return avx2_kernels();
    default: break;
    }
#else
    static_cast<void>(instruction_set);
#endif
    return plain_kernels();
}

} // namespace ds4::backend::cpu
