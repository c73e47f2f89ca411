/* Pinned buffers on the way to one GPU. */
#pragma once

#include <memory>
#include <vector>

#include "backend/gpu/gpu_device.h"

namespace ds4::backend::gpu {

class GpuUploadRing final : public UploadRing {
public:
    GpuUploadRing(const GpuDevice &device, size_t slots, size_t slot_bytes);
    ~GpuUploadRing() override;
    GpuUploadRing(const GpuUploadRing &) = delete;
    GpuUploadRing &operator=(const GpuUploadRing &) = delete;

    std::span<std::byte> wait(size_t slot) override;
    void                 send(size_t slot, void *to, size_t bytes) override;
    void                 finish() override;

private:
    struct Slot {
        std::byte *data = nullptr;
        gpuEvent_t sent = nullptr; /* its last copy has left the buffer */
    };

    void free_all() noexcept;

    const GpuDevice  &device_;
    size_t            slot_bytes_;
    std::vector<Slot> slots_;
    gpuStream_t       stream_ = nullptr; /* of its own: copies overlap with what kernels do */
};

} // namespace ds4::backend::gpu
