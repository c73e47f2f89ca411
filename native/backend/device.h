/* device.h: memory and identity of one device. Arithmetic is in ops.h. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace ds4::backend {

enum class DeviceKind : uint32_t { host = 0, discrete = 1, integrated = 2, simulated = 3 };

struct DeviceInfo {
    DeviceKind  kind;
    std::string name;
    std::string arch;
    uint32_t    core_count;
    uint64_t    total_bytes;
    uint64_t    free_bytes;
};

class Device;

/* Memory that kernels of one device may use. Owns it; the device must outlive it. */
class Allocation {
public:
    Allocation() = default;
    Allocation(Device *device, void *data, size_t bytes) : device_(device), data_(data), bytes_(bytes) {}
    Allocation(Allocation &&other) noexcept { swap(other); }
    Allocation &operator=(Allocation &&other) noexcept {
        Allocation taken(std::move(other));
        swap(taken);
        return *this;
    }
    Allocation(const Allocation &) = delete;
    Allocation &operator=(const Allocation &) = delete;
    ~Allocation();

    template <typename T> T *as() const { return static_cast<T *>(data_); }
    size_t bytes() const { return bytes_; }

private:
    void swap(Allocation &other) noexcept {
        std::swap(device_, other.device_);
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
    }

    Device *device_ = nullptr;
    void   *data_ = nullptr;
    size_t  bytes_ = 0;
};

class Device {
public:
    virtual ~Device() = default;

    virtual DeviceInfo info() const = 0;

    /* Zeroed memory, 64-byte aligned, taken from the system only as it is touched where the device can do that.
     * Throws Failure(DS4_E_NO_MEMORY) with `what`, the need and what is free. */
    virtual Allocation allocate(size_t bytes, std::string_view what) = 0;

private:
    friend class Allocation;
    virtual void release(void *data, size_t bytes) noexcept = 0;
};

inline Allocation::~Allocation() {
    if (device_ != nullptr) {
        device_->release(data_, bytes_);
    }
}

} // namespace ds4::backend
