#include "emulated/fiber.h"

#include <cstdint>

namespace ds4::emulated {

#if defined(__x86_64__)

/* Registers that a called function must keep are kept on the stack that is left. */
asm(R"(
.text
.globl ds4_emulated_switch
.hidden ds4_emulated_switch
.type ds4_emulated_switch, @function
ds4_emulated_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size ds4_emulated_switch, .-ds4_emulated_switch
)");

void prepare(Context &context, void *stack, size_t bytes, void (*entry)()) {
    /* As if `entry` had been called: the stack is 8 bytes off a multiple of 16 when its first instruction runs. */
    auto *top = reinterpret_cast<uint64_t *>(reinterpret_cast<uintptr_t>(stack) + bytes);
    *--top = 0;
    *--top = reinterpret_cast<uint64_t>(entry);
    top -= 6; /* the six registers, whatever they hold */
    context.stack_pointer = top;
}

#else

void prepare(Context &context, void *stack, size_t bytes, void (*entry)()) {
    getcontext(&context.context);
    context.context.uc_stack.ss_sp = stack;
    context.context.uc_stack.ss_size = bytes;
    context.context.uc_link = nullptr;
    makecontext(&context.context, entry, 0);
}

#endif

} // namespace ds4::emulated
