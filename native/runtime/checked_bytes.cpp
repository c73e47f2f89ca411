#include "runtime/checked_bytes.h"

#include <array>
#include <cstdio>

namespace ds4::runtime {

std::string describe_bytes(uint64_t bytes) {
    constexpr std::array<const char *, 4> units = {"KiB", "MiB", "GiB", "TiB"};
    if (bytes < 1024) {
        return std::to_string(bytes) + " bytes";
    }
    double value = static_cast<double>(bytes) / 1024.0;
    size_t unit = 0;
    while (value >= 1024.0 && unit + 1 < units.size()) {
        value /= 1024.0;
        ++unit;
    }
    std::array<char, 48> text{};
    std::snprintf(text.data(), text.size(), "%.2f %s", value, units[unit]);
    return text.data();
}

} // namespace ds4::runtime
