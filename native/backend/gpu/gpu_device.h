/* Memory, copies and identity of one GPU. */
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "backend/device.h"
#include "backend/gpu/launch.h"

namespace ds4::backend::gpu {

/* What kernels are shaped by. */
struct CardFacts {
    uint32_t multiprocessors;
    uint32_t shared_bytes; /* most dynamic shared memory of a block */
    bool     early_start;  /* kernels may start before the one in front has ended */
};

/* 0 where there is no driver or no card, which GpuDevice can say more of. Throws Failure(DS4_E_DEVICE) when a driver that is there
 * cannot tell: that is no machine without a card. */
uint32_t count_devices();

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
    /* Makes this device the calling thread's. Calls arrive on the engine thread and on upload threads. Throws
     * Failure(DS4_E_DEVICE), also for a card that did not answer before. */
    void make_current() const;

    /* ---- waiting: gpu_wait.cu ---- */

    /* Until what is on the stream so far, or what is in front of the event, is done. Throws Failure(DS4_E_DEVICE), a sentence
     * that begins: the GPU failed to `what`, when it fails or takes more than 60 s. Then the card is given up: nobody in this
     * process asks anything of it any more. */
    void wait(gpuStream_t stream, const char *what) const;
    void wait(gpuEvent_t event, const char *what) const;

    /* Waits for all streams, before what they use is freed. False: the card is given up. Then nothing may be freed that it
     * could still read or write, and nothing at all through the runtime, whose calls would wait for it; such memory and
     * handles are kept until the process ends. */
    bool settle() const noexcept;

    /* A stream that settle knows of. */
    gpuStream_t open_stream(const char *what);
    void        close_stream(gpuStream_t stream) noexcept;

private:
    void release(void *data, size_t bytes) noexcept override;
    void copy(void *to, const void *from, size_t bytes, gpuMemcpyKind kind, const char *what);
    void require_answering() const;
    [[noreturn]] void give_up(const char *what) const;
    bool is_given_up() const noexcept;

    uint32_t                 index_;
    CardFacts                facts_{};
    mutable std::mutex       streams_mutex_;
    std::vector<gpuStream_t> streams_;
    gpuStream_t              stream_ = nullptr;
};

} // namespace ds4::backend::gpu
