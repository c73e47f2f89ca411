/* device.h: memory and identity of one device. Arithmetic is in ops.h. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <unistd.h>

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

/* A host range that kernels of one device may read in place. Undone when destroyed. */
class HostMapping {
public:
    virtual ~HostMapping() = default;
    /* Where kernels find the first byte. */
    virtual const std::byte *device_address() const = 0;
};

/* Memory of the host that kernels of one device may read in place. */
class PinnedMemory : public HostMapping {
public:
    /* As the host writes it. */
    virtual std::span<std::byte> bytes() const = 0;
};

/* Pinned buffers through which bytes travel to the device while the next ones are read, beside what ops do. One thread per
 * slot may fill and send at a time; different slots are independent. Destroying it waits for what is on its way. */
class UploadRing {
public:
    virtual ~UploadRing() = default;
    /* The buffer of a slot, at an address that is a multiple of 4096, once its last copy has left it. */
    virtual std::span<std::byte> wait(size_t slot) = 0;
    /* Starts copying `bytes` of the slot, from its byte `from` on, to device memory. */
    virtual void send(size_t slot, void *to, size_t bytes, size_t from = 0) = 0;
    /* The same for bytes that a HostMapping of this device has pinned, whose host address is `from`. The slot lends its place
     * in the order only. */
    virtual void send_pinned(size_t slot, void *to, const std::byte *from, size_t bytes) = 0;
    /* Whether the slot's last copy has arrived. Does not wait. */
    virtual bool arrived(size_t slot) = 0;
    /* What is sent from now on starts after the ops that were called so far: it may overwrite what they read. */
    virtual void follow_ops() = 0;
    /* Ops that are called from now on start after what was sent so far has arrived. */
    virtual void precede_ops() = 0;
    /* Everything that was sent has arrived. Throws Failure(DS4_E_DEVICE). */
    virtual void finish() = 0;
};

class Device {
public:
    virtual ~Device() = default;

    virtual DeviceInfo info() const = 0;

    /* Whether kernels may follow any host address: then weights need no copy. */
    virtual bool reads_host_memory() const = 0;

    /* Copies, done when the call returns, after all ops that were called before. Throw Failure(DS4_E_DEVICE). */
    virtual void copy_in(void *to_device, const void *from_host, size_t bytes) = 0;
    virtual void copy_out(void *to_host, const void *from_device, size_t bytes) = 0;
    virtual void copy_within(void *to_device, const void *from_device, size_t bytes) = 0;

    /* Throws Failure(DS4_E_NO_MEMORY or DS4_E_DEVICE): the system may refuse to pin a mapping of a file. */
    virtual std::unique_ptr<HostMapping> map_host(std::span<const std::byte> range) = 0;
    virtual std::unique_ptr<UploadRing>  upload_ring(size_t slots, size_t slot_bytes) = 0;
    /* Zeroed, at a multiple of 4096. Throws Failure(DS4_E_NO_MEMORY or DS4_E_DEVICE). */
    virtual std::unique_ptr<PinnedMemory> pin_memory(size_t bytes, std::string_view what) = 0;

    /* Nobody reads what lies there until it has been written again: memory of this device, or pinned for it, that ops called so
     * far have no more use for. A real device leaves it as it is. One for tests fills it with bits that make not-a-number of any
     * float, so that whoever reads too early, or at an old address, computes nonsense each time. */
    virtual void spoil(void *, size_t) noexcept {}

    /* As pread(2). Here because a simulated device has a disk of its own speed, which may fail. */
    virtual ssize_t read_file(int descriptor, void *to, size_t bytes, uint64_t offset) const;

    /* Zeroed memory, 64-byte aligned, taken from the system only as it is touched where the device can do that.
     * Throws Failure(DS4_E_NO_MEMORY) with `what`, the need and what is free. */
    virtual Allocation allocate(size_t bytes, std::string_view what) = 0;

private:
    friend class Allocation;
    virtual void release(void *data, size_t bytes) noexcept = 0;
};

inline ssize_t Device::read_file(int descriptor, void *to, size_t bytes, uint64_t offset) const {
    return ::pread(descriptor, to, bytes, static_cast<off_t>(offset));
}

inline Allocation::~Allocation() {
    if (device_ != nullptr) {
        device_->release(data_, bytes_);
    }
}

} // namespace ds4::backend
