#include "backend/sim/sim_ring.h"

#include <cstring>

#include "failure.h"

namespace ds4::backend::sim {

namespace {

constexpr const char *kWhat = "upload weights";

size_t whole_pages(size_t bytes) {
    return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

} // namespace

SimRing::SimRing(const SimDevice &device, size_t slots, size_t slot_bytes)
    : device_(device), slot_bytes_(slot_bytes), stride_(whole_pages(slot_bytes)),
      pages_(pinned_pages(device, slots * stride_, "upload buffers")),
      window_(device, pages_.data(), slots * stride_, "upload buffers"), slots_(slots) {}

SimRing::~SimRing() {
    while (!on_the_way_.empty()) {
        try {
            deliver(on_the_way_.front().number);
        } catch (const Failure &) {
            /* Its place was freed while it was on its way: there is nothing left to arrive at. */
        }
    }
}

std::span<std::byte> SimRing::wait(size_t slot) {
    device_.check(DS4_SIM_CALL_WAIT, kWhat);
    const std::lock_guard lock(mutex_);
    deliver(slots_.at(slot).last);
    return {buffer(slot), slot_bytes_};
}

void SimRing::send(size_t slot, void *to, size_t bytes, size_t from) {
    if (slot >= slots_.size() || from > slot_bytes_ || bytes > slot_bytes_ - from) {
        throw Failure(DS4_E_DEVICE, std::string("cannot ") + kWhat + ": bytes " + std::to_string(from) + " to " +
                                        std::to_string(from + bytes) + " of buffer " + std::to_string(slot) +
                                        " were sent, and there are " + std::to_string(slots_.size()) + " of " +
                                        std::to_string(slot_bytes_) + " bytes");
    }
    send_pinned(slot, to, buffer(slot) + from, bytes);
}

void SimRing::send_pinned(size_t slot, void *to, const std::byte *from, size_t bytes) {
    if (bytes == 0) {
        return;
    }
    if (!device_.addresses().pins(from, bytes)) {
        throw Failure(DS4_E_DEVICE, std::string("cannot ") + kWhat + ": they lie in host memory that is not pinned");
    }
    std::byte *const place = device_.own_memory(to, bytes, kWhat);
    device_.check(DS4_SIM_CALL_SEND, kWhat);
    const std::lock_guard lock(mutex_);
    Slot                 &sender = slots_.at(slot);
    std::memset(place, kPoison, bytes);
    on_the_way_.push_back({++sent_, to, from, bytes});
    sender = {.last = sent_, .asked = false};
    device_.ledger().copied_in(bytes);
}

bool SimRing::arrived(size_t slot) {
    device_.check(DS4_SIM_CALL_WAIT, kWhat);
    const std::lock_guard lock(mutex_);
    Slot                 &sender = slots_.at(slot);
    const bool            on_its_way = !on_the_way_.empty() && on_the_way_.front().number <= sender.last;
    if (on_its_way && !sender.asked) {
        sender.asked = true;
        return false;
    }
    deliver(sender.last);
    return true;
}

void SimRing::precede_ops() {
    const std::lock_guard lock(mutex_);
    deliver(sent_);
}

void SimRing::finish() {
    device_.check(DS4_SIM_CALL_WAIT, kWhat);
    const std::lock_guard lock(mutex_);
    deliver(sent_);
}

void SimRing::deliver(uint64_t last) {
    while (!on_the_way_.empty() && on_the_way_.front().number <= last) {
        const Copy copy = on_the_way_.front();
        on_the_way_.pop_front();
        std::byte *const place = device_.own_memory(copy.to, copy.bytes, kWhat);
        if (!device_.addresses().pins(copy.from, copy.bytes)) {
            throw Failure(DS4_E_DEVICE, std::string("cannot ") + kWhat + ": their host memory was unpinned on the way");
        }
        std::memcpy(place, copy.from, copy.bytes);
    }
}

} // namespace ds4::backend::sim
