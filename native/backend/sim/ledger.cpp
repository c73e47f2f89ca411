#include "backend/sim/ledger.h"

#include <atomic>
#include <initializer_list>

namespace ds4::backend::sim {

namespace {

/* Rate 0: as fast as you like. */
uint64_t transfer_ns(uint64_t bytes, uint64_t bytes_per_second, uint64_t latency_ns) {
    if (bytes_per_second == 0) {
        return latency_ns;
    }
    using Wide = unsigned __int128; /* 2^34 bytes times 10^9 is more than 64 bits hold */
    return latency_ns + static_cast<uint64_t>(Wide{bytes} * 1'000'000'000 / bytes_per_second);
}

} // namespace

Ledger::Ledger(uint64_t *words, const ds4_simulation &machine) : words_(words), machine_(machine) {
    if (words_ == nullptr) {
        return;
    }
    const auto word = [&](uint32_t index) { return std::atomic_ref<uint64_t>(words_[index]); };
    for (const uint32_t sum : {DS4_WORD_SIM_TO_DEVICE_BYTES, DS4_WORD_SIM_FROM_DEVICE_BYTES, DS4_WORD_SIM_MAPPED_READ_BYTES,
                               DS4_WORD_SIM_DISK_BYTES, DS4_WORD_SIM_CALLS, DS4_WORD_SIM_NS}) {
        word(sum).store(0, std::memory_order_relaxed);
    }
    word(DS4_WORD_SIM_PEAK_BYTES).store(word(DS4_WORD_SIM_ALLOCATED_BYTES).load(std::memory_order_relaxed),
                                        std::memory_order_relaxed);
}

void Ledger::add(uint32_t word, uint64_t value) const {
    if (words_ != nullptr) {
        std::atomic_ref<uint64_t>(words_[word]).fetch_add(value, std::memory_order_relaxed);
    }
}

void Ledger::subtract(uint32_t word, uint64_t value) const {
    if (words_ != nullptr) {
        std::atomic_ref<uint64_t>(words_[word]).fetch_sub(value, std::memory_order_relaxed);
    }
}

void Ledger::copied_in(uint64_t bytes) const {
    add(DS4_WORD_SIM_TO_DEVICE_BYTES, bytes);
    add(DS4_WORD_SIM_NS, transfer_ns(bytes, machine_.link_bytes_per_second, machine_.link_ns));
}

void Ledger::copied_out(uint64_t bytes) const {
    add(DS4_WORD_SIM_FROM_DEVICE_BYTES, bytes);
    add(DS4_WORD_SIM_NS, transfer_ns(bytes, machine_.link_bytes_per_second, machine_.link_ns));
}

void Ledger::read_mapped(uint64_t bytes) const {
    add(DS4_WORD_SIM_MAPPED_READ_BYTES, bytes);
    add(DS4_WORD_SIM_NS, transfer_ns(bytes, machine_.mapped_bytes_per_second, 0));
}

void Ledger::read_disk(uint64_t bytes) const {
    add(DS4_WORD_SIM_DISK_BYTES, bytes);
    add(DS4_WORD_SIM_NS, transfer_ns(bytes, machine_.disk_bytes_per_second, machine_.disk_ns));
}

void Ledger::allocated(uint64_t bytes) const {
    if (words_ == nullptr) {
        return;
    }
    add(DS4_WORD_SIM_ALLOCATIONS, 1);
    const uint64_t now =
        std::atomic_ref<uint64_t>(words_[DS4_WORD_SIM_ALLOCATED_BYTES]).fetch_add(bytes, std::memory_order_relaxed) + bytes;
    const std::atomic_ref<uint64_t> peak(words_[DS4_WORD_SIM_PEAK_BYTES]);
    uint64_t                        known = peak.load(std::memory_order_relaxed);
    while (known < now && !peak.compare_exchange_weak(known, now, std::memory_order_relaxed)) {
    }
}

void Ledger::freed(uint64_t bytes) const {
    subtract(DS4_WORD_SIM_ALLOCATIONS, 1);
    subtract(DS4_WORD_SIM_ALLOCATED_BYTES, bytes);
}

} // namespace ds4::backend::sim
