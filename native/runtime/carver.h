/* Lays arrays out one after another in one allocation. The same code runs twice: on a Carver without memory it measures,
 * on one with memory it places, so that the two can never disagree. */
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/checked_bytes.h"

namespace ds4::runtime {

class Carver {
public:
    Carver() = default;
    explicit Carver(std::byte *base) : base_(base) {}

    /* `count` values at a 64-byte boundary; nullptr while measuring. */
    template <typename T> T *take(uint64_t count) {
        const uint64_t start = bytes_;
        const uint64_t end = checked_add(start, checked_multiply(count, sizeof(T)));
        bytes_ = checked_add(end, kAlignment - 1) / kAlignment * kAlignment;
        return base_ == nullptr ? nullptr : reinterpret_cast<T *>(base_ + start);
    }

    uint64_t bytes() const { return bytes_; }

private:
    static constexpr uint64_t kAlignment = 64;

    std::byte *base_ = nullptr;
    uint64_t   bytes_ = 0;
};

} // namespace ds4::runtime
