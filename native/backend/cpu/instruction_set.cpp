#include "backend/cpu/instruction_set.h"

#include <string>

#include "failure.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace ds4::backend::cpu {

namespace {

#if defined(__x86_64__)

struct CpuId {
    uint32_t a = 0, b = 0, c = 0, d = 0;
};

CpuId cpuid(uint32_t leaf) {
    CpuId id;
    if (__get_cpuid_count(leaf, 0, &id.a, &id.b, &id.c, &id.d) == 0) {
        return {};
    }
    return id;
}

constexpr bool has_all(uint32_t word, uint32_t bits) {
    return (word & bits) == bits;
}

constexpr uint32_t bit(int index) {
    return 1u << index;
}

/* The register states that the system saves when it switches threads; without them the instructions fault. */
uint32_t saved_states() {
    const CpuId id = cpuid(1);
    if (!has_all(id.c, bit(27))) { /* OSXSAVE */
        return 0;
    }
    uint32_t low = 0;
    uint32_t high = 0;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

uint32_t detect() {
    const CpuId    base = cpuid(1);
    const CpuId    extended = cpuid(7);
    const uint32_t saved = saved_states();

    const uint32_t fma_avx_f16c = bit(12) | bit(28) | bit(29);
    const bool     avx2 = has_all(base.c, fma_avx_f16c) && has_all(extended.b, bit(5)) && has_all(saved, bit(1) | bit(2));
    if (!avx2) {
        return DS4_ISA_PLAIN;
    }
    const uint32_t f_dq_bw_vl = bit(16) | bit(17) | bit(30) | bit(31);
    const uint32_t masks_and_upper_halves = bit(5) | bit(6) | bit(7);
    const bool     avx512 = has_all(extended.b, f_dq_bw_vl) && has_all(extended.c, bit(11)) && /* VNNI */
                        has_all(saved, masks_and_upper_halves);
    return avx512 ? DS4_ISA_AVX512 : DS4_ISA_AVX2;
}

#else

uint32_t detect() {
    return DS4_ISA_PLAIN;
}

#endif

} // namespace

uint32_t widest_instruction_set() {
    static const uint32_t widest = detect();
    return widest;
}

uint32_t choose_instruction_set(uint32_t asked) {
    const uint32_t widest = widest_instruction_set();
    if (asked == DS4_ISA_AUTO) {
        return widest;
    }
    if (asked > widest) {
        throw Failure(DS4_E_ARGUMENT, std::string("cannot compute with instruction set ") + instruction_set_name(asked) +
                                          ": this processor and its system offer " + instruction_set_name(widest) +
                                          " at most; leave the choice to the program");
    }
    return asked;
}

const char *instruction_set_name(uint32_t instruction_set) {
    switch (instruction_set) {
    case DS4_ISA_PLAIN: return "plain";
    case DS4_ISA_AVX2: return "avx2";
    case DS4_ISA_AVX512: return "avx512";
    default: return "unknown";
    }
}

} // namespace ds4::backend::cpu
