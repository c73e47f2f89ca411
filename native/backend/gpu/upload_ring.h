/* Pinned buffers on the way to one GPU. */
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "backend/gpu/pinned_pages.h"

namespace ds4::backend::gpu {

class GpuUploadRing final : public UploadRing {
public:
    GpuUploadRing(GpuDevice &device, size_t slots, size_t slot_bytes);
    ~GpuUploadRing() override;
    GpuUploadRing(const GpuUploadRing &) = delete;
    GpuUploadRing &operator=(const GpuUploadRing &) = delete;

    std::span<std::byte> wait(size_t slot) override;
    void                 send(size_t slot, void *to, size_t bytes, size_t from) override;
    void                 send_pinned(size_t slot, void *to, const std::byte *from, size_t bytes) override;
    bool                 arrived(size_t slot) override;
    void                 follow_ops() override;
    void                 precede_ops() override;
    void                 finish() override;

private:
    struct Slot {
        PinnedPages buffer;
        gpuEvent_t  sent = nullptr; /* its last copy has left the buffer */
        std::chrono::steady_clock::time_point sent_at{};
    };

    void free_all() noexcept;

    GpuDevice        &device_;
    std::vector<Slot> slots_;
    gpuStream_t       stream_ = nullptr; /* of its own: copies overlap with what kernels do */
    gpuEvent_t        mark_ = nullptr;   /* where one of the two streams waits for the other */
};

} // namespace ds4::backend::gpu
