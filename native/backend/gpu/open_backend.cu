#include "backend/gpu/gpu_device.h"
#include "backend/gpu/gpu_ops.h"
#include "failure.h"

namespace ds4::backend {

uint32_t device_count() {
    return gpu::count_devices();
}

std::unique_ptr<Device> open_device(uint32_t index) {
    return std::make_unique<gpu::GpuDevice>(index);
}

void simulate(const ds4_simulation &) {
    throw Failure(DS4_E_UNSUPPORTED, "the " DS4_GPU_BACKEND " backend computes on real cards and simulates none: choose the sim "
                                     "backend");
}

Backend open_backend(const BackendOptions &options) {
    if (options.instruction_set != DS4_ISA_AUTO) {
        throw Failure(DS4_E_ARGUMENT, "the " DS4_GPU_BACKEND " backend has no instruction sets to choose from");
    }
    auto device = std::make_unique<gpu::GpuDevice>(options.device);
    auto ops = std::make_unique<gpu::GpuOps>(*device, options.exact);
    return {.device = std::move(device), .ops = std::move(ops)};
}

} // namespace ds4::backend
