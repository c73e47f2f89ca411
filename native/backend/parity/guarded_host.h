/* The CPU as what others are compared with. */
#pragma once

#include <cstdlib>
#include <cstring>
#include <new>

#include "backend/cpu/cpu_device.h"
#include "backend/cpu/cpu_ops.h"

namespace ds4::backend::parity {

/* The host as a device. Its allocations come from the heap and are exactly as long as asked for, so that a sanitizer sees an
 * op reach beyond an array; between CpuDevice's pages it would not. */
class GuardedHost final : public Device {
public:
    DeviceInfo info() const override { return host_.info(); }
    bool       reads_host_memory() const override { return true; }
    void       copy_in(void *to, const void *from, size_t bytes) override { std::memcpy(to, from, bytes); }
    void       copy_out(void *to, const void *from, size_t bytes) override { std::memcpy(to, from, bytes); }
    void       copy_within(void *to, const void *from, size_t bytes) override { std::memmove(to, from, bytes); }

    std::unique_ptr<HostMapping> map_host(std::span<const std::byte> range) override { return host_.map_host(range); }
    std::unique_ptr<UploadRing>  upload_ring(size_t slots, size_t slot_bytes) override {
        return host_.upload_ring(slots, slot_bytes);
    }
    std::unique_ptr<PinnedMemory> pin_memory(size_t bytes, std::string_view what) override {
        return host_.pin_memory(bytes, what);
    }

    Allocation allocate(size_t bytes, std::string_view) override {
        void *data = nullptr;
        if (bytes == 0) {
            return {};
        }
        if (posix_memalign(&data, 64, bytes) != 0) {
            throw std::bad_alloc();
        }
        return {this, std::memset(data, 0, bytes), bytes};
    }

private:
    void release(void *data, size_t) noexcept override { std::free(data); }

    cpu::CpuDevice host_;
};

/* One thread, on the baseline instruction set or another DS4_ISA_*. */
inline Backend reference(bool exact, uint32_t instruction_set = DS4_ISA_PLAIN) {
    const auto arithmetic = exact ? cpu::CpuOps::Arithmetic::exact : cpu::CpuOps::Arithmetic::fast;
    return {.device = std::make_unique<GuardedHost>(),
            .ops = std::make_unique<cpu::CpuOps>(1, arithmetic, instruction_set),
            .threads = 1,
            .instruction_set = instruction_set};
}

} // namespace ds4::backend::parity
