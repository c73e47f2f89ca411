#include "emulated/runtime.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "emulated/device_memory.h"

namespace ds4::emulated {

struct Graph {
    std::vector<std::function<gpuError_t()>> works;
};
struct Stream {
    std::unique_ptr<Graph> recorded; /* while the stream is captured */
};
struct Event {};

namespace {

/* Lanes of one launch take turns with the rest of the process: the runtime does one thing at a time. */
std::recursive_mutex mutex;
gpuError_t           last_error = gpuSuccess;
bool                 lost = false;
Card                 the_card;
DeviceMemory         memory;
std::map<uintptr_t, size_t> allocated_host, registered_host;
uint64_t             work_count = 0, graph_count = 0;
unsigned             captures = 0;

struct Planned {
    std::string call;
    gpuError_t  error;
    int         skip;
};
std::vector<Planned> planned;

gpuError_t given(gpuError_t error) {
    if (error != gpuSuccess) {
        last_error = error;
    }
    lost = lost || error == gpuErrorLaunchFailure;
    return error;
}

/* What a call must return before it does anything. */
gpuError_t refused(const char *call) {
    if (lost) {
        return gpuErrorLaunchFailure;
    }
    for (auto plan = planned.begin(); plan != planned.end(); ++plan) {
        if (plan->call == call && plan->skip-- == 0) {
            const gpuError_t error = plan->error;
            planned.erase(plan);
            return error;
        }
    }
    return gpuSuccess;
}

template <typename Body> gpuError_t call(const char *name, Body &&body) {
    const std::lock_guard<std::recursive_mutex> lock(mutex);
    const gpuError_t error = refused(name);
    return given(error != gpuSuccess ? error : body());
}

/* A call that CUDA forbids while a stream of this thread is captured. */
template <typename Body> gpuError_t call_apart(const char *name, Body &&body) {
    return call(name, [&] { return captures != 0 ? gpuErrorStreamCaptureUnsupported : body(); });
}

/* Does the work, or keeps it for the graph. */
template <typename Work> gpuError_t enqueue(gpuStream_t stream, Work &&work) {
    ++work_count;
    if (stream != nullptr && stream->recorded != nullptr) {
        stream->recorded->works.emplace_back(std::forward<Work>(work));
        return gpuSuccess;
    }
    memory.open();
    return work();
}

bool holds(const std::map<uintptr_t, size_t> &ranges, const void *data, size_t bytes) {
    const auto begin = reinterpret_cast<uintptr_t>(data);
    auto       after = ranges.upper_bound(begin);
    return after != ranges.begin() && begin + bytes <= std::prev(after)->first + std::prev(after)->second;
}

bool reachable(const void *data, size_t bytes) {
    return memory.holds(data, bytes) || holds(registered_host, data, bytes) || holds(allocated_host, data, bytes);
}

size_t sum(const std::map<uintptr_t, size_t> &ranges) {
    size_t total = 0;
    for (const auto &[begin, bytes] : ranges) {
        total += bytes;
    }
    return total;
}

} // namespace

Card &card() {
    return the_card;
}

void fail_call(const char *call, gpuError_t error, int skip) {
    const std::lock_guard<std::recursive_mutex> lock(mutex);
    planned.push_back({call, error, skip});
}

void mend() {
    const std::lock_guard<std::recursive_mutex> lock(mutex);
    planned.clear();
    lost = false;
    last_error = gpuSuccess;
}

size_t allocated_bytes() {
    const std::lock_guard<std::recursive_mutex> lock(mutex);
    return memory.total();
}

size_t pinned_bytes() {
    const std::lock_guard<std::recursive_mutex> lock(mutex);
    return sum(allocated_host) + sum(registered_host);
}

uint64_t works() {
    return work_count;
}

uint64_t graph_launches() {
    return graph_count;
}

gpuError_t launch(gpuStream_t stream, const void *kernel, dim3 grid, unsigned threads, size_t shared_bytes,
                  std::function<void()> body) {
    return call("launch", [&] {
        if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535 || threads == 0 ||
            threads % 32 != 0 || threads > 1024 || shared_bytes > the_card.shared_bytes) {
            return gpuErrorInvalidConfiguration;
        }
        return enqueue(stream, [=, body = std::move(body)] {
            run(kernel, grid, threads, shared_bytes, body);
            return gpuSuccess;
        });
    });
}

} // namespace ds4::emulated

using namespace ds4::emulated;

gpuError_t gpuGetLastError() {
    const std::lock_guard<std::recursive_mutex> lock(mutex);
    return lost ? gpuErrorLaunchFailure : std::exchange(last_error, gpuSuccess);
}

