#include "model/taps.h"

#include <cstring>

namespace ds4::model {

namespace {

constexpr uint64_t kPadding = 8;

} // namespace

std::span<float> Taps::add(uint32_t kind, int64_t layer, uint64_t position, uint64_t value_count) {
    const uint64_t start = bytes_;
    const uint64_t bytes = sizeof(ds4_tap_record) + value_count * sizeof(float);
    bytes_ += (bytes + kPadding - 1) / kPadding * kPadding;
    if (bytes_ > buffer_.size()) {
        if (start + sizeof(ds4_tap_record) <= buffer_.size()) {
            std::memset(buffer_.data() + start, 0, sizeof(ds4_tap_record));
        }
        return {};
    }
    const ds4_tap_record record{
        .kind = kind,
        .layer = static_cast<uint32_t>(layer),
        .position = position,
        .value_count = static_cast<uint32_t>(value_count),
        .reserved = 0,
    };
    std::memcpy(buffer_.data() + start, &record, sizeof(record));
    return {reinterpret_cast<float *>(buffer_.data() + start + sizeof(record)), value_count};
}

void Taps::record(uint32_t kind, int64_t layer, uint64_t position, std::span<const float> values) {
    const std::span<float> to = add(kind, layer, position, values.size());
    if (!to.empty()) {
        device_.copy_out(to.data(), values.data(), values.size_bytes());
    }
}

void Taps::record_rows(uint32_t kind, int64_t layer, uint64_t position, const float *rows, int64_t tokens,
                       int64_t width) {
    if (!wants(kind)) {
        return;
    }
    for (int64_t token = 0; token < tokens; ++token) {
        record(kind, layer, position + static_cast<uint64_t>(token),
               {rows + token * width, static_cast<size_t>(width)});
    }
}

std::vector<int32_t> Taps::fetch(std::span<const int32_t> values) const {
    std::vector<int32_t> copy(values.size());
    if (!copy.empty()) {
        device_.copy_out(copy.data(), values.data(), values.size_bytes());
    }
    return copy;
}

} // namespace ds4::model
