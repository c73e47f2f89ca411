/* The vendor's runtime, under the names that backend/gpu/gpu.h gives it. A stream does its work when someone waits for it, and
 * no sooner; what it records is kept with its arguments and done by each launch of the graph. */
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "emulated/lanes.h"

#define DS4_GPU_LIBRARY "the emulated driver"
#define DS4_GPU_ARCHITECTURE_VARIABLE "CUDA_ARCH"
#if !defined(DS4_GPU_BACKEND)
#define DS4_GPU_BACKEND "cuda"
#endif

namespace ds4::emulated {
struct Stream;
struct Event;
struct Graph;
} // namespace ds4::emulated

enum gpuError_t : int {
    gpuSuccess = 0,
    gpuErrorInvalidValue = 1,
    gpuErrorMemoryAllocation = 2,
    gpuErrorInvalidConfiguration = 9,
    gpuErrorInsufficientDriver = 35,
    gpuErrorNoDevice = 100,
    gpuErrorInvalidDevice = 101,
    gpuErrorNotReady = 600,
    gpuErrorHostMemoryNotRegistered = 713,
    gpuErrorNotSupported = 801,
    gpuErrorLaunchFailure = 719, /* from then on every call fails */
    gpuErrorStreamCaptureUnsupported = 900,
};
enum gpuMemcpyKind { gpuMemcpyHostToDevice, gpuMemcpyDeviceToHost, gpuMemcpyDeviceToDevice };
enum gpuStreamCaptureMode { gpuStreamCaptureModeThreadLocal };

using gpuStream_t = ds4::emulated::Stream *;
using gpuEvent_t = ds4::emulated::Event *;
using gpuGraph_t = ds4::emulated::Graph *;
using gpuGraphExec_t = ds4::emulated::Graph *;

constexpr unsigned gpuStreamNonBlocking = 1, gpuEventDisableTiming = 2;
constexpr unsigned gpuHostAllocDefault = 0, gpuHostAllocMapped = 2, gpuHostRegisterMapped = 2, gpuHostRegisterReadOnly = 8;

struct gpuDeviceProp {
    char   name[256];
    int    major, minor;
    int    multiProcessorCount;
    int    integrated;
    size_t totalGlobalMem;
    size_t sharedMemPerBlockOptin;
};

gpuError_t  gpuGetLastError();
const char *gpuGetErrorString(gpuError_t error);
const char *gpuGetErrorName(gpuError_t error);
gpuError_t  gpuGetDeviceCount(int *count);
gpuError_t  gpuSetDevice(int device);
gpuError_t  gpuGetDeviceProperties(gpuDeviceProp *properties, int device);
gpuError_t  gpuDeviceSynchronize();

gpuError_t gpuMemGetInfo(size_t *free, size_t *total);
gpuError_t gpuMalloc(void **data, size_t bytes);
gpuError_t gpuFree(void *data);
gpuError_t gpuMemcpyAsync(void *to, const void *from, size_t bytes, gpuMemcpyKind kind, gpuStream_t stream);
gpuError_t gpuMemsetAsync(void *to, int value, size_t bytes, gpuStream_t stream);
gpuError_t gpuHostAlloc(void **data, size_t bytes, unsigned flags);
gpuError_t gpuFreeHost(void *data);
gpuError_t gpuHostRegister(void *data, size_t bytes, unsigned flags);
gpuError_t gpuHostUnregister(void *data);
gpuError_t gpuHostGetDevicePointer(void **device, void *host, unsigned flags);

gpuError_t gpuStreamCreateWithFlags(gpuStream_t *stream, unsigned flags);
gpuError_t gpuStreamDestroy(gpuStream_t stream);
gpuError_t gpuStreamQuery(gpuStream_t stream);
gpuError_t gpuStreamWaitEvent(gpuStream_t stream, gpuEvent_t event, unsigned flags);
gpuError_t gpuEventCreateWithFlags(gpuEvent_t *event, unsigned flags);
gpuError_t gpuEventDestroy(gpuEvent_t event);
gpuError_t gpuEventRecord(gpuEvent_t event, gpuStream_t stream);
gpuError_t gpuEventQuery(gpuEvent_t event);

gpuError_t gpuStreamBeginCapture(gpuStream_t stream, gpuStreamCaptureMode mode);
gpuError_t gpuStreamEndCapture(gpuStream_t stream, gpuGraph_t *graph);
gpuError_t gpuGraphInstantiateWithFlags(gpuGraphExec_t *runnable, gpuGraph_t graph, unsigned long long flags);
gpuError_t gpuGraphDestroy(gpuGraph_t graph);
gpuError_t gpuGraphExecDestroy(gpuGraphExec_t runnable);
gpuError_t gpuGraphLaunch(gpuGraphExec_t runnable, gpuStream_t stream);

template <typename T> gpuError_t gpuMalloc(T **data, size_t bytes) {
    return gpuMalloc(reinterpret_cast<void **>(data), bytes);
}
template <typename T> gpuError_t gpuHostAlloc(T **data, size_t bytes, unsigned flags) {
    return gpuHostAlloc(reinterpret_cast<void **>(data), bytes, flags);
}

namespace ds4::emulated {

/* `body` calls the kernel with its arguments, which it holds by value. */
gpuError_t launch(gpuStream_t stream, const void *kernel, dim3 grid, unsigned threads, size_t shared_bytes,
                  std::function<void()> body);

/* What the card says it is; tests may change it before they open a device. */
struct Card {
    int         count = 1; /* of such cards; below 0: no driver */
    std::string name = "Emulated card";
    int         major = 9, minor = 0; /* compute capability */
    /* Like an H200 with 32 lanes to a wavefront, like an AMD card with 64. */
    int    multiprocessors = kWave == 32 ? 132 : 60;
    size_t shared_bytes = kWave == 32 ? 227u << 10 : 64u << 10;
    bool   integrated = false;
    size_t memory_bytes = size_t{16} << 30;
};
Card &card();

/* The call of this name after the next `skip` ones returns `error`. */
void fail_call(const char *call, gpuError_t error, int skip = 0);
/* After so many more works of its streams the card does nothing any more, and the host waits for it no longer than
 * `patience_ms`. What would wait for ever on a real card ends the process. */
void hang(uint64_t works, uint32_t patience_ms);
/* Forgets failures and makes the card usable again. One that hung has forgotten its memory, too. */
void mend();

size_t allocated_bytes(); /* device memory in use */
size_t pinned_bytes();    /* host memory, allocated or registered */
/* Calls of this name so far. */
uint64_t uses(const char *call);
/* Calls so far that put work on a stream: launches, copies and fills, graphs; of them, launches of graphs. */
uint64_t works();
uint64_t graph_launches();

/* For backend/gpu/patience.h. */
std::chrono::milliseconds    patience();
extern std::atomic<uint64_t> given_up_cards;

} // namespace ds4::emulated
