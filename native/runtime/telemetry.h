/* The block of atomic 64-bit words that the control plane reads while a call runs, and through which it cancels one. */
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>

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

/* Names a step of the load (DS4_STEP_*) until its end, then the one around it again. A step that throws stays named, so that
 * whoever asked for the load learns what of it failed. */
class LoadStep {
public:
    LoadStep(Telemetry &telemetry, uint64_t step)
        : telemetry_(telemetry), before_(telemetry.get(DS4_WORD_LOAD_STEP)), unwinding_(std::uncaught_exceptions()) {
        telemetry_.set(DS4_WORD_LOAD_STEP, step);
    }
    ~LoadStep() {
        if (std::uncaught_exceptions() == unwinding_) {
            telemetry_.set(DS4_WORD_LOAD_STEP, before_);
        }
    }
    LoadStep(const LoadStep &) = delete;
    LoadStep &operator=(const LoadStep &) = delete;

private:
    Telemetry &telemetry_;
    uint64_t   before_;
    int        unwinding_;
};

} // namespace ds4::runtime
