/* What was given up, or waits for other bytes, is not a number on the simulated device: code that forgets to wait, or keeps an
 * address too long, computes nonsense each time. */
#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/sim/simulated_machine_test.h"
#include "runtime/expert_store.h"
#include "runtime/held_source_test.h"
#include "runtime/weight_pager.h"

using namespace ds4;
using namespace ds4::backend;
using namespace ds4::backend::sim::test;
using namespace ds4::runtime;

namespace {

constexpr auto    kPoisoned = static_cast<char>(0xff);
constexpr int64_t kFloats = 64; /* of a part: a multiple of what places are rounded to */
constexpr size_t  kPartBytes = kFloats * sizeof(float);
constexpr size_t  kExperts = 4;

/* Floats, one after another the same, as many as there are parts of it: part n holds n + 1. */
std::vector<std::byte> numbered_parts(size_t count) {
    std::vector<std::byte> bytes(count * kPartBytes);
    for (size_t i = 0; i < count * kFloats; ++i) {
        const auto value = static_cast<float>(i / kFloats + 1);
        std::memcpy(bytes.data() + i * sizeof(float), &value, sizeof(float));
    }
    return bytes;
}

/* A simulated device with readers of a file that answers only when it is let go. */
struct Held {
    Simulated        simulated;
    ds4::test::HeldSource source{numbered_parts(3 * kExperts)};
    Telemetry        telemetry;
    FileReader       reader{source, nullptr, 1, telemetry};
    FetchQueue       queue{simulated.device(), 1, 4096, telemetry};

    /* What a kernel makes of a part that it finds at this address: the number of the part, or nonsense. */
    float number_at(const std::byte *address) const {
        const Placed<float> ones(simulated.device(), std::vector<float>(kFloats, 1.0f));
        const Placed<float> out(simulated.device(), 1);
        const Matrix        matrix{.type = quant::Type::f32,
                                   .rows = 1,
                                   .columns = kFloats,
                                   .row_bytes = kPartBytes,
                                   .data = address};
        const Projection    projection{&matrix, out.get()};
        simulated.ops().project({1, ones.get(), std::span(&projection, 1)});
        return out.read()[0] / static_cast<float>(kFloats);
    }
};

struct HeldExperts : Held {
    explicit HeldExperts(const ExpertPlan &plan)
        : store(simulated.device(), &queue, layers(), kExperts, 1, plan, telemetry) {}

    std::vector<ExpertLayer> layers() const {
        ExpertLayer layer{};
        for (size_t part = 0; part < layer.size(); ++part) {
            layer[part] = {&reader, part * kExperts * kPartBytes, kPartBytes, nullptr, nullptr};
        }
        return {layer};
    }
    ExpertAddress entry(int32_t expert) const {
        ExpertAddress address{};
        simulated.device().copy_out(&address, store.table(0) + expert, sizeof address);
        return address;
    }
    void begin(int32_t expert) {
        store.begin_step();
        store.begin_run(0, std::span(&expert, 1), 1);
    }
    void end(int32_t expert) {
        store.complete_run();
        store.end_run();
        store.end_step(std::span(&expert, 1), 1);
    }
    void evaluate(int32_t expert) {
        begin(expert);
        end(expert);
    }
    bool finds(int32_t expert) const {
        const ExpertAddress address = entry(expert);
        const auto          first = static_cast<float>(expert + 1);
        return number_at(address.gate) == first && number_at(address.up) == first + kExperts &&
               number_at(address.down) == first + 2 * kExperts;
    }
    bool is_spoiled(const ExpertAddress &address) const {
        return std::isnan(number_at(address.gate)) && std::isnan(number_at(address.up)) && std::isnan(number_at(address.down));
    }

    ExpertStore store;
};

constexpr uint64_t kUnit = 3 * kPartBytes;

} // namespace

TEST("what is spoiled is not a number, in device memory and in pinned memory, and nothing beside it is") {
    const Simulated    simulated;
    Device            &device = simulated.device();
    const Placed<char> place(device, std::vector<char>(100, 7));
    const auto         pinned = device.pin_memory(64, "a test");
    std::vector<char>  host(16, 9);
    std::ranges::fill(pinned->bytes(), std::byte{8});

    device.spoil(place.get() + 10, 20);
    device.spoil(pinned->bytes().data() + 4, 8);
    device.spoil(host.data(), host.size());     /* is not the device's business */
    device.spoil(place.get() + 90, 11);         /* is not in one allocation */

    const std::vector<char> got = place.read();
    CHECK(got[9] == 7 && got[10] == kPoisoned && got[29] == kPoisoned && got[30] == 7 && got[95] == 7);
    CHECK(pinned->bytes()[3] == std::byte{8} && pinned->bytes()[4] == std::byte{0xff});
    CHECK(pinned->bytes()[11] == std::byte{0xff} && pinned->bytes()[12] == std::byte{8});
    CHECK(std::ranges::all_of(host, [](char byte) { return byte == 9; }));
}

