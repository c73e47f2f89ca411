/* How long the host waits for a card, and which cards it waits for no longer. */
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "backend/gpu/gpu.h"

namespace ds4::backend::gpu {

#if defined(DS4_EMULATED)
using ::ds4::emulated::given_up_cards;
using ::ds4::emulated::patience;
#else
/* Of one wait. The longest are for one layer of a batch, or for all layers of a token, with experts that come over a slow bus:
 * some ten seconds. */
constexpr std::chrono::seconds kPatience{60};
inline std::chrono::milliseconds patience() { return kPatience; }

/* Cards that did not answer, a bit each. Of the process, not of a GpuDevice: the runtime too has one state of a card for the
 * whole process, and whoever opened the card again would wait for the same work again. */
inline std::atomic<uint64_t> given_up_cards = 0;
#endif

} // namespace ds4::backend::gpu
