/* Copies of intermediate values for a caller who asked for them.
 *
 * Records are in the order of the computation: layer by layer, and within a layer, kind by kind (compressed rows, indexer
 * scores and rows, attention output, expert choice, FFN output, streams); within a kind by position. A caller's buffer may
 * be too small: then the records up to that point are whole, the rest are counted only, and where they end there is a
 * record of kind 0, if that much room is left. */
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/device.h"
#include "include/ds4.h"

namespace ds4::model {

class Taps {
public:
    /* `device` is where the values come from. */
    Taps(uint32_t mask, std::span<std::byte> buffer, backend::Device &device)
        : mask_(mask), buffer_(buffer), device_(device) {}

    bool wants(uint32_t kind) const { return (mask_ & kind) != 0; }

    /* Where the host may write `value_count` floats, or an empty span when they do not fit. */
    std::span<float> add(uint32_t kind, int64_t layer, uint64_t position, uint64_t value_count);

    /* The same with the values at hand, in device memory. */
    void record(uint32_t kind, int64_t layer, uint64_t position, std::span<const float> values);

    /* One record per token from rows of `width` values each, in device memory. */
    void record_rows(uint32_t kind, int64_t layer, uint64_t position, const float *rows, int64_t tokens, int64_t width);

    /* Integers that the device made, for records that are put together on the host. */
    std::vector<int32_t> fetch(std::span<const int32_t> values) const;

    /* Of all records, whether they fitted or not. */
    uint64_t bytes() const { return bytes_; }

private:
    uint32_t             mask_;
    std::span<std::byte> buffer_;
    backend::Device     &device_;
    uint64_t             bytes_ = 0;
};

} // namespace ds4::model
