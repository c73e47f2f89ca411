#include "backend/cpu/instruction_set.h"
#include "backend/sim/sim_device.h"
#include "backend/sim/sim_ops.h"

namespace ds4::backend {

namespace {

std::unique_ptr<sim::SimDevice> open_simulated(uint32_t index, uint64_t *words) {
    return std::make_unique<sim::SimDevice>(sim::machine().card(index), words);
}

} // namespace

uint32_t device_count() {
    return sim::machine().card_count();
}

std::unique_ptr<Device> open_device(uint32_t index) {
    return open_simulated(index, nullptr);
}

void simulate(const ds4_simulation &machine) {
    sim::machine().become(machine);
}

Backend open_backend(const BackendOptions &options) {
    using cpu::CpuOps;
    auto           device = open_simulated(options.device, options.words);
    const uint32_t instruction_set = cpu::choose_instruction_set(options.instruction_set);
    const auto     arithmetic = options.exact ? CpuOps::Arithmetic::exact : CpuOps::Arithmetic::fast;
    auto           ops = std::make_unique<sim::SimOps>(
        *device, std::make_unique<CpuOps>(options.threads, arithmetic, instruction_set, options.cancel));
    const uint32_t threads = ops->threads();
    return {.device = std::move(device), .ops = std::move(ops), .threads = threads, .instruction_set = instruction_set};
}

} // namespace ds4::backend
