#include "backend/gpu/upload_ring.h"

#include "backend/gpu/patience.h"

namespace ds4::backend::gpu {

GpuUploadRing::GpuUploadRing(GpuDevice &device, size_t slots, size_t slot_bytes)
    : device_(device), slots_(slots) {
    const std::string what =
        std::to_string(slots) + " upload buffers of " + std::to_string(slot_bytes >> 10) + " KiB each";
    device_.make_current();
    try {
        stream_ = device_.open_stream("create a stream for uploads");
        check(gpuEventCreateWithFlags(&mark_, gpuEventDisableTiming), "create an event for uploads");
        for (Slot &slot : slots_) {
            check(gpuEventCreateWithFlags(&slot.sent, gpuEventDisableTiming), "create an event for uploads");
            slot.buffer = PinnedPages(device, slot_bytes, what);
        }
    } catch (...) {
        free_all();
        throw;
    }
}

GpuUploadRing::~GpuUploadRing() {
    free_all();
}

void GpuUploadRing::free_all() noexcept {
    if (!device_.settle()) { /* a copy may still read a buffer */
        return;
    }
    for (const Slot &slot : slots_) {
        if (slot.sent != nullptr) {
            static_cast<void>(gpuEventDestroy(slot.sent));
        }
    }
    if (mark_ != nullptr) {
        static_cast<void>(gpuEventDestroy(mark_));
    }
    device_.close_stream(stream_);
}

std::span<std::byte> GpuUploadRing::wait(size_t slot) {
    device_.make_current();
    device_.wait(slots_[slot].sent, "upload weights");
    return {slots_[slot].buffer.data(), slots_[slot].buffer.bytes()};
}

void GpuUploadRing::send(size_t slot, void *to, size_t bytes, size_t from) {
    send_pinned(slot, to, slots_[slot].buffer.data() + from, bytes);
}

void GpuUploadRing::send_pinned(size_t slot, void *to, const std::byte *from, size_t bytes) {
    device_.make_current();
    check(gpuMemcpyAsync(to, from, bytes, gpuMemcpyHostToDevice, stream_), "upload weights");
    check(gpuEventRecord(slots_[slot].sent, stream_), "upload weights");
    slots_[slot].sent_at = std::chrono::steady_clock::now();
}

bool GpuUploadRing::arrived(size_t slot) {
    device_.make_current();
    const gpuError_t state = gpuEventQuery(slots_[slot].sent);
    if (state == gpuErrorNotReady) {
        static_cast<void>(gpuGetLastError());
        if (std::chrono::steady_clock::now() - slots_[slot].sent_at > patience()) {
            device_.wait(slots_[slot].sent, "upload weights"); /* who only asks would never hear that it is lost */
            return true;
        }
        return false;
    }
    check(state, "upload weights");
    return true;
}

/* An event that is recorded anew no longer concerns whoever waits for its earlier mark: one serves both directions. */
void GpuUploadRing::follow_ops() {
    device_.make_current();
    check(gpuEventRecord(mark_, device_.stream()), "order uploads");
    check(gpuStreamWaitEvent(stream_, mark_, 0), "order uploads");
}

void GpuUploadRing::precede_ops() {
    device_.make_current();
    check(gpuEventRecord(mark_, stream_), "order uploads");
    check(gpuStreamWaitEvent(device_.stream(), mark_, 0), "order uploads");
}

void GpuUploadRing::finish() {
    device_.make_current();
    device_.wait(stream_, "upload weights");
}

} // namespace ds4::backend::gpu
