/* The host as a device: its memory is the process's own. */
#pragma once

#include "backend/device.h"

namespace ds4::backend::cpu {

class CpuDevice final : public Device {
public:
    DeviceInfo info() const override;
    bool       reads_host_memory() const override { return true; }
    Allocation allocate(size_t bytes, std::string_view what) override;
    void       copy_in(void *to_device, const void *from_host, size_t bytes) override;
    void       copy_out(void *to_host, const void *from_device, size_t bytes) override;
    void       copy_within(void *to_device, const void *from_device, size_t bytes) override;

    std::unique_ptr<HostMapping> map_host(std::span<const std::byte> range) override;
    std::unique_ptr<UploadRing>  upload_ring(size_t slots, size_t slot_bytes) override;
    std::unique_ptr<PinnedMemory> pin_memory(size_t bytes, std::string_view what) override;

private:
    void release(void *data, size_t bytes) noexcept override;
};

} // namespace ds4::backend::cpu
