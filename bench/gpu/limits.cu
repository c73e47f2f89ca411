/* What the card itself allows: device memory read, copies from the host, the bus as kernels see it. Prints one line of JSON.
 * Built by `make gpu-limits`; bench/gpu/run.ts puts its figures beside ds4's. */
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "backend/gpu/gpu.h"

namespace {

using namespace ds4::backend::gpu;

void check(gpuError_t error, const char *what) {
    if (error != gpuSuccess) {
        std::fprintf(stderr, "limits: cannot %s: %s\n", what, gpuGetErrorString(error));
        std::exit(1);
    }
}

/* Every lane keeps several 16-byte loads in flight; the sum is stored only so that the loads stay. */
__global__ void read_all(const uint4 *from, size_t count, uint32_t *sink) {
    constexpr int  kAtOnce = 8;
    const size_t   lanes = static_cast<size_t>(gridDim.x) * blockDim.x;
    size_t         at = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    uint32_t       sum = 0;
    for (; at + (kAtOnce - 1) * lanes < count; at += kAtOnce * lanes) {
        uint4 values[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            values[i] = from[at + i * lanes];
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            sum += values[i].x ^ values[i].y ^ values[i].z ^ values[i].w;
        }
    }
    if (sum == 0x12345678u) {
        *sink = sum;
    }
}

/* The best of several runs, in GB/s. */
template <typename Body> double rate(double bytes, Body &&body) {
    double best = 0.0;
    for (int round = 0; round < 6; ++round) {
        check(gpuDeviceSynchronize(), "wait");
        const auto start = std::chrono::steady_clock::now();
        body();
        check(gpuDeviceSynchronize(), "wait");
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
        best = std::max(best, bytes / seconds.count() / 1e9);
    }
    return best;
}

} // namespace

int main() {
    constexpr size_t kDeviceBytes = size_t{8} << 30;
    constexpr size_t kHostBytes = size_t{1} << 30;
    gpuDeviceProp    card{};
    check(gpuSetDevice(0), "open the device");
    check(gpuGetDeviceProperties(&card, 0), "ask the device");
    void *device = nullptr;
    void *host = nullptr;
    void *mapped = nullptr;
    check(gpuMalloc(&device, kDeviceBytes), "allocate device memory");
    check(gpuMemsetAsync(device, 1, kDeviceBytes, nullptr), "fill device memory");
    check(gpuHostAlloc(&host, kHostBytes, gpuHostAllocDefault), "allocate pinned memory");
    check(gpuHostGetDevicePointer(&mapped, host, 0), "map pinned memory");

    const unsigned blocks = static_cast<unsigned>(card.multiProcessorCount) * 8;
    auto          *sink = static_cast<uint32_t *>(device);
    const double   device_read = rate(static_cast<double>(kDeviceBytes), [&] {
        read_all<<<blocks, 512>>>(static_cast<const uint4 *>(device), kDeviceBytes / 16, sink);
    });
    const double   copy = rate(static_cast<double>(kHostBytes), [&] {
        check(gpuMemcpyAsync(device, host, kHostBytes, gpuMemcpyHostToDevice, nullptr), "copy");
    });
    const double   bus_read = rate(static_cast<double>(kHostBytes), [&] {
        read_all<<<blocks, 512>>>(static_cast<const uint4 *>(mapped), kHostBytes / 16, sink);
    });
    std::printf("{\"card\":\"%s\",\"device_read_gbs\":%.0f,\"host_to_device_gbs\":%.1f,\"mapped_read_gbs\":%.1f}\n", card.name,
                device_read, copy, bus_read);
    return 0;
}
