#include "backend/gpu/upload_ring.h"

namespace ds4::backend::gpu {

GpuUploadRing::GpuUploadRing(const GpuDevice &device, size_t slots, size_t slot_bytes)
    : device_(device), slot_bytes_(slot_bytes), slots_(slots) {
    device_.make_current();
    try {
        check(gpuStreamCreateWithFlags(&stream_, gpuStreamNonBlocking), "create a stream for uploads");
        for (Slot &slot : slots_) {
            check(gpuEventCreateWithFlags(&slot.sent, gpuEventDisableTiming), "create an event for uploads");
            void            *data = nullptr;
            const gpuError_t error = gpuHostAlloc(&data, slot_bytes, gpuHostAllocDefault);
            if (error != gpuSuccess) {
                static_cast<void>(gpuGetLastError());
                throw Failure(error == gpuErrorMemoryAllocation ? DS4_E_NO_MEMORY : DS4_E_DEVICE,
                              "cannot pin " + std::to_string(slots) + " upload buffers of " +
                                  std::to_string(slot_bytes >> 20) + " MiB each: " + gpuGetErrorString(error) + " (" +
                                  gpuGetErrorName(error) + ")");
            }
            slot.data = static_cast<std::byte *>(data);
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
        if (slot.data != nullptr) {
            static_cast<void>(gpuFreeHost(slot.data));
        }
        if (slot.sent != nullptr) {
            static_cast<void>(gpuEventDestroy(slot.sent));
        }
    }
    if (stream_ != nullptr) {
        static_cast<void>(gpuStreamDestroy(stream_));
    }
}

std::span<std::byte> GpuUploadRing::wait(size_t slot) {
    device_.make_current();
    check(gpuEventSynchronize(slots_[slot].sent), "upload weights");
    return {slots_[slot].data, slot_bytes_};
}

void GpuUploadRing::send(size_t slot, void *to, size_t bytes) {
    device_.make_current();
    check(gpuMemcpyAsync(to, slots_[slot].data, bytes, gpuMemcpyHostToDevice, stream_), "upload weights");
    check(gpuEventRecord(slots_[slot].sent, stream_), "upload weights");
}

void GpuUploadRing::finish() {
    device_.make_current();
    check(gpuStreamSynchronize(stream_), "upload weights");
}

} // namespace ds4::backend::gpu
