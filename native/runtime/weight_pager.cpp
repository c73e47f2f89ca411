#include "runtime/weight_pager.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "failure.h"
#include "runtime/checked_bytes.h"

namespace ds4::runtime {

namespace {

constexpr uint64_t kAlignment = 256;
constexpr size_t   kNoPage = std::numeric_limits<size_t>::max();
/* One page is read into while the other is used; more would only take slots from pages that could stay. */
constexpr size_t kRotating = 2;

uint64_t round_up(uint64_t bytes) { return checked_add(bytes, kAlignment - 1) / kAlignment * kAlignment; }

} // namespace

WeightPager::WeightPager(backend::Device &device, FetchQueue &queue, std::span<const std::vector<PagePart>> pages,
                         size_t slots, Telemetry &telemetry)
    : queue_(queue), telemetry_(telemetry), pages_(pages.begin(), pages.end()),
      slots_(std::min(slots, pages.size()), Slot{.page = kNoPage}),
      kept_(slots_.size() == pages_.size() ? slots_.size() : slots_.size() - std::min(slots_.size(), kRotating)) {
    for (size_t page = 0; page < pages_.size(); ++page) {
        slot_bytes_ = std::max(slot_bytes_, page_bytes(page));
    }
    memory_ = device.allocate(checked_multiply(slots_.size(), slot_bytes_), "the slots of paged weights");
}

WeightPager::~WeightPager() {
    for (const Slot &slot : slots_) {
        if (slot.ticket != 0) {
            try {
                queue_.wait(slot.ticket);
            } catch (...) {
                /* Nobody needs it any more. */
            }
        }
    }
}

uint64_t WeightPager::page_bytes(size_t page) const {
    uint64_t bytes = 0;
    for (const PagePart &part : pages_[page]) {
        bytes = checked_add(bytes, round_up(part.bytes));
    }
    return bytes;
}

size_t WeightPager::slot_of(size_t page) const {
    return page < kept_ ? page : kept_ + (page - kept_) % (slots_.size() - kept_);
}

/* The one that is needed after this one has been used, and then the first again. */
size_t WeightPager::next_in_slot(size_t page) const {
    const size_t rotating = slots_.size() - kept_;
    return page + rotating < pages_.size() ? page + rotating : slot_of(page);
}

const std::byte *WeightPager::address(size_t page, size_t part) const {
    const std::byte *at = memory_.as<std::byte>() + slot_of(page) * slot_bytes_;
    for (size_t before = 0; before < part; ++before) {
        at += round_up(pages_[page][before].bytes);
    }
    return at;
}

/* Behind the end of the page lie zeros, whatever was in the slot before: kernels that read whole blocks see no other page's
 * rows. */
void WeightPager::start(size_t page, Urgency urgency) {
    Slot              &slot = slots_[slot_of(page)];
    std::byte *const   base = memory_.as<std::byte>() + slot_of(page) * slot_bytes_;
    std::vector<Fetch> fetches;
    uint64_t           end = 0;
    for (const PagePart &part : pages_[page]) {
        fetches.push_back({part.source, part.offset, part.bytes, base + end});
        const uint64_t rounded = round_up(part.bytes);
        if (rounded > part.bytes && slot.used_bytes > end + part.bytes) {
            fetches.push_back({nullptr, 0, rounded - part.bytes, base + end + part.bytes});
        }
        end += rounded;
    }
    if (slot.used_bytes > end) {
        fetches.push_back({nullptr, 0, slot.used_bytes - end, base + end});
    }
    slot.used_bytes = std::max(slot.used_bytes, end);
    slot.page = page;
    slot.is_fresh = urgency == Urgency::ahead;
    queue_.follow_ops();
    slot.ticket = queue_.submit(fetches, urgency);
    telemetry_.add(DS4_WORD_PAGE_LOADS, 1);
    telemetry_.add(DS4_WORD_PAGE_BYTES, page_bytes(page));
}

/* Waits until what is on its way into the slot has landed. */
void WeightPager::land(Slot &slot) {
    try {
        queue_.wait(std::exchange(slot.ticket, 0));
    } catch (...) {
        slot.page = kNoPage;
        throw;
    }
}

void WeightPager::enter(size_t page) {
    Slot &slot = slots_[slot_of(page)];
    if (slot.page == page) {
        telemetry_.add(DS4_WORD_PAGE_HITS, 1);
        if (std::exchange(slot.is_fresh, false)) {
            telemetry_.add(DS4_WORD_PAGE_PREFETCHED, 1);
            telemetry_.add(DS4_WORD_PAGE_LATE, slot.ticket != 0 && !queue_.is_done(slot.ticket) ? 1 : 0);
        }
    }
    if (slot.ticket != 0) {
        try {
            land(slot);
        } catch (const Failure &) {
            /* Nobody had asked for it yet. If the page is needed, its read is tried once more below. */
        }
    }
    if (slot.page != page) {
        start(page, Urgency::now);
        land(slot);
    }
}

void WeightPager::leave(size_t page) {
    const size_t next = next_in_slot(page);
    if (page >= kept_ && next != page) {
        start(next, Urgency::ahead);
    }
}

} // namespace ds4::runtime
