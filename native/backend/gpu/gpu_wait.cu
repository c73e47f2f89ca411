/* Waiting for a card, but not for ever. The runtime's own calls that wait have no limit, so the host asks instead. */
#include <algorithm>
#include <string>
#include <thread>

#include "backend/gpu/gpu_device.h"
#include "backend/gpu/patience.h"
#include "failure.h"

namespace ds4::backend::gpu {

namespace {

using Clock = std::chrono::steady_clock;

/* So long the host asks again and again, as the runtime's own waits do: what a token waits for is found at once. Whoever has
 * waited that long does not feel a nap. */
constexpr std::chrono::milliseconds kAwake{50};
constexpr std::chrono::microseconds kNap{50};
/* Of the time between two questions no more counts: a process that was stopped has not waited. */
constexpr std::chrono::seconds kMostCounted{1};

/* Asking takes a lock of the driver's, which threads that upload need as well. */
void breathe() {
    for (int i = 0; i < 8; ++i) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#else
        asm volatile("" ::: "memory");
#endif
    }
}

uint64_t bit_of(uint32_t card) {
    return uint64_t{1} << std::min(card, 63u);
}

/* What `query` says in the end; gpuErrorNotReady when patience has. */
template <typename Query> gpuError_t ask(uint32_t card, Query &&query) {
    gpuError_t state = query();
    if (state != gpuErrorNotReady) {
        return state;
    }
    const std::chrono::nanoseconds most = patience();
    std::chrono::nanoseconds       waited{0};
    for (Clock::time_point last = Clock::now(); state == gpuErrorNotReady && waited < most;) {
        if ((given_up_cards & bit_of(card)) != 0) {
            break;
        }
        if (waited < kAwake) {
            breathe();
        } else {
            std::this_thread::sleep_for(kNap);
        }
        const Clock::time_point now = Clock::now();
        waited += std::min<std::chrono::nanoseconds>(now - last, kMostCounted);
        last = now;
        state = query();
    }
    static_cast<void>(gpuGetLastError()); /* "not ready" is no error that the next check should find */
    return state;
}

} // namespace

bool GpuDevice::is_given_up() const noexcept {
    return (given_up_cards & bit_of(index_)) != 0;
}

void GpuDevice::give_up(const char *what) const {
    given_up_cards |= bit_of(index_);
    const auto seconds = std::chrono::ceil<std::chrono::seconds>(patience()).count();
    throw Failure(DS4_E_DEVICE, std::string("the GPU failed to ") + what + ": device " + std::to_string(index_) +
                                    " has not answered for " + std::to_string(seconds) +
                                    " s and counts as lost; look for what its driver reports (dmesg), and start ds4 again");
}

void GpuDevice::require_answering() const {
    if (is_given_up()) {
        throw Failure(DS4_E_DEVICE, "device " + std::to_string(index_) + " of the " DS4_GPU_BACKEND
                                    " backend is not used again, because it did not answer earlier; start ds4 again");
    }
}

void GpuDevice::wait(gpuStream_t stream, const char *what) const {
    const gpuError_t state = ask(index_, [&] { return gpuStreamQuery(stream); });
    state == gpuErrorNotReady ? give_up(what) : check(state, what);
}

void GpuDevice::wait(gpuEvent_t event, const char *what) const {
    const gpuError_t state = ask(index_, [&] { return gpuEventQuery(event); });
    state == gpuErrorNotReady ? give_up(what) : check(state, what);
}

bool GpuDevice::settle() const noexcept {
    if (is_given_up()) {
        return false;
    }
    static_cast<void>(gpuSetDevice(static_cast<int>(index_)));
    const std::lock_guard lock(streams_mutex_);
    for (const gpuStream_t stream : streams_) {
        /* After any error but this one the card has ended its work. */
        if (ask(index_, [&] { return gpuStreamQuery(stream); }) == gpuErrorNotReady) {
            given_up_cards |= bit_of(index_);
            return false;
        }
    }
    return true;
}

gpuStream_t GpuDevice::open_stream(const char *what) {
    make_current();
    const std::lock_guard lock(streams_mutex_);
    streams_.reserve(streams_.size() + 1);
    gpuStream_t stream = nullptr;
    check(gpuStreamCreateWithFlags(&stream, gpuStreamNonBlocking), what);
    streams_.push_back(stream);
    return stream;
}

void GpuDevice::close_stream(gpuStream_t stream) noexcept {
    if (stream == nullptr || !settle()) {
        return;
    }
    const std::lock_guard lock(streams_mutex_);
    std::erase(streams_, stream);
    static_cast<void>(gpuStreamDestroy(stream));
}

} // namespace ds4::backend::gpu
