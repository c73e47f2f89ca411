/* A whole model on the simulated device: every op finds its memory, and no bit differs from the host's. */
#include <algorithm>

#include "backend/cpu/cpu_device.h"
#include "backend/cpu/cpu_ops.h"
#include "backend/sim/simulated_machine_test.h"
#include "model/tiny_model_test.h"

using namespace ds4;
using namespace ds4::backend;
using namespace ds4::backend::sim::test;
using ds4::test::run;
using ds4::test::TinyModel;
using runtime::WeightPlacement;

namespace {

constexpr model::SessionOptions kRoomy{.context = 400, .prefill_chunk = 50, .checkpoint_count = 1};

ds4_simulation roomy_machine(uint32_t kind) {
    ds4_simulation machine = small_machine(kind);
    machine.vram_bytes = uint64_t{1} << 30;
    return machine;
}

std::vector<float> on_the_host(std::span<const int32_t> tokens) {
    TinyModel      tiny;
    const auto     host = [](Backend) {
        return Backend{std::make_unique<cpu::CpuDevice>(),
                       std::make_unique<cpu::CpuOps>(1, cpu::CpuOps::Arithmetic::exact, DS4_ISA_AUTO)};
    };
    model::Session session(tiny.open({.replace = host}), kRoomy);
    return run(session, tokens, 50);
}

} // namespace

TEST("a model gives the same logits on simulated devices of both kinds, resident and with experts in the mapping") {
    const std::vector<int32_t> tokens = ds4::test::tiny_tokens(120);
    const std::vector<float>   want = on_the_host(tokens);

    for (const uint32_t kind : {DS4_DEVICE_DISCRETE, DS4_DEVICE_INTEGRATED}) {
        for (const WeightPlacement placement : {WeightPlacement::resident, WeightPlacement::mapped_experts}) {
            Simulated simulated(roomy_machine(kind));
            {
                TinyModel      tiny;
                const auto     own = [&](Backend) { return std::move(simulated.backend); };
                model::Session session(tiny.open({.plan = {.placement = placement, .upload = {.compare = true}}, .replace = own}),
                                       kRoomy);
                CHECK(ds4::test::same_bits(run(session, tokens, 50), want));
                const uint64_t least_free = tiny.telemetry->get(DS4_WORD_DEVICE_LEAST_FREE_BYTES);
                CHECK(least_free > 0 && least_free < roomy_machine(kind).vram_bytes);
            }
            CHECK((simulated.word(DS4_WORD_SIM_MAPPED_READ_BYTES) > 0) == (placement == WeightPlacement::mapped_experts));
            CHECK(simulated.word(DS4_WORD_SIM_PEAK_BYTES) > 0);
            CHECK(simulated.word(DS4_WORD_SIM_ALLOCATIONS) == 0);
            CHECK(simulated.word(DS4_WORD_SIM_ALLOCATED_BYTES) == 0);
            CHECK(simulated.word(DS4_WORD_SIM_PINNED_BYTES) == 0);
        }
    }
}
