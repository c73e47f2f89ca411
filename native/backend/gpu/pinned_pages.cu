#include "backend/gpu/pinned_pages.h"

namespace ds4::backend::gpu {

namespace {

constexpr size_t kPageBytes = 4096;

size_t whole_pages(size_t bytes) {
    return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

} // namespace

/* The runtime promises no page's first byte: it may hand out pieces of a larger block. */
PinnedPages::PinnedPages(const GpuDevice &device, size_t bytes, unsigned flags, const std::string &what)
    : device_(&device), bytes_(whole_pages(bytes)) {
    device.make_current();
    const gpuError_t error = gpuHostAlloc(&block_, bytes_ + kPageBytes, flags);
    if (error != gpuSuccess) {
        static_cast<void>(gpuGetLastError());
        throw Failure(error == gpuErrorMemoryAllocation ? DS4_E_NO_MEMORY : DS4_E_DEVICE,
                      "cannot pin " + what + ": " + gpuGetErrorString(error) + " (" + gpuGetErrorName(error) + ")");
    }
    data_ = reinterpret_cast<std::byte *>(whole_pages(reinterpret_cast<uintptr_t>(block_)));
}

PinnedPages::~PinnedPages() {
    if (block_ != nullptr) {
        static_cast<void>(gpuSetDevice(static_cast<int>(device_->index())));
        static_cast<void>(gpuFreeHost(block_));
    }
}

} // namespace ds4::backend::gpu
