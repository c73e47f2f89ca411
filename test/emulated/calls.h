/* What every call of the emulated runtime does first. Included by the files that implement the runtime. */
#pragma once

#include <mutex>

#include "emulated/device_memory.h"
#include "emulated/runtime.h"

namespace ds4::emulated {

/* Lanes of one launch take turns with the rest of the process: the runtime does one thing at a time. */
extern std::recursive_mutex mutex;
extern DeviceMemory         memory;
/* Streams that this thread captures. */
extern thread_local unsigned captures;

/* What a call must return before it does anything. */
gpuError_t refused(const char *call);
/* Ends the process when work is left that a stopped card will not do: of calls that wait for it on a real one. */
void must_not_hang(const char *call);
/* Keeps an error for gpuGetLastError. */
gpuError_t given(gpuError_t error);

template <typename Body> gpuError_t call(const char *name, Body &&body) {
    const std::lock_guard<std::recursive_mutex> lock(mutex);
    const gpuError_t error = refused(name);
    return given(error != gpuSuccess ? error : body());
}

/* A call that CUDA forbids while a stream of this thread is captured. */
template <typename Body> gpuError_t call_apart(const char *name, Body &&body) {
    return call(name, [&] { return captures != 0 ? gpuErrorStreamCaptureUnsupported : body(); });
}

} // namespace ds4::emulated
