#include "backend/cpu/cpu_device.h"
#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/instruction_set.h"

#include "failure.h"

namespace ds4::backend {

uint32_t device_count() {
    return 1;
}

std::unique_ptr<Device> open_device(uint32_t index) {
    if (index != 0) {
        throw Failure(DS4_E_DEVICE, "cannot open device " + std::to_string(index) +
                                        " of the CPU backend: there is one device, number 0");
    }
    return std::make_unique<cpu::CpuDevice>();
}

void simulate(const ds4_simulation &) {
    throw Failure(DS4_E_UNSUPPORTED, "the cpu backend computes on the real machine and simulates none: choose the sim backend");
}

Backend open_backend(const BackendOptions &options) {
    using cpu::CpuOps;
    std::unique_ptr<Device> device = open_device(options.device);
    const uint32_t          instruction_set = cpu::choose_instruction_set(options.instruction_set);
    const auto arithmetic = options.exact ? CpuOps::Arithmetic::exact : CpuOps::Arithmetic::fast;
    auto       ops = std::make_unique<CpuOps>(options.threads, arithmetic, instruction_set, options.cancel);
    const uint32_t threads = ops->threads();
    return {.device = std::move(device), .ops = std::move(ops), .threads = threads, .instruction_set = instruction_set};
}

} // namespace ds4::backend
