/* Pinned buffers on the way to a simulated device.
 *
 * What was sent is on its way until somebody waits for it: then, and not before, it is copied, from what is in the buffer by
 * then. Meanwhile its place on the device holds only bits that make not-a-number of any float. So code that reads too early,
 * or fills a buffer again too early, computes nonsense here each time, and not once in a thousand times. */
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "backend/sim/sim_device.h"

namespace ds4::backend::sim {

class SimRing final : public UploadRing {
public:
    SimRing(const SimDevice &device, size_t slots, size_t slot_bytes);
    ~SimRing() override;
    SimRing(const SimRing &) = delete;
    SimRing &operator=(const SimRing &) = delete;

    std::span<std::byte> wait(size_t slot) override;
    void                 send(size_t slot, void *to, size_t bytes, size_t from) override;
    void                 send_pinned(size_t slot, void *to, const std::byte *from, size_t bytes) override;
    bool                 arrived(size_t slot) override;
    /* Ops are done when they return. */
    void                 follow_ops() override {}
    void                 precede_ops() override;
    void                 finish() override;

private:
    struct Slot {
        uint64_t last = 0; /* number of its last copy */
        bool     asked = false; /* whether that has arrived */
    };
    struct Copy {
        uint64_t         number; /* from 1, in the order of sending */
        void            *to;
        const std::byte *from;
        size_t           bytes;
    };

    std::byte *buffer(size_t slot) const { return pages_.data() + slot * stride_; }
    /* Copies arrive in the order of sending: all up to this number. */
    void deliver(uint64_t last);

    const SimDevice &device_;
    const size_t     slot_bytes_;
    const size_t     stride_; /* whole pages */
    const Pages      pages_;
    PinnedWindow     window_;

    std::mutex        mutex_;
    std::vector<Slot> slots_;
    std::deque<Copy>  on_the_way_;
    uint64_t          sent_ = 0;
};

} // namespace ds4::backend::sim
