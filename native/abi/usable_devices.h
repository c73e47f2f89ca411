/* Which of several devices can be used. */
#pragma once

#include <cstdint>
#include <exception>
#include <vector>

#include "failure.h"

namespace ds4::abi {

/* describe(index) of each of `count` devices, without those that fail: one card that is busy, broken or too old must not take
 * the others with it. Throws the failure of the first device when none can be used. */
template <typename Describe> auto usable_devices(uint32_t count, Describe describe) {
    std::vector<decltype(describe(uint32_t{}))> usable;
    std::exception_ptr                          first;
    for (uint32_t index = 0; index < count; ++index) {
        try {
            usable.push_back(describe(index));
        } catch (const Failure &) {
            first = first ? first : std::current_exception();
        }
    }
    if (usable.empty() && first) {
        std::rethrow_exception(first);
    }
    return usable;
}

} // namespace ds4::abi
