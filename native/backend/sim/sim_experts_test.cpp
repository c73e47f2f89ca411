#include <algorithm>
#include <cmath>
#include <utility>

#include "backend/sim/simulated_machine_test.h"
#include "runtime/failure_test.h"

using namespace ds4;
using namespace ds4::backend;
using namespace ds4::backend::sim::test;

namespace {

constexpr int64_t kTokens = 3, kWidth = 32, kInner = 64, kExperts = 6, kUsed = 2;
constexpr size_t  kMatrixBytes = kWidth * kInner * 4;
constexpr size_t  kExpertBytes = 3 * kMatrixBytes;

/* Six experts, in device memory and once more in pinned host memory, of which a batch chooses 1, 2 and 4. */
struct Experts {
    Experts() {
        std::ranges::copy(std::as_bytes(std::span(weights)), pinned->bytes().begin());
        for (int64_t expert = 0; expert < kExperts; ++expert) {
            entries.push_back(on_device(expert));
        }
    }

    ExpertAddress on_device(int64_t expert) const { return at(reinterpret_cast<const std::byte *>(placed.get()), expert); }
    ExpertAddress on_host(int64_t expert) const { return at(pinned->device_address(), expert); }

    /* With the entries as the device's table. */
    ExpertsArgs args(const Placed<ExpertAddress> &table) {
        simulated.device().copy_in(table.get(), entries.data(), entries.size() * sizeof(ExpertAddress));
        return {.tokens = kTokens,
                .width = kWidth,
                .expert_width = kInner,
                .experts = kExperts,
                .used = kUsed,
                .x = x.get(),
                .ids = ids.get(),
                .weights = shares.get(),
                .table = table.get(),
                .gate_up_type = quant::Type::f32,
                .down_type = quant::Type::f32,
                .clamp = 10.0f,
                .shared_gate = nullptr,
                .shared_up = nullptr,
                .shared_down = nullptr,
                .shared_clamp = 0.0f,
                .out = out.get()};
    }
    std::vector<float> run() {
        simulated.ops().experts(args(table));
        return out.read();
    }
    ds4::test::Outcome outcome() {
        return ds4::test::outcome_of([&] { run(); });
    }
    uint64_t mapped_bytes() const { return simulated.word(DS4_WORD_SIM_MAPPED_READ_BYTES); }

    Simulated                     simulated;
    ds4::test::Random             random{1};
    std::vector<float>            weights = random.normals(kExperts * 3 * kWidth * kInner, 0.2f);
    Placed<float>                 placed{simulated.device(), weights};
    std::unique_ptr<PinnedMemory> pinned = simulated.device().pin_memory(kExperts * kExpertBytes, "experts");
    Placed<float>                 x{simulated.device(), random.normals(kTokens * kWidth)};
    Placed<int32_t>               ids{simulated.device(), std::vector<int32_t>{1, 4, 4, 2, 1, 2}};
    Placed<float>                 shares{simulated.device(), std::vector<float>(kTokens * kUsed, 0.5f)};
    Placed<float>                 out{simulated.device(), kTokens * kWidth};
    Placed<ExpertAddress>         table{simulated.device(), kExperts};
    Placed<ExpertAddress>         begun_table{simulated.device(), kExperts};
    std::vector<ExpertAddress>    entries;

private:
    static ExpertAddress at(const std::byte *first, int64_t expert) {
        const std::byte *const gate = first + expert * static_cast<int64_t>(kExpertBytes);
        return {gate, gate + kMatrixBytes, gate + 2 * kMatrixBytes};
    }
};

} // namespace

TEST("where an expert lives changes no bit, and each chosen one in host memory is read over the bus once") {
    Experts                  experts;
    const std::vector<float> want = experts.run();
    CHECK(experts.mapped_bytes() == 0);
    CHECK(std::ranges::any_of(want, [](float value) { return value != 0.0f; }));

    for (const int64_t expert : {0, 2, 4}) { /* nobody chose 0 */
        experts.entries[static_cast<size_t>(expert)] = experts.on_host(expert);
    }
    CHECK_SAME_BITS("experts", experts.run(), want);
    CHECK(experts.mapped_bytes() == 2 * kExpertBytes);
}

