/* The host as a device: its memory is the process's own. */
#pragma once

#include "backend/device.h"

namespace ds4::backend::cpu {

class CpuDevice final : public Device {
public:
    DeviceInfo info() const override;
    Allocation allocate(size_t bytes, std::string_view what) override;

private:
    void release(void *data, size_t bytes) noexcept override;
};

} // namespace ds4::backend::cpu
