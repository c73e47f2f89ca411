/* The block of atomic 64-bit words that the control plane reads while a call runs, and through which it cancels one. */
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "failure.h"

namespace ds4::runtime {

class Telemetry {
public:
    Telemetry() = default;
    Telemetry(const Telemetry &) = delete;
    Telemetry &operator=(const Telemetry &) = delete;

    uint64_t *words() { return words_.data(); }

    uint64_t get(size_t word) const;
    void     set(size_t word, uint64_t value);
    void     add(size_t word, uint64_t value);

    bool cancelled() const { return get(DS4_WORD_CANCEL) != 0; }
    /* Throws Failure(DS4_E_CANCELLED) naming `what` when the cancel word is set. */
    void poll_cancel(const char *what) const;

private:
    alignas(64) std::array<uint64_t, DS4_WORD_COUNT> words_{};
};

/* Shows a phase for as long as it lives, however the work ends. */
class PhaseScope {
public:
    PhaseScope(Telemetry &telemetry, uint64_t phase) : telemetry_(telemetry) { telemetry_.set(DS4_WORD_PHASE, phase); }
    ~PhaseScope() { telemetry_.set(DS4_WORD_PHASE, DS4_PHASE_IDLE); }
    PhaseScope(const PhaseScope &) = delete;
    PhaseScope &operator=(const PhaseScope &) = delete;

private:
    Telemetry &telemetry_;
};

} // namespace ds4::runtime
