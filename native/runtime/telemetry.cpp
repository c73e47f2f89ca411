#include "runtime/telemetry.h"

#include <atomic>

namespace ds4::runtime {

/* Each word stands for itself: no reader draws conclusions about other memory from one, so relaxed order is enough. */

uint64_t Telemetry::get(size_t word) const {
    /* atomic_ref has no form for const values before C++26; loading does not change the word. */
    return std::atomic_ref<uint64_t>(const_cast<uint64_t &>(words_[word])).load(std::memory_order_relaxed);
}

void Telemetry::set(size_t word, uint64_t value) {
    std::atomic_ref<uint64_t>(words_[word]).store(value, std::memory_order_relaxed);
}

void Telemetry::add(size_t word, uint64_t value) {
    std::atomic_ref<uint64_t>(words_[word]).fetch_add(value, std::memory_order_relaxed);
}

void Telemetry::poll_cancel(const char *what) const {
    if (cancelled()) {
        throw Failure(DS4_E_CANCELLED, std::string(what) + " was cancelled");
    }
}

} // namespace ds4::runtime
