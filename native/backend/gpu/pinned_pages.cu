#include "backend/gpu/pinned_pages.h"

#include <cstring>

#include "backend/host_memory.h"

namespace ds4::backend::gpu {

namespace {

constexpr size_t   kPageBytes = 4096;
constexpr size_t   kLarge = size_t{4} << 20; /* worth touching by several threads, and worth asking whether it is there */
constexpr uint64_t kKeptFree = uint64_t{512} << 20;

size_t whole_pages(size_t bytes) {
    return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

/* Neither the system nor the driver refuses memory that is not there: the process is ended instead. */
void require_free(size_t bytes, const std::string &what) {
    const uint64_t available = read_host_memory().available;
    if (available != 0 && (available < kKeptFree || bytes > available - kKeptFree)) {
        throw Failure(DS4_E_NO_MEMORY, "cannot pin " + what + ": " + std::to_string(available >> 20) +
                                           " MiB of host memory are free, of which " +
                                           std::to_string(kKeptFree >> 20) + " must stay so");
    }
}

} // namespace

PinnedPages::PinnedPages(const GpuDevice &device, size_t bytes, const std::string &what)
    : device_(&device), bytes_(whole_pages(bytes)) {
    device.make_current();
    if (bytes_ >= kLarge) {
        require_free(bytes_, what);
    }
    if (bytes_ < kLarge || !pin_touched()) {
        take_from_driver(what);
    }
}

bool PinnedPages::pin_touched() {
    TouchedPages pages(bytes_);
    if (pages.data() == nullptr) {
        return false;
    }
    if (gpuHostRegister(pages.data(), bytes_, gpuHostRegisterMapped) != gpuSuccess) {
        static_cast<void>(gpuGetLastError());
        return false;
    }
    pages_ = std::move(pages);
    data_ = pages_.data();
    return true;
}

/* It promises no page's first byte: it may hand out pieces of a larger block, which may have been used before. */
void PinnedPages::take_from_driver(const std::string &what) {
    const gpuError_t error = gpuHostAlloc(&block_, bytes_ + kPageBytes, gpuHostAllocMapped);
    if (error != gpuSuccess) {
        static_cast<void>(gpuGetLastError());
        throw Failure(error == gpuErrorMemoryAllocation ? DS4_E_NO_MEMORY : DS4_E_DEVICE,
                      "cannot pin " + what + ": " + gpuGetErrorString(error) + " (" + gpuGetErrorName(error) + ")");
    }
    data_ = reinterpret_cast<std::byte *>(whole_pages(reinterpret_cast<uintptr_t>(block_)));
    std::memset(data_, 0, bytes_);
}

PinnedPages::~PinnedPages() {
    if (data_ == nullptr) {
        return;
    }
    const bool is_ours =
        device_->settle() && (block_ != nullptr ? gpuFreeHost(block_) : gpuHostUnregister(data_)) == gpuSuccess;
    if (!is_ours) {
        pages_.abandon(); /* the card may still reach them */
    }
}

} // namespace ds4::backend::gpu
