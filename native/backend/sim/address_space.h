/* The addresses that the kernels of a simulated device know.
 *
 * A window is a range of addresses that stands for memory elsewhere. Its pages may not be touched by anybody, so that code of
 * the host that follows a device address ends there and then, as it would on a machine with a card. No address is given out
 * twice while the device lives: one that was kept too long is found out. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "backend/sim/pages.h"

namespace ds4::backend::sim {

enum class Place {
    device, /* the device's own */
    host,   /* of the host, pinned: kernels read it and write it not */
};

/* Memory behind an address, from there on. */
struct Behind {
    std::byte *memory;
    size_t     bytes;
    Place      place;
};

class AddressSpace {
public:
    AddressSpace() = default;
    ~AddressSpace();
    AddressSpace(const AddressSpace &) = delete;
    AddressSpace &operator=(const AddressSpace &) = delete;

    /* A window with the same place in its page as the memory has. nullptr when the system has no addresses left. */
    std::byte *open(std::byte *memory, size_t bytes, Place place);
    void       close(const void *address) noexcept;

    /* Nothing for an address that is in no open window. */
    std::optional<Behind> find(const void *address) const;
    /* Whether an open window stands for all of this memory of the host. */
    bool pins(const std::byte *memory, size_t bytes) const;
    /* Whether the address is or was the device's, and so not the host's. */
    bool owns(const void *address) const;

private:
    struct Window {
        std::byte *memory;
        size_t     bytes;
        Place      place;
    };

    mutable std::mutex          mutex_;
    std::map<uintptr_t, Window> open_;     /* by first address */
    std::map<uintptr_t, size_t> reserved_; /* bytes by first address, closed windows too */
};

} // namespace ds4::backend::sim
