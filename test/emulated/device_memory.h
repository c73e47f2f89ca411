/* The emulated card's memory: apart from the host's in that the host may not touch it between copies, and each
 * allocation ends at a page that nobody may touch. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace ds4::emulated {

class DeviceMemory {
public:
    /* Not-a-number throughout, 256-byte aligned; nullptr when the process has no more. */
    void *take(size_t bytes);
    /* Whether `data` was taken. Ends the process when something was written behind the allocation. */
    bool give_back(void *data);
    /* Gives all back, whatever it holds. */
    void forget();

    bool   holds(const void *data, size_t bytes) const;   /* wholly inside one allocation */
    bool   touches(const void *data, size_t bytes) const; /* any of the card's addresses */
    size_t total() const { return total_; }

    /* Lets kernels and copies in; shuts the host out again. */
    void open();
    void close();

private:
    struct Piece {
        size_t   bytes;
        uint8_t *first_page;
        size_t   page_bytes;
    };

    std::map<uintptr_t, Piece> pieces_;
    uint8_t                   *arena_ = nullptr; /* addresses reserved for the card */
    size_t                     used_ = 0;        /* of them, counted up: an address is not used twice */
    size_t                     total_ = 0;
    bool                       open_ = true;
};

} // namespace ds4::emulated
