#include "backend/gpu/gpu_device.h"

#include <cstdio>

#include <unistd.h>

#include "backend/gpu/architecture.h"
#include "backend/gpu/pinned_pages.h"
#include "backend/gpu/upload_ring.h"
#include "failure.h"

namespace ds4::backend::gpu {

namespace {

/* Whether kernels of a one-token step may start while the one in front still runs: 9 % more tokens per second on an H200,
 * docs/performance.md. */
constexpr bool kEarlyStart = true;

std::string in_mib(uint64_t bytes) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f MiB", static_cast<double>(bytes) / 1048576.0);
    return text;
}

gpuDeviceProp properties_of(uint32_t index) {
    gpuDeviceProp properties{};
    check(gpuGetDeviceProperties(&properties, static_cast<int>(index)), "describe a device");
    return properties;
}

[[noreturn]] void fail_without_device(const char *state, gpuError_t error) {
    static_cast<void>(gpuGetLastError());
    const std::string reason =
        error == gpuSuccess ? "" : std::string(": ") + gpuGetErrorString(error) + " (" + gpuGetErrorName(error) + ")";
    throw Failure(DS4_E_DEVICE, std::string("the driver of the " DS4_GPU_BACKEND " backend (" DS4_GPU_LIBRARY ") ") + state +
                                    reason + "; install or update the driver, or use the CPU: --cpu");
}

/* Throws the sentence that says why there is no device `index`. */
void require_device(uint32_t index) {
    const uint32_t count = count_devices();
    if (count == 0) {
        int              unused = 0;
        const gpuError_t error = gpuGetDeviceCount(&unused);
        fail_without_device("is missing, too old or finds no card", error);
    }
    if (index >= count) {
        throw Failure(DS4_E_DEVICE, "cannot open device " + std::to_string(index) + " of the " DS4_GPU_BACKEND
                                    " backend: " + (count == 1 ? std::string("there is one device, number 0")
                                                               : "there are " + std::to_string(count) +
                                                                     ", numbered from 0"));
    }
}

/* Pins whole pages of the host's memory for as long as it lives. */
class GpuHostMapping final : public HostMapping {
public:
    GpuHostMapping(const GpuDevice &device, std::span<const std::byte> range) : device_(device) {
        const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
        const auto first = reinterpret_cast<uintptr_t>(range.data());
        const auto begin = first / page * page;
        const auto end = (first + range.size() + page - 1) / page * page;
        pinned_ = reinterpret_cast<void *>(begin);
        device_.make_current();
        /* Weights are mapped from a file to be read only; a driver that does not know the flag may still take them. */
        gpuError_t error = gpuHostRegister(pinned_, end - begin, gpuHostRegisterMapped | gpuHostRegisterReadOnly);
        if (error != gpuSuccess) {
            static_cast<void>(gpuGetLastError());
            error = gpuHostRegister(pinned_, end - begin, gpuHostRegisterMapped);
        }
        if (error != gpuSuccess) {
            static_cast<void>(gpuGetLastError());
            throw Failure(error == gpuErrorMemoryAllocation ? DS4_E_NO_MEMORY : DS4_E_DEVICE,
                          "cannot pin " + in_mib(end - begin) + " of host memory for the GPU to read: " +
                              gpuGetErrorString(error) + " (" + gpuGetErrorName(error) + ")");
        }
        void *address = nullptr;
        error = gpuHostGetDevicePointer(&address, pinned_, 0);
        if (error != gpuSuccess) {
            static_cast<void>(gpuHostUnregister(pinned_));
            fail(error, "address host memory");
        }
        address_ = static_cast<const std::byte *>(address) + (first - begin);
    }

    ~GpuHostMapping() override {
        /* Kernels that read through it must have ended. */
        if (device_.settle()) {
            static_cast<void>(gpuHostUnregister(pinned_));
        }
    }
    GpuHostMapping(const GpuHostMapping &) = delete;
    GpuHostMapping &operator=(const GpuHostMapping &) = delete;

    const std::byte *device_address() const override { return address_; }

private:
    const GpuDevice &device_;
    void            *pinned_ = nullptr;
    const std::byte *address_ = nullptr;
};

/* Pages that kernels reach. */
class GpuPinnedMemory final : public PinnedMemory {
public:
    GpuPinnedMemory(const GpuDevice &device, size_t bytes, std::string_view what)
        : size_(bytes),
          pages_(device, bytes, in_mib(bytes) + " of host memory for " + std::string(what)) {
        void *address = nullptr;
        check(gpuHostGetDevicePointer(&address, pages_.data(), 0), "address host memory");
        address_ = static_cast<const std::byte *>(address);
    }

    GpuPinnedMemory(const GpuPinnedMemory &) = delete;
    GpuPinnedMemory &operator=(const GpuPinnedMemory &) = delete;

    const std::byte     *device_address() const override { return address_; }
    std::span<std::byte> bytes() const override { return {pages_.data(), size_}; }

private:
    size_t           size_;
    PinnedPages      pages_;
    const std::byte *address_ = nullptr;
};

} // namespace