TEST("only experts that were chosen need an address, and they need a good one") {
    Experts                  experts;
    const std::vector<float> want = experts.run();
    const float              host = 0.0f;

    experts.entries[0] = {};
    experts.entries[3] = {reinterpret_cast<const std::byte *>(&host), nullptr, nullptr};
    CHECK_SAME_BITS("experts", experts.run(), want);

    experts.entries[4] = {};
    CHECK(experts.outcome().status == DS4_E_DEVICE && experts.outcome().says("expert 4, which was chosen"));
    experts.entries[4] = experts.on_device(4);
    experts.entries[4].up = nullptr;
    CHECK(experts.outcome().status == DS4_E_DEVICE && experts.outcome().says("only for some"));
    experts.entries[4].up = reinterpret_cast<const std::byte *>(&host);
    CHECK(experts.outcome().status == DS4_E_DEVICE && experts.outcome().says("up of expert 4"));
    experts.entries[4] = experts.on_device(5);
    experts.entries[4].down += 4;
    CHECK(experts.outcome().status == DS4_E_DEVICE && experts.outcome().says("down of expert 4 needs 8192 bytes"));
}

TEST("ids, and the table itself, are looked at before they are followed") {
    Experts       experts;
    const int32_t beyond = kExperts;
    ExpertsArgs   args = experts.args(experts.table);
    args.table = experts.entries.data();
    CHECK_FAILS(DS4_E_DEVICE, experts.simulated.ops().experts(args));

    experts.simulated.device().copy_in(experts.ids.get() + 3, &beyond, 4);
    CHECK(experts.outcome().status == DS4_E_DEVICE && experts.outcome().says("expert 6 of 6"));
}

TEST("experts that are begun before all are there end with the same bits and the same bytes over the bus") {
    Experts experts;
    for (const int64_t expert : {1, 2, 4}) {
        experts.entries[static_cast<size_t>(expert)] = experts.on_host(expert);
    }
    const std::vector<float> want = experts.run();
    CHECK(experts.mapped_bytes() == 3 * kExpertBytes);

    const auto late = std::exchange(experts.entries[2], {});
    CHECK(experts.simulated.ops().begin_experts(experts.args(experts.begun_table)));
    experts.entries[2] = late;
    ExpertsArgs rest = experts.args(experts.table);
    rest.begun = experts.begun_table.get();
    experts.simulated.ops().experts(rest);

    CHECK_SAME_BITS("experts", experts.out.read(), want);
    CHECK(experts.mapped_bytes() == 6 * kExpertBytes);
}

TEST("what was begun is ended next, with the table of then and the same arguments") {
    Experts     experts;
    Ops        &ops = experts.simulated.ops();
    const auto  begin = [&] {
        ops.abandon_step();
        experts.entries[2] = {};
        CHECK(ops.begin_experts(experts.args(experts.begun_table)));
        experts.entries[2] = experts.on_device(2);
        ExpertsArgs rest = experts.args(experts.table);
        rest.begun = experts.begun_table.get();
        return rest;
    };
    ExpertsArgs rest = begin();
    CHECK_FAILS(DS4_E_DEVICE, ops.rms_norm({1, 4, experts.x.get(), experts.x.get(), 0.0f, experts.out.get()}));
    rest.begun = nullptr;
    CHECK_FAILS(DS4_E_DEVICE, ops.experts(rest));

    rest = begin();
    rest.tokens = 2;
    CHECK_FAILS(DS4_E_DEVICE, ops.experts(rest));

    rest = begin();
    static_cast<void>(experts.args(experts.begun_table)); /* now with the expert that was missing */
    CHECK_FAILS(DS4_E_DEVICE, ops.experts(rest));

    ops.abandon_step();
    CHECK_FAILS(DS4_E_DEVICE, ops.experts(rest));
    rest.begun = nullptr;
    ops.experts(rest);
}

TEST("an expert that has not arrived yet spoils the result for certain") {
    Experts    experts;
    const auto ring = experts.simulated.device().upload_ring(1, kExpertBytes);
    const auto slot = experts.simulated.device().allocate(kExpertBytes, "a slot");
    const std::vector<float> want = experts.run();
    std::ranges::copy(experts.pinned->bytes().subspan(2 * kExpertBytes, kExpertBytes), ring->wait(0).begin());
    auto *const first = slot.as<std::byte>();
    experts.entries[2] = {first, first + kMatrixBytes, first + 2 * kMatrixBytes};

    ring->send(0, first, kExpertBytes);
    CHECK(std::ranges::any_of(experts.run(), [](float value) { return std::isnan(value); }));
    ring->precede_ops();
    CHECK_SAME_BITS("experts", experts.run(), want);
}
