/* Which cards the machine code of this library runs on. */
#pragma once

#include <string_view>

namespace ds4::backend::gpu {

/* Whether code for one of `built` (names with spaces between) runs on a card of `architecture`. NVIDIA's sm_XY runs on
 * cards of the same generation X from Y on; AMD's gfx names must be the same. */
constexpr bool runs_on(std::string_view built, std::string_view architecture) {
    constexpr std::string_view kNvidia = "sm_";
    while (!built.empty()) {
        const size_t           end = built.find(' ') != built.npos ? built.find(' ') : built.size();
        const std::string_view one = built.substr(0, end);
        built.remove_prefix(end == built.size() ? end : end + 1);
        if (one.empty()) {
            continue;
        }
        if (one == architecture) {
            return true;
        }
        const bool nvidia = one.starts_with(kNvidia) && architecture.starts_with(kNvidia);
        if (nvidia && one.size() == architecture.size() && one.back() <= architecture.back() &&
            one.substr(0, one.size() - 1) == architecture.substr(0, architecture.size() - 1)) {
            return true;
        }
    }
    return false;
}

} // namespace ds4::backend::gpu