uint32_t count_devices() {
    int              count = 0;
    const gpuError_t error = gpuGetDeviceCount(&count);
    if (error == gpuErrorNoDevice || error == gpuErrorInsufficientDriver) {
        static_cast<void>(gpuGetLastError());
        return 0;
    }
    if (error != gpuSuccess) {
        fail_without_device("does not work", error);
    }
    return static_cast<uint32_t>(count);
}

GpuDevice::GpuDevice(uint32_t index) : index_(index) {
    require_device(index);
    require_answering();
    const gpuDeviceProp properties = properties_of(index);
    const std::string   architecture = architecture_of(properties);
    if (!runs_on(DS4_GPU_ARCHITECTURES, architecture)) {
        throw Failure(DS4_E_DEVICE, "the " DS4_GPU_BACKEND " library has no code for " + std::string(properties.name) + " (" + architecture +
                                        "), only for " DS4_GPU_ARCHITECTURES "; build it with: make " DS4_GPU_BACKEND
                                        " " DS4_GPU_ARCHITECTURE_VARIABLE "=" + architecture);
    }
    facts_ = {
        .multiprocessors = static_cast<uint32_t>(properties.multiProcessorCount),
        .shared_bytes = static_cast<uint32_t>(most_shared_bytes(properties)),
        .early_start = kEarlyStart && can_start_early(properties),
    };
    stream_ = open_stream("create a stream");
}

GpuDevice::~GpuDevice() {
    close_stream(stream_);
}

void GpuDevice::make_current() const {
    require_answering();
    check(gpuSetDevice(static_cast<int>(index_)), "choose the device");
}

DeviceInfo GpuDevice::info() const {
    make_current();
    const gpuDeviceProp properties = properties_of(index_);
    size_t              free_bytes = 0;
    size_t              total_bytes = 0;
    check(gpuMemGetInfo(&free_bytes, &total_bytes), "ask for free memory");
    return {
        .kind = properties.integrated != 0 ? DeviceKind::integrated : DeviceKind::discrete,
        .name = properties.name,
        .arch = architecture_of(properties),
        .core_count = facts_.multiprocessors,
        .total_bytes = total_bytes,
        .free_bytes = free_bytes,
    };
}

Allocation GpuDevice::allocate(size_t bytes, std::string_view what) {
    if (bytes == 0) {
        return {};
    }
    make_current();
    void            *data = nullptr;
    /* Kernels read weights in whole words, to the end of the last one. */
    const size_t     whole = (bytes + 15) / 16 * 16;
    const gpuError_t error = gpuMalloc(&data, whole);
    if (error == gpuErrorMemoryAllocation) {
        static_cast<void>(gpuGetLastError());
        size_t free_bytes = 0;
        size_t total_bytes = 0;
        check(gpuMemGetInfo(&free_bytes, &total_bytes), "ask for free memory");
        throw Failure(DS4_E_NO_MEMORY, "cannot allocate GPU memory for " + std::string(what) + ": needs " + in_mib(bytes) +
                                           ", " + in_mib(free_bytes) + " of " + in_mib(total_bytes) +
                                           " free; try a smaller --ctx or close other programs");
    }
    check(error, "allocate memory");
    Allocation allocation(this, data, bytes);
    /* Done before anyone else's stream may write to it. */
    check(gpuMemsetAsync(data, 0, whole, stream_), "clear memory");
    wait(stream_, "clear memory");
    return allocation;
}

void GpuDevice::release(void *data, size_t) noexcept {
    if (settle()) {
        static_cast<void>(gpuFree(data));
    }
}

void GpuDevice::copy(void *to, const void *from, size_t bytes, gpuMemcpyKind kind, const char *what) {
    if (bytes == 0) {
        return;
    }
    make_current();
    if (kind != gpuMemcpyDeviceToDevice) {
        /* From and to memory that is not pinned the call itself copies, after all that is in front, and has no limit. */
        wait(stream_, what);
    }
    check(gpuMemcpyAsync(to, from, bytes, kind, stream_), what);
    wait(stream_, what);
}

void GpuDevice::copy_in(void *to_device, const void *from_host, size_t bytes) {
    copy(to_device, from_host, bytes, gpuMemcpyHostToDevice, "copy to the device");
}

void GpuDevice::copy_out(void *to_host, const void *from_device, size_t bytes) {
    copy(to_host, from_device, bytes, gpuMemcpyDeviceToHost, "copy from the device");
}

void GpuDevice::copy_within(void *to_device, const void *from_device, size_t bytes) {
    copy(to_device, from_device, bytes, gpuMemcpyDeviceToDevice, "copy within the device");
}

std::unique_ptr<HostMapping> GpuDevice::map_host(std::span<const std::byte> range) {
    return std::make_unique<GpuHostMapping>(*this, range);
}

std::unique_ptr<UploadRing> GpuDevice::upload_ring(size_t slots, size_t slot_bytes) {
    return std::make_unique<GpuUploadRing>(*this, slots, slot_bytes);
}

std::unique_ptr<PinnedMemory> GpuDevice::pin_memory(size_t bytes, std::string_view what) {
    return std::make_unique<GpuPinnedMemory>(*this, bytes, what);
}

} // namespace ds4::backend::gpu
