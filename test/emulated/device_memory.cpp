#include "emulated/device_memory.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <sys/mman.h>

namespace ds4::emulated {

namespace {

constexpr size_t  kPage = 4096;
constexpr size_t  kAlignment = 256;
constexpr size_t  kArenaBytes = size_t{1} << 42;
constexpr uint8_t kPoison = 0xff; /* a float of these is not a number, an integer is -1 */
/* Changing the rights of more than this at each synchronisation would cost more than it finds. */
constexpr size_t kMostGuarded = size_t{32} << 20;
constexpr size_t kMostPoisoned = size_t{1} << 30;

} // namespace

void *DeviceMemory::take(size_t bytes) {
    if (arena_ == nullptr) {
        void *arena = mmap(nullptr, kArenaBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (arena == MAP_FAILED) {
            return nullptr;
        }
        arena_ = static_cast<uint8_t *>(arena);
    }
    const size_t aligned = (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
    const size_t page_bytes = (aligned + kPage - 1) / kPage * kPage;
    uint8_t     *first_page = arena_ + used_;
    if (page_bytes + kPage > kArenaBytes - used_ || mprotect(first_page, page_bytes, PROT_READ | PROT_WRITE) != 0) {
        return nullptr;
    }
    used_ += page_bytes + kPage;
    open();
    uint8_t *data = first_page + page_bytes - aligned;
    if (page_bytes <= kMostPoisoned) {
        std::memset(first_page, kPoison, page_bytes);
    } else {
        std::memset(data + bytes, kPoison, aligned - bytes);
    }
    pieces_[reinterpret_cast<uintptr_t>(data)] = {bytes, first_page, page_bytes};
    total_ += bytes;
    return data;
}

bool DeviceMemory::give_back(void *data) {
    const auto found = pieces_.find(reinterpret_cast<uintptr_t>(data));
    if (found == pieces_.end()) {
        return false;
    }
    const Piece piece = found->second;
    open();
    const auto *behind = static_cast<const uint8_t *>(data) + piece.bytes;
    const uint8_t *end = piece.first_page + piece.page_bytes;
    const auto *written = std::find_if(behind, end, [](uint8_t byte) { return byte != kPoison; });
    if (written == end && piece.page_bytes <= kMostPoisoned) {
        end = static_cast<const uint8_t *>(data);
        written = std::find_if(static_cast<const uint8_t *>(piece.first_page), end, [](uint8_t byte) { return byte != kPoison; });
    }
    if (written != end) {
        std::fprintf(stderr, "emulated card: byte %td of an allocation of %zu bytes was written\n",
                     written - static_cast<const uint8_t *>(data), piece.bytes);
        std::abort();
    }
    /* Back to untouchable and without pages: a kernel that still uses it faults. */
    mmap(piece.first_page, piece.page_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    total_ -= piece.bytes;
    pieces_.erase(found);
    return true;
}

void DeviceMemory::forget() {
    if (arena_ != nullptr) {
        mmap(arena_, used_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    }
    pieces_.clear();
    total_ = 0;
}

bool DeviceMemory::holds(const void *data, size_t bytes) const {
    const auto begin = reinterpret_cast<uintptr_t>(data);
    auto       after = pieces_.upper_bound(begin);
    return after != pieces_.begin() && begin + bytes <= std::prev(after)->first + std::prev(after)->second.bytes;
}

bool DeviceMemory::touches(const void *data, size_t bytes) const {
    const auto begin = reinterpret_cast<uintptr_t>(data);
    const auto arena = reinterpret_cast<uintptr_t>(arena_);
    return arena != 0 && begin < arena + kArenaBytes && begin + bytes > arena;
}

void DeviceMemory::open() {
    if (open_) {
        return;
    }
    for (const auto &[begin, piece] : pieces_) {
        mprotect(piece.first_page, piece.page_bytes, PROT_READ | PROT_WRITE);
    }
    open_ = true;
}

void DeviceMemory::close() {
    if (open_ && arena_ != nullptr && total_ <= kMostGuarded) {
        mprotect(arena_, used_, PROT_NONE);
        open_ = false;
    }
}

} // namespace ds4::emulated
