#include "backend/sim/machine.h"

#include <algorithm>
#include <string>

#include "failure.h"

namespace ds4::backend::sim {

namespace {

/* A workstation card of 2023 on a bus and a drive of its time. */
ds4_simulation ordinary_machine() {
    ds4_simulation machine{};
    machine.size = sizeof(machine);
    machine.kind = DS4_DEVICE_DISCRETE;
    machine.vram_bytes = uint64_t{48} << 30;
    machine.link_bytes_per_second = 25'000'000'000;
    machine.mapped_bytes_per_second = 12'000'000'000;
    machine.disk_bytes_per_second = 5'000'000'000;
    machine.link_ns = 10'000;
    machine.disk_ns = 80'000;
    return machine;
}

bool is_of_files(uint32_t call) {
    return call == DS4_SIM_CALL_READ || call == DS4_SIM_CALL_DIRECT || call == DS4_SIM_CALL_SHORT;
}

/* Those whose `fail_at` is an offset in a file. */
bool is_at_offset(uint32_t call) {
    return call == DS4_SIM_CALL_READ_AT || call == DS4_SIM_CALL_WRONG_AT;
}

[[noreturn]] void refuse(const std::string &why) {
    throw Failure(DS4_E_ARGUMENT, "cannot simulate this machine: " + why);
}

void check(const ds4_simulation &machine) {
    if (machine.kind != DS4_DEVICE_DISCRETE && machine.kind != DS4_DEVICE_INTEGRATED) {
        refuse("its device is of kind " + std::to_string(machine.kind) + ", not discrete (1) or integrated (2)");
    }
    if (machine.vram_bytes == 0 || machine.used_bytes > machine.vram_bytes) {
        refuse(std::to_string(machine.used_bytes) + " of " + std::to_string(machine.vram_bytes) +
               " bytes of its device memory are used by others");
    }
    if (machine.device_count > DS4_SIM_MOST_DEVICES) {
        refuse("it has " + std::to_string(machine.device_count) + " devices, and " + std::to_string(DS4_SIM_MOST_DEVICES) +
               " are possible");
    }
    if (machine.fail_call >= DS4_SIM_CALL_COUNT) {
        refuse("there is no call " + std::to_string(machine.fail_call) + " that could fail");
    }
    if (machine.fail_call != DS4_SIM_CALL_NONE && !is_at_offset(machine.fail_call) && machine.fail_at == 0) {
        refuse("uses of a call that fails are counted from 1, so that fail_at cannot be 0");
    }
}

} // namespace

uint64_t Card::free_bytes() const {
    const std::lock_guard lock(mutex_);
    return free_locked();
}

bool Card::take(uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    if (bytes > free_locked()) {
        return false;
    }
    taken_ += bytes;
    return true;
}

void Card::give_back(uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    taken_ -= bytes;
}

bool Card::pin(uint64_t bytes) {
    return !is_integrated() || take(bytes);
}

void Card::unpin(uint64_t bytes) {
    if (is_integrated()) {
        give_back(bytes);
    }
}

Machine::Machine() {
    become(ordinary_machine());
}

void Machine::become(const ds4_simulation &description) {
    check(description);
    std::vector<std::shared_ptr<Card>> cards(std::max(1u, description.device_count));
    for (std::shared_ptr<Card> &card : cards) {
        card = std::make_shared<Card>(description);
    }
    const std::lock_guard lock(mutex_);
    cards_ = std::move(cards);
    fail_call_ = description.fail_call;
    fail_count_ = description.fail_count;
    fail_at_ = description.fail_at;
    uses_ = 0;
    is_lost_ = false;
    read_wait_ = std::chrono::microseconds(description.read_wait_us);
}

uint32_t Machine::card_count() const {
    const std::lock_guard lock(mutex_);
    return static_cast<uint32_t>(cards_.size());
}

std::shared_ptr<Card> Machine::card(uint32_t index) const {
    const std::lock_guard lock(mutex_);
    if (index >= cards_.size()) {
        const std::string known = cards_.size() == 1 ? "there is one device, number 0"
                                                     : "the devices are 0 to " + std::to_string(cards_.size() - 1);
        throw Failure(DS4_E_DEVICE, "cannot open device " + std::to_string(index) + " of the simulated backend: " + known);
    }
    return cards_[index];
}

bool Machine::fails(uint32_t call) {
    const std::lock_guard lock(mutex_);
    if (fail_call_ == DS4_SIM_CALL_LOST && !is_of_files(call)) {
        is_lost_ = is_lost_ || ++uses_ >= fail_at_;
        return is_lost_;
    }
    return call == fail_call_ && counts_now();
}

/* Whether one more use of what fails is among those that do. The mutex is held. */
bool Machine::counts_now() {
    ++uses_;
    const uint64_t first = is_at_offset(fail_call_) ? 1 : fail_at_;
    return uses_ >= first && (fail_count_ == 0 || uses_ - first < fail_count_);
}

ReadFault Machine::read_fault(uint64_t offset, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    const bool            covers = fail_at_ >= offset && fail_at_ - offset < bytes;
    const bool            meets = fail_call_ == DS4_SIM_CALL_SHORT || fail_call_ == DS4_SIM_CALL_READ ||
                       (is_at_offset(fail_call_) && covers);
    ReadFault             fault;
    if (meets && counts_now()) {
        fault.is_refused = fail_call_ == DS4_SIM_CALL_READ || fail_call_ == DS4_SIM_CALL_READ_AT;
        fault.is_short = fail_call_ == DS4_SIM_CALL_SHORT;
        fault.wrong_at = fail_call_ == DS4_SIM_CALL_WRONG_AT ? std::optional(fail_at_) : std::nullopt;
    }
    return fault;
}

bool Machine::is_lost() const {
    const std::lock_guard lock(mutex_);
    return is_lost_;
}

std::chrono::microseconds Machine::read_wait() const {
    const std::lock_guard lock(mutex_);
    return read_wait_;
}

Machine &machine() {
    static Machine the_machine;
    return the_machine;
}

} // namespace ds4::backend::sim