TEST("a slot of paged weights is not a number from when its next page is asked for until that was entered") {
    Held                                     held;
    const std::vector<std::vector<PagePart>> pages = {{{&held.reader, 0, kPartBytes}}, {{&held.reader, kPartBytes, kPartBytes}}};
    WeightPager                              pager(held.simulated.device(), held.queue, pages, 1, held.telemetry);
    pager.enter(0);
    CHECK(held.number_at(pager.address(0, 0)) == 1);

    held.source.hold();
    pager.leave(0);
    CHECK(std::isnan(held.number_at(pager.address(0, 0))));
    CHECK(std::isnan(held.number_at(pager.address(1, 0))));
    held.source.let_go();
    while (held.telemetry.get(DS4_WORD_UPLOAD_BYTES) < 2 * kPartBytes) {
    }
    CHECK(std::isnan(held.number_at(pager.address(1, 0)))); /* sent, and not waited for */

    pager.enter(1);
    CHECK(held.number_at(pager.address(1, 0)) == 2);
}

TEST("an expert that gave way leaves no number behind, in a slot, in transit or in host memory") {
    for (const ExpertPlan &plan : {ExpertPlan{.slot_bytes = kUnit, .transit_bytes = kUnit},
                                   ExpertPlan{.slot_bytes = 0, .transit_bytes = kUnit},
                                   ExpertPlan{.slot_bytes = 0, .transit_bytes = kUnit, .host_bytes = kUnit}}) {
        HeldExperts experts(plan);
        experts.begin(0);
        experts.store.complete_run();
        const ExpertAddress old = experts.entry(0);
        CHECK(experts.finds(0));
        experts.store.end_run();
        const int32_t chosen = 0;
        experts.store.end_step(std::span(&chosen, 1), 1);

        experts.source.hold();
        experts.begin(1);
        CHECK(experts.is_spoiled(old));
        experts.source.let_go();
        experts.end(1);
        experts.begin(2);
        experts.store.complete_run();
        CHECK(experts.finds(2));
    }
}

TEST("an expert that is foreseen is not a number until it was waited for, also in a place that nobody has used") {
    HeldExperts                             experts({.slot_bytes = 2 * kUnit, .transit_bytes = kUnit});
    const std::vector<std::vector<int32_t>> chosen = {{3}};
    experts.source.hold();
    experts.store.begin_step();
    experts.store.foresee(chosen, 1);

    CHECK(experts.is_spoiled(experts.entry(3)));
    experts.source.let_go();
    while (experts.telemetry.get(DS4_WORD_UPLOAD_BYTES) < kUnit) {
    }
    CHECK(std::isnan(experts.number_at(experts.entry(3).down))); /* the buffer of the first part was needed again */

    experts.store.begin_run(0, chosen[0], 1);
    experts.store.complete_run();
    CHECK(experts.finds(3));
}

TEST("an expert on its way from host memory into a slot is found where it was, and there no longer once it has moved") {
    HeldExperts experts({.slot_bytes = kUnit, .transit_bytes = kUnit, .host_bytes = kUnit});
    experts.evaluate(0); /* into the slot */
    experts.evaluate(1); /* into host memory */
    const ExpertAddress slot = experts.entry(0);
    const ExpertAddress old = experts.entry(1);
    experts.begin(1);
    CHECK(experts.telemetry.get(DS4_WORD_EXPERT_PROMOTIONS) == 1);
    experts.store.complete_run();
    CHECK(experts.finds(1));
    CHECK(experts.is_spoiled(slot)); /* its expert has left, and the other has not come */
    experts.end(1);
    while (experts.entry(1).gate == old.gate) {
        experts.evaluate(1);
    }

    CHECK(experts.finds(1));
    CHECK(experts.is_spoiled(old));
}

TEST("memory that was given back is no longer read") {
    const Held       held;
    Device          &device = held.simulated.device();
    const std::byte *address = nullptr;
    {
        const Placed<float> place(device, std::vector<float>(kFloats, 2.0f));
        address = reinterpret_cast<const std::byte *>(place.get());
        CHECK(held.number_at(address) == 2);
    }
    CHECK_FAILS(DS4_E_DEVICE, held.number_at(address));
    {
        const auto pinned = device.pin_memory(kPartBytes, "a test");
        address = pinned->device_address();
        CHECK(held.number_at(address) == 0);
    }
    CHECK_FAILS(DS4_E_DEVICE, held.number_at(address));
    const Placed<float> next(device, std::vector<float>(kFloats, 3.0f)); /* gets no address that was somebody else's */
    CHECK_FAILS(DS4_E_DEVICE, held.number_at(address));
}
