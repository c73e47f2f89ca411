/* What the telemetry says about pinned buffers and what is sent from them. */
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/device.h"
#include "runtime/telemetry.h"

namespace ds4::runtime {

/* ring.wait(slot), and how long it took. */
inline std::span<std::byte> free_slot(backend::UploadRing &ring, size_t slot, Telemetry &telemetry) {
    const auto                 start = std::chrono::steady_clock::now();
    const std::span<std::byte> buffer = ring.wait(slot);
    const auto                 waited = std::chrono::steady_clock::now() - start;
    telemetry.add(DS4_WORD_PIN_WAIT_NS, static_cast<uint64_t>(std::chrono::nanoseconds(waited).count()));
    return buffer;
}

/* `bytes` of weights were sent into device memory; 0: into memory that is the host's as well. */
inline void count_upload(Telemetry &telemetry, uint64_t bytes) {
    telemetry.add(DS4_WORD_UPLOADS, bytes != 0 ? 1 : 0);
    telemetry.add(DS4_WORD_UPLOAD_BYTES, bytes);
}

} // namespace ds4::runtime
