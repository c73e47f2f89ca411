/* What the card itself allows: device memory read, copies from the host, the bus as kernels see it. Prints one line of JSON.
 * Built by `make gpu-limits`; bench/gpu/run.ts puts its figures beside ds4's. */
#include <cstdio>

#include "rates.h"

using namespace bench;

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
