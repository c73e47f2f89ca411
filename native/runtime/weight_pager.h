/* Weights of a layer that take turns in a few slots of device memory. A page is what one layer's ops read, apart from routed
 * experts: while it is entered, all of it is there.
 *
 * Pages are visited in the same order again and again, which is where the least recently used page is the next one needed. So
 * the first pages keep a slot for ever and the others go round in the rest. Which slot a page has never changes: ops may be
 * given its addresses once and for all. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/device.h"
#include "runtime/fetch_queue.h"
#include "runtime/telemetry.h"

namespace ds4::runtime {

struct PagePart {
    const FileReader *source;
    uint64_t          offset;
    uint64_t          bytes;
};

class WeightPager {
public:
    /* `pages`: the parts of each, which begin at multiples of 256 in its slot. At least one slot.
     * Throws Failure(DS4_E_NO_MEMORY). */
    WeightPager(backend::Device &device, FetchQueue &queue, std::span<const std::vector<PagePart>> pages, size_t slots,
                Telemetry &telemetry);
    ~WeightPager();
    WeightPager(const WeightPager &) = delete;
    WeightPager &operator=(const WeightPager &) = delete;

    const std::byte *address(size_t page, size_t part) const;
    uint64_t         bytes() const { return memory_.bytes(); }

    /* Ops called from now on find the page in its slot. Throws the failure of a read or of the device. */
    void enter(size_t page);
    /* After the last op that reads it was called: the page that is next in its slot may come. */
    void leave(size_t page);

private:
    struct Slot {
        size_t             page;              /* in it, or on its way */
        FetchQueue::Ticket ticket = 0;        /* not 0: on its way */
        bool               is_fresh = false;  /* loaded ahead and not used yet */
        uint64_t           used_bytes = 0;    /* the most that any page has left in it */
    };

    size_t   slot_of(size_t page) const;
    size_t   next_in_slot(size_t page) const;
    uint64_t page_bytes(size_t page) const;
    void     start(size_t page, Urgency urgency);
    void     land(Slot &slot);

    FetchQueue                        &queue_;
    Telemetry                         &telemetry_;
    std::vector<std::vector<PagePart>> pages_;
    std::vector<Slot>                  slots_;
    size_t                             kept_; /* so many of the first pages have a slot of their own */
    uint64_t                           slot_bytes_ = 0;
    backend::Allocation                memory_;
};

} // namespace ds4::runtime
