#include "backend/gpu/upload_ring.h"

namespace ds4::backend::gpu {

GpuUploadRing::GpuUploadRing(const GpuDevice &device, size_t slots, size_t slot_bytes)
    : device_(device), slots_(slots) {
    const std::string what =
        std::to_string(slots) + " upload buffers of " + std::to_string(slot_bytes >> 10) + " KiB each";
    device_.make_current();
    try {
        check(gpuStreamCreateWithFlags(&stream_, gpuStreamNonBlocking), "create a stream for uploads");
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
    static_cast<void>(gpuSetDevice(static_cast<int>(device_.index())));
    if (stream_ != nullptr) {
        static_cast<void>(gpuStreamSynchronize(stream_)); /* a copy may still read a buffer */
    }
    for (const Slot &slot : slots_) {
        if (slot.sent != nullptr) {
            static_cast<void>(gpuEventDestroy(slot.sent));
        }
    }
    if (mark_ != nullptr) {
        static_cast<void>(gpuEventDestroy(mark_));
    }
    if (stream_ != nullptr) {
        static_cast<void>(gpuStreamDestroy(stream_));
    }
}

std::span<std::byte> GpuUploadRing::wait(size_t slot) {
    device_.make_current();
    check(gpuEventSynchronize(slots_[slot].sent), "upload weights");
    return {slots_[slot].buffer.data(), slots_[slot].buffer.bytes()};
}

void GpuUploadRing::send(size_t slot, void *to, size_t bytes, size_t from) {
    send_pinned(slot, to, slots_[slot].buffer.data() + from, bytes);
}

void GpuUploadRing::send_pinned(size_t slot, void *to, const std::byte *from, size_t bytes) {
    device_.make_current();
    check(gpuMemcpyAsync(to, from, bytes, gpuMemcpyHostToDevice, stream_), "upload weights");
    check(gpuEventRecord(slots_[slot].sent, stream_), "upload weights");
}

bool GpuUploadRing::arrived(size_t slot) {
    device_.make_current();
    const gpuError_t state = gpuEventQuery(slots_[slot].sent);
    if (state == gpuErrorNotReady) {
        static_cast<void>(gpuGetLastError());
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
    check(gpuStreamSynchronize(stream_), "upload weights");
}

} // namespace ds4::backend::gpu
