#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "abi/guard.h"
#include "abi/sized_struct.h"
#include "abi/usable_devices.h"
#include "backend/ops.h"
#include "runtime/engine_thread.h"

namespace ds4::abi {

namespace {

template <size_t N> void copy_text(char (&to)[N], const std::string &text) {
    const size_t bytes = std::min(text.size(), N - 1);
    std::memcpy(to, text.data(), bytes);
    to[bytes] = '\0';
}

ds4_device_info describe(uint32_t index) {
    const backend::DeviceInfo known = backend::open_device(index)->info();
    ds4_device_info           info{};
    info.kind = static_cast<uint32_t>(known.kind);
    info.index = index;
    info.core_count = known.core_count;
    info.total_bytes = known.total_bytes;
    info.free_bytes = known.free_bytes;
    copy_text(info.name, known.name);
    copy_text(info.arch, known.arch);
    return info;
}

} // namespace

} // namespace ds4::abi

ds4_status ds4_devices(ds4_device_info *devices, uint32_t capacity, uint32_t *count, ds4_error *error) {
    using namespace ds4;
    return abi::guarded(error, [&] {
        if (count == nullptr || (devices == nullptr && capacity > 0)) {
            throw Failure(DS4_E_ARGUMENT, "devices or count is NULL");
        }
        runtime::EngineThread thread; /* a driver may need more stack than the caller has */
        thread.run([&] { *count = backend::device_count(); });
        if (capacity == 0) {
            return;
        }
        std::vector<ds4_device_info> usable;
        /* Where there is none, the driver is asked for the first one all the same: it says why. */
        thread.run([&] { usable = abi::usable_devices(std::max(*count, 1u), abi::describe); });
        *count = static_cast<uint32_t>(usable.size());
        abi::check_size(devices, "devices");
        const uint32_t stride = abi::read_size(devices);
        auto          *at = reinterpret_cast<unsigned char *>(devices);
        for (size_t i = 0; i < std::min<size_t>(capacity, usable.size()); ++i, at += stride) {
            abi::write_struct(reinterpret_cast<ds4_device_info *>(at), usable[i], "devices");
        }
    });
}
