/* Which instruction set this processor and its system offer. Numbers are DS4_ISA_* of ds4.h. */
#pragma once

#include <cstdint>

namespace ds4::backend::cpu {

/* The widest one; DS4_ISA_PLAIN at least. */
uint32_t widest_instruction_set();

/* `asked` or, for DS4_ISA_AUTO, the widest. Throws Failure(DS4_E_ARGUMENT) when this machine has no `asked`. */
uint32_t choose_instruction_set(uint32_t asked);

const char *instruction_set_name(uint32_t instruction_set);

} // namespace ds4::backend::cpu
