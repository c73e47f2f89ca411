#include "backend/gpu/touched_pages.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

#include <sys/mman.h>

namespace ds4::backend::gpu {

namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kLargePageBytes = size_t{2} << 20;
constexpr size_t kPieceBytes = size_t{4} << 20; /* what a thread takes at once */
constexpr size_t kMostThreads = 16;

/* At a multiple of large pages, so that the system can use them. nullptr when it refuses. */
std::byte *map_pages(size_t bytes) {
    const size_t more = bytes + kLargePageBytes;
    void *const  mapped = mmap(nullptr, more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) {
        return nullptr;
    }
    auto *const  begin = static_cast<std::byte *>(mapped);
    const size_t in_front = (kLargePageBytes - reinterpret_cast<uintptr_t>(mapped) % kLargePageBytes) % kLargePageBytes;
    if (in_front > 0) {
        munmap(begin, in_front);
    }
    munmap(begin + in_front + bytes, more - in_front - bytes);
    return begin + in_front;
}

/* Writes to every page. Not madvise(MADV_POPULATE_WRITE): threads that call it wait for each other. */
void touch(std::byte *data, size_t bytes) {
    std::atomic<size_t> next = 0;
    const auto          work = [&] {
        for (size_t at = next.fetch_add(kPieceBytes); at < bytes; at = next.fetch_add(kPieceBytes)) {
            const size_t end = std::min(at + kPieceBytes, bytes);
            for (size_t page = at; page < end; page += kPageBytes) {
                *static_cast<volatile std::byte *>(data + page) = std::byte{0};
            }
        }
    };
    const size_t processors = std::max<size_t>(1, std::thread::hardware_concurrency());
    const size_t threads = std::min({processors, kMostThreads, bytes / kPieceBytes});
    std::vector<std::jthread> helpers; /* joined at the end, and before what they use is gone */
    try {
        while (helpers.size() + 1 < threads) {
            helpers.emplace_back(work);
        }
    } catch (const std::exception &) {
        /* No thread, or no memory for one: those that were started suffice. */
    }
    work();
}

} // namespace

TouchedPages::TouchedPages(size_t bytes) {
    data_ = map_pages(bytes);
    if (data_ == nullptr) {
        return;
    }
    bytes_ = bytes;
    /* Advice: without large pages it takes longer. A child process must not make these pages ones to copy. */
    static_cast<void>(madvise(data_, bytes_, MADV_HUGEPAGE));
    static_cast<void>(madvise(data_, bytes_, MADV_DONTFORK));
    touch(data_, bytes_);
}

TouchedPages::~TouchedPages() {
    if (data_ != nullptr) {
        munmap(data_, bytes_);
    }
}

} // namespace ds4::backend::gpu
