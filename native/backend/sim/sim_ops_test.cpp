#include <algorithm>
#include <cmath>
#include <string>

#include "backend/sim/simulated_machine_test.h"
#include "runtime/failure_test.h"

using namespace ds4;
using namespace ds4::backend;
using namespace ds4::backend::sim::test;

namespace {

constexpr int64_t kTokens = 2, kWidth = 64, kHc = 4, kHeads = 2, kDim = 64, kRows = 4;

/* One allocation into which all floats of an op point, and one for integers; what is computed does not matter. */
class Room {
public:
    static constexpr size_t kCount = 4096;

    float   *floats() const { return floats_.get(); }
    int32_t *ints() const { return ints_.get(); }

    Matrix matrix(int64_t rows, int64_t columns) const {
        return {.type = quant::Type::f32,
                .rows = rows,
                .columns = columns,
                .row_bytes = columns * 4,
                .data = reinterpret_cast<const std::byte *>(floats())};
    }

    /* The op runs; with any of the pointers in host memory, or where the allocation ends, it fails and says so. */
    template <typename Args, typename... Members>
    void check_each(const char *name, void (Ops::*op)(const Args &), const Args &args, Members... members) {
        (simulated.ops().*op)(args);
        (check_one(name, op, args, members, host_floats_.data(), floats()), ...);
    }
    template <typename Args, typename... Members>
    void check_each_int(const char *name, void (Ops::*op)(const Args &), const Args &args, Members... members) {
        (check_one(name, op, args, members, host_ints_.data(), ints()), ...);
    }

    Simulated simulated;

private:
    template <typename Args, typename Pointer, typename Value>
    void check_one(const char *name, void (Ops::*op)(const Args &), const Args &args, Pointer Args::*member, Value *host,
                   Value *own) {
        for (Value *const wrong : {host, own + kCount}) {
            Args bad = args;
            bad.*member = wrong;
            const auto outcome = ds4::test::outcome_of([&] { (simulated.ops().*op)(bad); });
            CHECK(outcome.status == DS4_E_DEVICE && outcome.says(std::string("cannot run ") + name + ":"));
        }
    }

    Placed<float>        floats_{simulated.device(), kCount};
    Placed<int32_t>      ints_{simulated.device(), kCount};
    std::vector<float>   host_floats_ = std::vector<float>(kCount);
    std::vector<int32_t> host_ints_ = std::vector<int32_t>(kCount);
};

const std::vector<float> kFrequency(16, 0.5f);
const Rope               kRope{kFrequency.data(), 32};

} // namespace

