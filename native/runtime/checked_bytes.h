/* Sizes that come from a file or a user: multiplied and added so that a wrap is a failure, not a small number. */
#pragma once

#include <cstdint>
#include <string>

#include "failure.h"

namespace ds4::runtime {

[[noreturn]] inline void size_overflow() {
    throw Failure(DS4_E_NO_MEMORY, "the size asked for does not fit in 64 bits; ask for a smaller context");
}

inline uint64_t checked_add(uint64_t a, uint64_t b) {
    uint64_t sum = 0;
    if (__builtin_add_overflow(a, b, &sum)) {
        size_overflow();
    }
    return sum;
}

inline uint64_t checked_multiply(uint64_t a, uint64_t b) {
    uint64_t product = 0;
    if (__builtin_mul_overflow(a, b, &product)) {
        size_overflow();
    }
    return product;
}

/* "1.50 GiB", for sentences; below 1 KiB "512 bytes". */
std::string describe_bytes(uint64_t bytes);

} // namespace ds4::runtime
