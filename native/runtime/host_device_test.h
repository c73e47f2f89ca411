/* For tests of runtime: plain host memory as a device, which counts what it lent and can refuse. */
#pragma once

#include <cstring>
#include <new>

#include "backend/device.h"
#include "failure.h"

namespace ds4::test {

class HostDevice : public backend::Device {
public:
    backend::DeviceInfo info() const override {
        return {backend::DeviceKind::host, "test", "test", 1, free_bytes, free_bytes};
    }

    backend::Allocation allocate(size_t bytes, std::string_view what) override {
        if (bytes > free_bytes) {
            throw Failure(DS4_E_NO_MEMORY, "no room for " + std::string(what));
        }
        void *const data = ::operator new(bytes, std::align_val_t(64));
        std::memset(data, 0, bytes);
        lent_bytes += bytes;
        return {this, data, bytes};
    }

    uint64_t free_bytes = uint64_t{1} << 34;
    uint64_t lent_bytes = 0;

private:
    void release(void *data, size_t bytes) noexcept override {
        lent_bytes -= bytes;
        ::operator delete(data, std::align_val_t(64));
    }
};

} // namespace ds4::test