TEST("each pointer of each op must lead to memory of the device") {
    Room                   room;
    float *const           f = room.floats();
    const Matrix           mix = room.matrix(2 * kHc + kHc * kHc, 32 * kHc);
    const Matrix           head = room.matrix(kHc, 32 * kHc);
    const Matrix           ape = room.matrix(4, kDim);
    const int32_t          tokens[kTokens] = {1, 0};

    room.check_each("hc_pre", &Ops::hc_pre, {kTokens, kHc, 32, f, &mix, f, f, 2, 1e-6f, f, 1e-6f, f, f, f}, &HcPreArgs::streams,
                    &HcPreArgs::base, &HcPreArgs::scale, &HcPreArgs::norm, &HcPreArgs::x, &HcPreArgs::post, &HcPreArgs::comb);
    const HcPostArgs post{kTokens, kHc, 32, f, f, f, f, 3, room.ints()};
    room.check_each("hc_post", &Ops::hc_post, post, &HcPostArgs::streams, &HcPostArgs::y, &HcPostArgs::post, &HcPostArgs::comb);
    room.check_each_int("hc_post", &Ops::hc_post, post, &HcPostArgs::bad_layer);
    room.check_each("hc_head", &Ops::hc_head, {kTokens, kHc, 32, f, &head, f, f, 1e-6f, f, 1e-6f, f}, &HcHeadArgs::streams,
                    &HcHeadArgs::base, &HcHeadArgs::scale, &HcHeadArgs::norm, &HcHeadArgs::x);
    room.check_each("rms_norm", &Ops::rms_norm, {kTokens, kWidth, f, f, 1e-6f, f}, &RmsNormArgs::x, &RmsNormArgs::weight,
                    &RmsNormArgs::out);
    room.check_each("query", &Ops::query, {kTokens, kHeads, kDim, 5, kRope, 1e-6f, f}, &QueryArgs::q);
    room.check_each("window", &Ops::window, {kTokens, kDim, 5, kRope, f, f, 1e-6f, false, 8, f}, &WindowArgs::kv,
                    &WindowArgs::norm, &WindowArgs::ring);
    room.check_each("compress", &Ops::compress,
                    {kTokens, 4, 1, kDim, 6, f, f, &ape, 8, f, f, f, 1e-6f, kRope, RowRounding::none, f}, &CompressArgs::keys,
                    &CompressArgs::gates, &CompressArgs::key_ring, &CompressArgs::gate_ring, &CompressArgs::norm,
                    &CompressArgs::rows);
    room.check_each("indexer_query", &Ops::indexer_query, {kTokens, kHeads, kDim, 5, kRope, false, f}, &IndexerQueryArgs::q);
    const IndexerSelectArgs select{kTokens, kHeads,      kDim,           4, 3,       18, f, f, f,
                                   5,       room.ints(), room.ints() + 6, f, 5};
    room.check_each("indexer_select", &Ops::indexer_select, select, &IndexerSelectArgs::q, &IndexerSelectArgs::weights,
                    &IndexerSelectArgs::rows, &IndexerSelectArgs::scores);
    room.check_each_int("indexer_select", &Ops::indexer_select, select, &IndexerSelectArgs::selected, &IndexerSelectArgs::count);
    /* The rows that were selected just now. */
    const AttentionArgs attention{kTokens, kHeads, kDim,        18,              kRope, f, 4, 8, f, 4, f, 5,
                                  room.ints(), room.ints() + 6, 3, f, f + 256};
    room.check_each("attention", &Ops::attention, attention, &AttentionArgs::q, &AttentionArgs::ring, &AttentionArgs::rows,
                    &AttentionArgs::sinks, &AttentionArgs::out);
    room.check_each_int("attention", &Ops::attention, attention, &AttentionArgs::selected, &AttentionArgs::count);
    const RouteArgs route{kTokens, 8, 2, f, f, nullptr, tokens, true, 1.0f, room.ints(), f + 100};
    room.check_each("route", &Ops::route, route, &RouteArgs::logits, &RouteArgs::bias, &RouteArgs::weights);
    room.check_each_int("route", &Ops::route, route, &RouteArgs::ids, &RouteArgs::hash);
    const BestArgs best{100, 3, f, f + 200, room.ints(), room.ints() + 8};
    room.check_each("best", &Ops::best, best, &BestArgs::logits, &BestArgs::logit);
    room.check_each_int("best", &Ops::best, best, &BestArgs::id, &BestArgs::finite);
}

TEST("matrices must lie in memory of the device as a whole, in the order of the file") {
    Room                room;
    float *const        f = room.floats();
    const Matrix        good = room.matrix(kRows, kWidth);
    const int32_t       tokens[] = {3, 0, 3};
    std::vector<float>  host(Room::kCount);
    const auto          runs = [&](const Matrix &matrix) {
        const Projection  projections[] = {{&good, f + 512}, {&matrix, f + 1024}};
        const auto        status = [](auto body) { return ds4::test::outcome_of(body).status; };
        Ops              &ops = room.simulated.ops();
        const ds4_status project = status([&] { ops.project({kTokens, f, projections}); });
        CHECK(project == status([&] { ops.grouped_project({kTokens, 2, f, &matrix, f + 512}); }));
        CHECK(project == status([&] { ops.embed({tokens, &matrix, kHc, f + 1024}); }));
        CHECK(project == status([&] { ops.arrange(matrix); }));
        return project;
    };

    CHECK(runs(good) == DS4_OK);
    Matrix bad = good;
    bad.data = reinterpret_cast<const std::byte *>(host.data());
    CHECK(runs(bad) == DS4_E_DEVICE);
    bad.data = reinterpret_cast<const std::byte *>(f + Room::kCount - kRows * kWidth);
    CHECK(runs(bad) == DS4_OK);
    bad.data += 4;
    CHECK(runs(bad) == DS4_E_DEVICE);
    bad = good;
    bad.layout = RowLayout::arranged;
    CHECK(runs(bad) == DS4_E_DEVICE);
}

TEST("an op sees the values that were put on the device and leaves its own there") {
    const Simulated      simulated;
    Device              &device = simulated.device();
    const Placed<float>  x(device, std::vector<float>{3, 4, 0, 0, 1, 1, 1, 1});
    const Placed<float>  weight(device, std::vector<float>{1, 2, 3, 4});
    const Placed<float>  out(device, 8);

    simulated.ops().rms_norm({2, 4, x.get(), weight.get(), 0.0f, out.get()});

    CHECK_NEAR("rms norm", out.read(), (std::vector<float>{1.2f, 3.2f, 0, 0, 1, 2, 3, 4}), 1e-6);
}