const char *gpuGetErrorName(gpuError_t error) {
    switch (error) {
    case gpuSuccess: return "gpuSuccess";
    case gpuErrorInvalidValue: return "gpuErrorInvalidValue";
    case gpuErrorMemoryAllocation: return "gpuErrorMemoryAllocation";
    case gpuErrorInvalidConfiguration: return "gpuErrorInvalidConfiguration";
    case gpuErrorInsufficientDriver: return "gpuErrorInsufficientDriver";
    case gpuErrorNoDevice: return "gpuErrorNoDevice";
    case gpuErrorInvalidDevice: return "gpuErrorInvalidDevice";
    case gpuErrorNotReady: return "gpuErrorNotReady";
    case gpuErrorHostMemoryNotRegistered: return "gpuErrorHostMemoryNotRegistered";
    case gpuErrorNotSupported: return "gpuErrorNotSupported";
    case gpuErrorLaunchFailure: return "gpuErrorLaunchFailure";
    case gpuErrorStreamCaptureUnsupported: return "gpuErrorStreamCaptureUnsupported";
    }
    return "gpuErrorUnknown";
}

const char *gpuGetErrorString(gpuError_t error) {
    return error == gpuErrorLaunchFailure ? "unspecified launch failure" : gpuGetErrorName(error);
}

gpuError_t gpuGetDeviceCount(int *count) {
    return call("gpuGetDeviceCount", [&] {
        *count = std::max(0, card().count);
        return card().count < 0 ? gpuErrorInsufficientDriver : card().count == 0 ? gpuErrorNoDevice : gpuSuccess;
    });
}

gpuError_t gpuSetDevice(int device) {
    return call("gpuSetDevice", [&] { return device >= 0 && device < card().count ? gpuSuccess : gpuErrorInvalidDevice; });
}

gpuError_t gpuGetDeviceProperties(gpuDeviceProp *properties, int device) {
    return call("gpuGetDeviceProperties", [&] {
        if (device < 0 || device >= card().count) {
            return gpuErrorInvalidDevice;
        }
        *properties = {};
        card().name.copy(properties->name, sizeof properties->name - 1);
        properties->major = card().major;
        properties->minor = card().minor;
        properties->multiProcessorCount = card().multiprocessors;
        properties->integrated = card().integrated ? 1 : 0;
        properties->totalGlobalMem = card().memory_bytes;
        properties->sharedMemPerBlockOptin = card().shared_bytes;
        return gpuSuccess;
    });
}

gpuError_t gpuDeviceSynchronize() {
    return call_apart("gpuDeviceSynchronize", [] {
        memory.close();
        return gpuSuccess;
    });
}

gpuError_t gpuMemGetInfo(size_t *free, size_t *total) {
    return call("gpuMemGetInfo", [&] {
        *total = card().memory_bytes;
        *free = *total - std::min(*total, memory.total());
        return gpuSuccess;
    });
}

gpuError_t gpuMalloc(void **data, size_t bytes) {
    return call_apart("gpuMalloc", [&] {
        if (bytes > card().memory_bytes - std::min(card().memory_bytes, memory.total())) {
            return gpuErrorMemoryAllocation;
        }
        *data = memory.take(bytes);
        return *data != nullptr ? gpuSuccess : gpuErrorMemoryAllocation;
    });
}

gpuError_t gpuFree(void *data) {
    return call("gpuFree", [&] { return data == nullptr || memory.give_back(data) ? gpuSuccess : gpuErrorInvalidValue; });
}

gpuError_t gpuMemcpyAsync(void *to, const void *from, size_t bytes, gpuMemcpyKind kind, gpuStream_t stream) {
    return call("gpuMemcpyAsync", [&] {
        const bool to_device = kind != gpuMemcpyDeviceToHost;
        const bool from_device = kind != gpuMemcpyHostToDevice;
        if (bytes == 0) {
            return gpuSuccess;
        }
        if ((to_device ? !memory.holds(to, bytes) : memory.touches(to, bytes)) ||
            (from_device ? !reachable(from, bytes) : memory.touches(from, bytes))) {
            return gpuErrorInvalidValue;
        }
        return enqueue(stream, [=] {
            std::memmove(to, from, bytes);
            return gpuSuccess;
        });
    });
}

gpuError_t gpuMemsetAsync(void *to, int value, size_t bytes, gpuStream_t stream) {
    return call("gpuMemsetAsync", [&] {
        if (bytes != 0 && !memory.holds(to, bytes)) {
            return gpuErrorInvalidValue;
        }
        return enqueue(stream, [=] {
            std::memset(to, value, bytes);
            return gpuSuccess;
        });
    });
}

gpuError_t gpuHostAlloc(void **data, size_t bytes, unsigned) {
    return call_apart("gpuHostAlloc", [&] {
        *data = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
        if (*data == nullptr) {
            return gpuErrorMemoryAllocation;
        }
        allocated_host[reinterpret_cast<uintptr_t>(*data)] = bytes;
        return gpuSuccess;
    });
}

