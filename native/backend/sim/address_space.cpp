#include "backend/sim/address_space.h"

#include <iterator>

#include <sys/mman.h>

namespace ds4::backend::sim {

namespace {

/* The range that starts last at or before an address. */
template <typename Map> typename Map::const_iterator last_before(const Map &ranges, uintptr_t address) {
    const auto after = ranges.upper_bound(address);
    return after == ranges.begin() ? ranges.end() : std::prev(after);
}

} // namespace

AddressSpace::~AddressSpace() {
    for (const auto &[address, bytes] : reserved_) {
        ::munmap(reinterpret_cast<void *>(address), bytes);
    }
}

std::byte *AddressSpace::open(std::byte *memory, size_t bytes, Place place) {
    const size_t in_page = reinterpret_cast<uintptr_t>(memory) % kPageBytes;
    /* One page more, so that running over the end of one window does not lead into the next. */
    const size_t length = (in_page + bytes + kPageBytes - 1) / kPageBytes * kPageBytes + kPageBytes;
    void *const  reserved = ::mmap(nullptr, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED) {
        return nullptr;
    }
    const std::lock_guard lock(mutex_);
    reserved_[reinterpret_cast<uintptr_t>(reserved)] = length;
    std::byte *const address = static_cast<std::byte *>(reserved) + in_page;
    open_[reinterpret_cast<uintptr_t>(address)] = {memory, bytes, place};
    return address;
}

void AddressSpace::close(const void *address) noexcept {
    const std::lock_guard lock(mutex_);
    open_.erase(reinterpret_cast<uintptr_t>(address));
}

std::optional<Behind> AddressSpace::find(const void *address) const {
    const auto            at = reinterpret_cast<uintptr_t>(address);
    const std::lock_guard lock(mutex_);
    const auto            window = last_before(open_, at);
    if (window == open_.end() || at - window->first >= window->second.bytes) {
        return std::nullopt;
    }
    const size_t offset = at - window->first;
    return Behind{window->second.memory + offset, window->second.bytes - offset, window->second.place};
}

bool AddressSpace::pins(const std::byte *memory, size_t bytes) const {
    const auto            first = reinterpret_cast<uintptr_t>(memory);
    const std::lock_guard lock(mutex_);
    for (const auto &[address, window] : open_) {
        const auto start = reinterpret_cast<uintptr_t>(window.memory);
        if (window.place == Place::host && first >= start && first - start <= window.bytes &&
            bytes <= window.bytes - (first - start)) {
            return true;
        }
    }
    return false;
}

bool AddressSpace::owns(const void *address) const {
    const auto            at = reinterpret_cast<uintptr_t>(address);
    const std::lock_guard lock(mutex_);
    const auto            range = last_before(reserved_, at);
    return range != reserved_.end() && at - range->first < range->second;
}

} // namespace ds4::backend::sim