TEST("host memory is for the arguments that say so, and device memory for the others") {
    Room            room;
    Ops            &ops = room.simulated.ops();
    float *const    f = room.floats();
    const Matrix    embedding = room.matrix(kRows, kWidth);
    const int32_t   beyond[] = {4};

    CHECK_FAILS(DS4_E_DEVICE, ops.embed({{room.ints(), 1}, &embedding, kHc, f}));
    CHECK_FAILS(DS4_E_DEVICE, ops.embed({beyond, &embedding, kHc, f}));
    CHECK_FAILS(DS4_E_DEVICE, ops.query({kTokens, kHeads, kDim, 5, {f, 32}, 1e-6f, f}));
    CHECK_FAILS(DS4_E_DEVICE, ops.route({1, 8, 2, f, f, nullptr, room.ints(), true, 1.0f, room.ints(), f}));
}

TEST("kernels read what is pinned, over the bus, and do not write it") {
    const Simulated          simulated;
    Device                  &device = simulated.device();
    const std::vector<float> host = {1, 2, 3, 4, 5, 6, 7, 8};
    const Placed<float>      x(device, std::vector<float>{1, 0, 0, 1});
    const Placed<float>      out(device, 2);
    auto                     mapped = device.map_host(std::as_bytes(std::span(host)));
    const Matrix             matrix{.type = quant::Type::f32, .rows = 2, .columns = 4, .row_bytes = 16,
                                    .data = mapped->device_address()};
    const Projection         projection[] = {{&matrix, out.get()}};
    const uint64_t           before = simulated.word(DS4_WORD_SIM_NS);

    simulated.ops().project({1, x.get(), projection});

    CHECK(simulated.word(DS4_WORD_SIM_MAPPED_READ_BYTES) == 32);
    CHECK(simulated.word(DS4_WORD_SIM_NS) - before == 64);
    CHECK(out.read() == std::vector<float>({5, 13}));
    auto *const as_output = reinterpret_cast<float *>(const_cast<std::byte *>(mapped->device_address()));
    CHECK_FAILS(DS4_E_DEVICE, simulated.ops().rms_norm({1, 4, x.get(), x.get(), 0.0f, as_output}));
    CHECK_FAILS(DS4_E_DEVICE, simulated.ops().arrange(matrix));

    mapped.reset();
    CHECK_FAILS(DS4_E_DEVICE, simulated.ops().project({1, x.get(), projection}));
    CHECK(simulated.word(DS4_WORD_SIM_PINNED_BYTES) == 0);
}

TEST("of an embedding in host memory the rows of the batch are read, each once") {
    const Simulated          simulated;
    const std::vector<float> host(kRows * kWidth, 1.0f);
    const auto               mapped = simulated.device().map_host(std::as_bytes(std::span(host)));
    const Placed<float>      streams(simulated.device(), 3 * kWidth);
    const Matrix             embedding{.type = quant::Type::f32, .rows = kRows, .columns = kWidth, .row_bytes = kWidth * 4,
                                       .data = mapped->device_address()};
    const int32_t            tokens[] = {2, 1, 2};

    simulated.ops().embed({tokens, &embedding, 1, streams.get()});

    CHECK(simulated.word(DS4_WORD_SIM_MAPPED_READ_BYTES) == 2 * kWidth * 4);
    CHECK(streams.read() == std::vector<float>(3 * kWidth, 1.0f));
}

TEST("rows that nobody can see are not attended to, nor more than there is room for") {
    Room         room;
    float *const f = room.floats();
    Device      &device = room.simulated.device();
    const auto   attend = [&](const std::vector<int32_t> &selected, int32_t count, int64_t capacity) {
        device.copy_in(room.ints(), selected.data(), selected.size() * 4);
        device.copy_in(room.ints() + 8, &count, 4);
        room.simulated.ops().attention(
            {1, kHeads, kDim, 19, kRope, f, 4, 8, f, 4, f, capacity, room.ints(), room.ints() + 8, 3, f, f + 256});
    };

    attend({0, 2, 4}, 3, 5);
    attend({0, 2, 77}, 2, 5);
    CHECK_FAILS(DS4_E_DEVICE, attend({0, 2, 5}, 3, 5));
    CHECK_FAILS(DS4_E_DEVICE, attend({-1, 2, 4}, 3, 5));
    CHECK_FAILS(DS4_E_DEVICE, attend({0, 2, 4}, 4, 5));
    CHECK_FAILS(DS4_E_DEVICE, attend({0, 2, 4}, 3, 4));
}
