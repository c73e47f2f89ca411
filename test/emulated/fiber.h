/* A second flow of control on the same thread. */
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace ds4::emulated {

#if defined(__x86_64__)
struct Context {
    void *stack_pointer = nullptr;
};
#else
struct Context {
    ucontext_t context;
};
#endif

/* Prepares `context` to start `entry` on the given stack; `entry` never returns. */
void prepare(Context &context, void *stack, size_t bytes, void (*entry)());

/* Saves the running flow in `from` and goes on with `to`. */
#if defined(__x86_64__)
extern "C" void ds4_emulated_switch(void **from, void *to);
inline void     change(Context &from, Context &to) { ds4_emulated_switch(&from.stack_pointer, to.stack_pointer); }
#else
inline void change(Context &from, Context &to) { swapcontext(&from.context, &to.context); }
#endif

} // namespace ds4::emulated