gpuError_t gpuFreeHost(void *data) {
    return call("gpuFreeHost", [&] {
        if (data != nullptr && allocated_host.erase(reinterpret_cast<uintptr_t>(data)) == 0) {
            return gpuErrorInvalidValue;
        }
        std::free(data);
        return gpuSuccess;
    });
}

gpuError_t gpuHostRegister(void *data, size_t bytes, unsigned) {
    return call_apart("gpuHostRegister", [&] {
        const auto begin = reinterpret_cast<uintptr_t>(data);
        if (begin % 4096 != 0 || bytes == 0 || !registered_host.try_emplace(begin, bytes).second) {
            return gpuErrorInvalidValue;
        }
        return gpuSuccess;
    });
}

gpuError_t gpuHostUnregister(void *data) {
    return call("gpuHostUnregister", [&] {
        return registered_host.erase(reinterpret_cast<uintptr_t>(data)) == 1 ? gpuSuccess : gpuErrorHostMemoryNotRegistered;
    });
}

gpuError_t gpuHostGetDevicePointer(void **device, void *host, unsigned) {
    return call("gpuHostGetDevicePointer", [&] {
        if (!holds(registered_host, host, 1) && !holds(allocated_host, host, 1)) {
            return gpuErrorInvalidValue;
        }
        *device = host;
        return gpuSuccess;
    });
}

/* ---- streams, events, graphs --------------------------------------------------------------------- */

gpuError_t gpuStreamCreateWithFlags(gpuStream_t *stream, unsigned) {
    return call_apart("gpuStreamCreateWithFlags", [&] {
        *stream = new Stream;
        return gpuSuccess;
    });
}

gpuError_t gpuStreamDestroy(gpuStream_t stream) {
    return call("gpuStreamDestroy", [&] {
        captures -= stream->recorded != nullptr ? 1 : 0;
        delete stream;
        return gpuSuccess;
    });
}

gpuError_t gpuStreamSynchronize(gpuStream_t) {
    return call_apart("gpuStreamSynchronize", [] {
        memory.close();
        return gpuSuccess;
    });
}

gpuError_t gpuStreamWaitEvent(gpuStream_t, gpuEvent_t, unsigned) {
    return call("gpuStreamWaitEvent", [] { return gpuSuccess; });
}

gpuError_t gpuEventCreateWithFlags(gpuEvent_t *event, unsigned) {
    return call_apart("gpuEventCreateWithFlags", [&] {
        *event = new Event;
        return gpuSuccess;
    });
}

gpuError_t gpuEventDestroy(gpuEvent_t event) {
    return call("gpuEventDestroy", [&] {
        delete event;
        return gpuSuccess;
    });
}

gpuError_t gpuEventRecord(gpuEvent_t, gpuStream_t stream) {
    return call("gpuEventRecord", [&] {
        return stream->recorded != nullptr ? gpuErrorStreamCaptureUnsupported : gpuSuccess;
    });
}

gpuError_t gpuEventQuery(gpuEvent_t) {
    return call_apart("gpuEventQuery", [] { return gpuSuccess; });
}

gpuError_t gpuEventSynchronize(gpuEvent_t) {
    return call_apart("gpuEventSynchronize", [] { return gpuSuccess; });
}

gpuError_t gpuStreamBeginCapture(gpuStream_t stream, gpuStreamCaptureMode) {
    return call_apart("gpuStreamBeginCapture", [&] {
        stream->recorded = std::make_unique<Graph>();
        ++captures;
        return gpuSuccess;
    });
}

gpuError_t gpuStreamEndCapture(gpuStream_t stream, gpuGraph_t *graph) {
    std::unique_ptr<Graph> recorded = std::move(stream->recorded); /* ends, also when the call fails */
    captures -= recorded != nullptr ? 1 : 0;
    return call("gpuStreamEndCapture", [&] {
        *graph = recorded.release();
        return *graph != nullptr ? gpuSuccess : gpuErrorInvalidValue;
    });
}

gpuError_t gpuGraphInstantiateWithFlags(gpuGraphExec_t *runnable, gpuGraph_t graph, unsigned long long) {
    return call_apart("gpuGraphInstantiateWithFlags", [&] {
        *runnable = new Graph(*graph);
        return gpuSuccess;
    });
}

gpuError_t gpuGraphDestroy(gpuGraph_t graph) {
    return call("gpuGraphDestroy", [&] {
        delete graph;
        return gpuSuccess;
    });
}

gpuError_t gpuGraphExecDestroy(gpuGraphExec_t runnable) {
    return call("gpuGraphExecDestroy", [&] {
        delete runnable;
        return gpuSuccess;
    });
}

gpuError_t gpuGraphLaunch(gpuGraphExec_t runnable, gpuStream_t stream) {
    return call("gpuGraphLaunch", [&] {
        ++graph_count;
        return enqueue(stream, [=] {
            for (const auto &work : runnable->works) {
                const gpuError_t error = work();
                if (error != gpuSuccess) {
                    return error;
                }
            }
            return gpuSuccess;
        });
    });
}
