#include "backend/cpu/cpu_device.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include <sys/mman.h>

#include "backend/cpu/instruction_set.h"
#include "backend/cpu/thread_pool.h"
#include "backend/host_memory.h"
#include "failure.h"

namespace ds4::backend::cpu {

namespace {

std::string processor_name() {
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);) {
        const size_t colon = line.find(':');
        if (colon != std::string::npos && (line.starts_with("model name") || line.starts_with("Model"))) {
            std::string name = line.substr(colon + 1);
            name.erase(0, name.find_first_not_of(" \t"));
            name.erase(name.find_last_not_of(" \t") + 1);
            return name;
        }
    }
    return "processor";
}

std::string in_mib(uint64_t bytes) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f MiB", static_cast<double>(bytes) / 1048576.0);
    return text;
}

/* memcpy takes no null pointer, not even for nothing. */
void copy(void *to, const void *from, size_t bytes) {
    if (bytes > 0) {
        std::memcpy(to, from, bytes);
    }
}

/* Host memory as it is. */
class SameMemory final : public HostMapping {
public:
    explicit SameMemory(const std::byte *address) : address_(address) {}
    const std::byte *device_address() const override { return address_; }

private:
    const std::byte *address_;
};

/* Nothing has to be pinned: the kernels are the host's own. */
class PlainMemory final : public PinnedMemory {
public:
    explicit PlainMemory(Allocation memory) : memory_(std::move(memory)) {}
    const std::byte     *device_address() const override { return memory_.as<std::byte>(); }
    std::span<std::byte> bytes() const override { return {memory_.as<std::byte>(), memory_.bytes()}; }

private:
    Allocation memory_;
};

class HostRing final : public UploadRing {
public:
    HostRing(Allocation memory, size_t slot_bytes) : memory_(std::move(memory)), slot_bytes_(slot_bytes) {}

    std::span<std::byte> wait(size_t slot) override { return {at(slot), slot_bytes_}; }
    void send(size_t slot, void *to, size_t bytes, size_t from) override { copy(to, at(slot) + from, bytes); }
    void send_pinned(size_t, void *to, const std::byte *from, size_t bytes) override { copy(to, from, bytes); }
    bool arrived(size_t) override { return true; }
    void follow_ops() override {}
    void precede_ops() override {}
    void finish() override {}

private:
    std::byte *at(size_t slot) const { return memory_.as<std::byte>() + slot * slot_bytes_; }

    Allocation memory_;
    size_t     slot_bytes_;
};

constexpr size_t kPageBytes = 4096;

} // namespace

void CpuDevice::copy_in(void *to_device, const void *from_host, size_t bytes) {
    copy(to_device, from_host, bytes);
}

void CpuDevice::copy_out(void *to_host, const void *from_device, size_t bytes) {
    copy(to_host, from_device, bytes);
}

void CpuDevice::copy_within(void *to_device, const void *from_device, size_t bytes) {
    copy(to_device, from_device, bytes);
}

std::unique_ptr<HostMapping> CpuDevice::map_host(std::span<const std::byte> range) {
    return std::make_unique<SameMemory>(range.data());
}

std::unique_ptr<UploadRing> CpuDevice::upload_ring(size_t slots, size_t slot_bytes) {
    const size_t whole_pages = (slot_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
    return std::make_unique<HostRing>(allocate(slots * whole_pages, "buffers for reading"), whole_pages);
}

std::unique_ptr<PinnedMemory> CpuDevice::pin_memory(size_t bytes, std::string_view what) {
    return std::make_unique<PlainMemory>(allocate(bytes, what));
}

DeviceInfo CpuDevice::info() const {
    const HostMemory memory = read_host_memory();
    return {
        .kind = DeviceKind::host,
        .name = processor_name(),
        .arch = instruction_set_name(widest_instruction_set()),
        .core_count = usable_processors(),
        .total_bytes = memory.total,
        .free_bytes = memory.available,
    };
}

Allocation CpuDevice::allocate(size_t bytes, std::string_view what) {
    if (bytes == 0) {
        return {};
    }
    /* Fresh pages are zero and cost nothing until they are touched. More than the machine could ever hold would be
     * granted by some systems, and end the process later. */
    const HostMemory memory = read_host_memory();
    void            *data = MAP_FAILED;
    if (memory.total == 0 || bytes <= memory.total + memory.swap) {
        data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    if (data == MAP_FAILED) {
        throw Failure(DS4_E_NO_MEMORY, "cannot allocate host memory for " + std::string(what) + ": needs " +
                                           in_mib(bytes) + ", " + in_mib(memory.available) + " of " +
                                           in_mib(memory.total) + " free; try a smaller --ctx or close other programs");
    }
    return {this, data, bytes};
}

void CpuDevice::release(void *data, size_t bytes) noexcept {
    munmap(data, bytes);
}

} // namespace ds4::backend::cpu
