#include "emulated/runtime.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include <sys/mman.h>

#include "emulated/calls.h"
#include "emulated/streams.h"

namespace ds4::emulated {

std::recursive_mutex  mutex;
DeviceMemory          memory;
std::atomic<uint64_t> given_up_cards = 0;

namespace {

gpuError_t           last_error = gpuSuccess;
bool                 lost = false;
Card                 the_card;
std::map<uintptr_t, size_t> allocated_host, registered_host;

struct Planned {
    std::string call;
    gpuError_t  error;
    int         skip;
};
std::vector<Planned> planned;
std::map<std::string, uint64_t, std::less<>> use_counts;

constexpr size_t kHostPage = 4096, kHostOffset = 512;

/* An emulated card takes its time. */
constexpr std::chrono::minutes kPatience{10};
std::chrono::milliseconds      the_patience = kPatience;

size_t host_pages(size_t bytes) {
    return (kHostOffset + bytes + kHostPage - 1) / kHostPage * kHostPage;
}

bool holds(const std::map<uintptr_t, size_t> &ranges, const void *data, size_t bytes) {
    const auto begin = reinterpret_cast<uintptr_t>(data);
    auto       after = ranges.upper_bound(begin);
    return after != ranges.begin() && begin + bytes <= std::prev(after)->first + std::prev(after)->second;
}

/* Whether a range has some of the bytes and not all. */
bool holds_a_part(const std::map<uintptr_t, size_t> &ranges, const void *data, size_t bytes) {
    const auto begin = reinterpret_cast<uintptr_t>(data);
    for (const auto &[first, count] : ranges) {
        if (begin < first + count && first < begin + bytes && (begin < first || begin + bytes > first + count)) {
            return true;
        }
    }
    return false;
}

void free_host(uintptr_t begin, size_t bytes) {
    munmap(reinterpret_cast<std::byte *>(begin) - kHostOffset, host_pages(bytes) + kHostPage);
}

size_t sum(const std::map<uintptr_t, size_t> &ranges) {
    size_t total = 0;
    for (const auto &[begin, bytes] : ranges) {
        total += bytes;
    }
    return total;
}

bool pinned(const void *data, size_t bytes) {
    return holds(registered_host, data, bytes) || holds(allocated_host, data, bytes);
}

} // namespace

gpuError_t given(gpuError_t error) {
    if (error != gpuSuccess) {
        last_error = error;
    }
    if (error == gpuErrorLaunchFailure && !lost) {
        lost = true;
        drop_all();
    }
    return error;
}

gpuError_t refused(const char *call) {
    ++use_counts[call];
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

Card &card() {
    return the_card;
}

void fail_call(const char *call, gpuError_t error, int skip) {
    const std::lock_guard<std::recursive_mutex> lock(mutex);
    planned.push_back({call, error, skip});
}

void hang(uint64_t works, uint32_t patience_ms) {
    const std::lock_guard<std::recursive_mutex> lock(mutex);
    stop_after(works);
    the_patience = std::chrono::milliseconds(patience_ms);
}

std::chrono::milliseconds patience() {
    const std::lock_guard<std::recursive_mutex> lock(mutex);
    return the_patience;
}

void mend() {
    const std::lock_guard<std::recursive_mutex> lock(mutex);
    if (have_stopped() || given_up_cards != 0) {
        drop_all();
        memory.forget();
        for (const auto &[begin, bytes] : allocated_host) {
            free_host(begin, bytes);
        }
        allocated_host.clear();
        registered_host.clear();
    }
    go_on();
    the_patience = kPatience;
    given_up_cards = 0;
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

uint64_t uses(const char *call) {
    const std::lock_guard<std::recursive_mutex> lock(mutex);
    const auto found = use_counts.find(call);
    return found == use_counts.end() ? 0 : found->second;
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
        enqueue(stream, [=, body = std::move(body)] { run(kernel, grid, threads, shared_bytes, body); });
        return gpuSuccess;
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
        do_all();
        must_not_hang("gpuDeviceSynchronize");
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
    return call("gpuFree", [&] {
        do_all(); /* as cards do */
        must_not_hang("gpuFree");
        return data == nullptr || memory.give_back(data) ? gpuSuccess : gpuErrorInvalidValue;
    });
}

gpuError_t gpuMemcpyAsync(void *to, const void *from, size_t bytes, gpuMemcpyKind kind, gpuStream_t stream) {
    return call("gpuMemcpyAsync", [&] {
        const bool to_device = kind != gpuMemcpyDeviceToHost;
        const bool from_device = kind != gpuMemcpyHostToDevice;
        if (bytes == 0) {
            return gpuSuccess;
        }
        const void *host = to_device ? from : to;
        const bool  within = to_device && from_device;
        if ((to_device ? !memory.holds(to, bytes) : memory.touches(to, bytes)) ||
            (from_device ? !memory.holds(from, bytes) && !pinned(from, bytes) : memory.touches(from, bytes))) {
            return gpuErrorInvalidValue;
        }
        if (!within && holds_a_part(registered_host, host, bytes)) {
            return gpuErrorInvalidValue; /* as real cards do */
        }
        const Work copy = [=] { std::memmove(to, from, bytes); };
        if (within || pinned(host, bytes) || is_captured(stream)) {
            enqueue(stream, copy);
        } else {
            do_all(stream); /* memory that is not pinned is done with when the call returns */
            must_not_hang("gpuMemcpyAsync");
            do_now(copy);
        }
        return gpuSuccess;
    });
}

gpuError_t gpuMemsetAsync(void *to, int value, size_t bytes, gpuStream_t stream) {
    return call("gpuMemsetAsync", [&] {
        if (bytes != 0 && !memory.holds(to, bytes)) {
            return gpuErrorInvalidValue;
        }
        enqueue(stream, [=] { std::memset(to, value, bytes); });
        return gpuSuccess;
    });
}

/* Not at a page's first byte, as nobody promises that, and with a page behind that may not be touched. */
gpuError_t gpuHostAlloc(void **data, size_t bytes, unsigned) {
    return call_apart("gpuHostAlloc", [&] {
        const size_t whole = host_pages(bytes);
        void        *pages = mmap(nullptr, whole + kHostPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (pages == MAP_FAILED) {
            return gpuErrorMemoryAllocation;
        }
        mprotect(static_cast<std::byte *>(pages) + whole, kHostPage, PROT_NONE);
        *data = static_cast<std::byte *>(pages) + kHostOffset;
        allocated_host[reinterpret_cast<uintptr_t>(*data)] = bytes;
        return gpuSuccess;
    });
}

gpuError_t gpuFreeHost(void *data) {
    return call("gpuFreeHost", [&] {
        if (data == nullptr) {
            return gpuSuccess;
        }
        const auto found = allocated_host.find(reinterpret_cast<uintptr_t>(data));
        if (found == allocated_host.end()) {
            return gpuErrorInvalidValue;
        }
        must_not_hang("gpuFreeHost");
        free_host(found->first, found->second);
        allocated_host.erase(found);
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
        must_not_hang("gpuHostUnregister");
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
