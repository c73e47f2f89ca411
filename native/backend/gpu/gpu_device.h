/* Memory, copies and identity of one GPU. */
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "backend/device.h"
#include "backend/gpu/launch.h"

namespace ds4::backend::gpu {

/* What kernels are shaped by. */
struct CardFacts {
    uint32_t multiprocessors;
    uint32_t shared_bytes; /* most dynamic shared memory of a block */
    bool     early_start;  /* kernels may start before the one in front has ended */
};

class GpuDevice final : public Device {
public:
    /* Throws Failure(DS4_E_DEVICE): no driver, no such device, or an architecture that this library was not built for. */
    explicit GpuDevice(uint32_t index);
    ~GpuDevice() override;
    GpuDevice(const GpuDevice &) = delete;
    GpuDevice &operator=(const GpuDevice &) = delete;

    DeviceInfo info() const override;
    Allocation allocate(size_t bytes, std::string_view what) override;
    bool       reads_host_memory() const override { return false; }
    void       copy_in(void *to_device, const void *from_host, size_t bytes) override;
    void       copy_out(void *to_host, const void *from_device, size_t bytes) override;
    void       copy_within(void *to_device, const void *from_device, size_t bytes) override;

    std::unique_ptr<HostMapping> map_host(std::span<const std::byte> range) override;
    std::unique_ptr<UploadRing>  upload_ring(size_t slots, size_t slot_bytes) override;
    std::unique_ptr<PinnedMemory> pin_memory(size_t bytes, std::string_view what) override;

    uint32_t         index() const { return index_; }
    const CardFacts &facts() const { return facts_; }
    gpuStream_t      stream() const { return stream_; }
    /* Makes this device the calling thread's. Calls arrive on the engine thread and on upload threads. */
    void make_current() const;

private:
    void release(void *data, size_t bytes) noexcept override;
    void copy(void *to, const void *from, size_t bytes, gpuMemcpyKind kind, const char *what);

    uint32_t    index_;
    CardFacts   facts_{};
    gpuStream_t stream_ = nullptr;
};

} // namespace ds4::backend::gpu
