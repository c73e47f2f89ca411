#include <cmath>

#include "backend/cpu/experts_test.h"
#include "backend/gpu/parity_test.h"

namespace ds4::backend::gpu::test {

namespace {

using quant::Type;

using Shape = cpu::test::ExpertsShape;
using Model = cpu::test::ExpertsModel;
using cpu::test::kMissing;
using cpu::test::kMissingNames;
using cpu::test::Missing;
using cpu::test::Routing;

std::vector<float> on_cpu(const Model &model, bool exact) {
    const std::vector<ExpertAddress> table = model.table();
    std::vector<float>               out(model.x.size());
    ExpertsArgs                      call = model.host_args();
    call.table = table.data();
    call.out = out.data();
    cpu::CpuOps ops = cpu_ops(exact);
    ops.experts(call);
    return out;
}

/* The same layer on the device. */
struct PlacedModel {
    const Model               &model;
    Backend                   &backend;
    std::vector<PlacedMatrix>  matrices;
    PlacedMatrix               shared_gate, shared_up, shared_down;
    Placed<ExpertAddress>      table;
    Placed<float>              x, weights;
    Placed<int32_t>            ids;

    PlacedModel(Backend &on, const Model &of, Layout layout)
        : model(of), backend(on), shared_gate(place_matrix(on, of.shared_gate, layout)),
          shared_up(place_matrix(on, of.shared_up, layout)), shared_down(place_matrix(on, of.shared_down, layout)),
          x(place(on, of.x)), weights(place(on, of.weights)), ids(place(on, of.ids)) {
        std::vector<ExpertAddress> addresses;
        for (size_t e = 0; e < of.gates.size(); ++e) {
            const auto put = [&](const OwnedMatrix &matrix) {
                matrices.push_back(place_matrix(on, matrix, Layout::file));
                return matrices.back().matrix.data;
            };
            const std::byte *gate = put(of.gates[e]);
            const std::byte *up = put(of.ups[e]);
            addresses.push_back({gate, up, put(of.downs[e])});
        }
        table = place(on, addresses);
    }

    /* The whole batch. */
    ExpertsArgs args(float *out) const {
        const Shape &shape = model.shape;
        ExpertsArgs  call = model.args();
        call.tokens = shape.tokens;
        call.x = x.get();
        call.ids = ids.get();
        call.weights = weights.get();
        call.table = table.get();
        call.shared_gate = shape.has_shared ? &shared_gate.matrix : nullptr;
        call.shared_up = shape.has_shared ? &shared_up.matrix : nullptr;
        call.shared_down = shape.has_shared ? &shared_down.matrix : nullptr;
        call.out = out;
        return call;
    }

    std::vector<float> run(int64_t piece) {
        const Shape &shape = model.shape;
        const auto   out = room<float>(backend, model.x.size());
        ExpertsArgs  call = args(out.get());
        int64_t      first = 0;
        for (const int64_t count : pieces(shape.tokens, piece)) {
            call.tokens = count;
            call.x = x.get() + first * shape.width;
            call.ids = ids.get() + first * shape.used;
            call.weights = weights.get() + first * shape.used;
            call.out = out.get() + first * shape.width;
            backend.ops->experts(call);
            first += count;
        }
        return out.read();
    }

    /* The whole batch in two calls. */
    std::vector<float> run_split(Missing missing, const std::byte *wrong) {
        const cpu::test::SplitTables tables = cpu::test::split_tables(model, table.read(), missing, wrong);
        const auto                   begun = place(backend, tables.first);
        auto                         rest = place(backend, tables.rest);
        const auto                   out = room<float>(backend, model.x.size());
        ExpertsArgs                  call = args(out.get());
        call.table = begun.get();
        CHECK(backend.ops->begin_experts(call));
        rest.write(tables.rest); /* copies come between the two */
        call.table = rest.get();
        call.begun = begun.get();
        backend.ops->experts(call);
        return out.read();
    }
};

/* Against the processor's arithmetic, then against itself: cut into pieces, and with the shared expert rearranged. */
void check_model(const std::string &name, const Model &model, bool exact, const std::vector<int64_t> &cuts) {
    const std::string  what = name + (exact ? " exact" : "");
    Backend            backend = gpu(exact);
    PlacedModel        in_file(backend, model, Layout::file);
    PlacedModel        arranged(backend, model, Layout::arranged);
    const int64_t      tokens = model.shape.tokens;
    std::vector<float> whole = in_file.run(tokens);
    /* In the fast arithmetic an inner value next to a rounding boundary may become the neighbouring byte. */
    CHECK_NMSE(what, whole, on_cpu(model, exact), exact ? 1e-11 : 2e-7);
    CHECK_SAME_BITS(what + " arranged", arranged.run(tokens), whole);
    for (const int64_t cut : cuts) {
        CHECK_SAME_BITS(what + " in pieces of " + std::to_string(cut), in_file.run(cut), whole);
        CHECK_SAME_BITS(what + " arranged in pieces of " + std::to_string(cut), arranged.run(cut), whole);
    }
}

/* Begun before all experts are there, against one call. */
void check_split(const std::string &name, const Model &model, bool exact, Layout layout) {
    const std::string        what = name + (exact ? " exact" : "") + (layout == Layout::arranged ? " arranged" : "");
    Backend                  backend = gpu(exact);
    PlacedModel              placed(backend, model, layout);
    const auto               wrong = room<std::byte>(backend, model.gates[0].bytes.size());
    const std::vector<float> whole = placed.run(model.shape.tokens);
    for (const Missing missing : kMissing) {
        CHECK_SAME_BITS(what + kMissingNames[static_cast<int>(missing)], placed.run_split(missing, wrong.get()), whole);
    }
}

} // namespace

TEST("experts of every mix of types add up as on the processor, however the batch is cut") {
    const Shape shapes[] = {
        {Type::iq2_xxs, Type::q2_k, Type::q8_0, Type::q8_0, 9, 256, 256, 2, 1, true},
        {Type::q4_k, Type::q8_0, Type::q8_0, Type::q8_0, 9, 256, 32, 3, 2, true},
        {Type::q8_0, Type::q4_k, Type::q8_0, Type::q6_k, 9, 32, 256, 3, 1, true},
        {Type::q5_k, Type::mxfp4, Type::q4_k, Type::mxfp4, 9, 256, 32, 3, 1, true},
        {Type::mxfp4, Type::q6_k, Type::q8_0, Type::q5_k, 9, 32, 256, 3, 1, true},
        {Type::q6_k, Type::f16, Type::iq2_xxs, Type::f16, 9, 256, 40, 3, 1, true},
        {Type::q8_0, Type::q8_0, Type::f32, Type::f32, 9, 96, 160, 5, 2, false},
        {Type::f16, Type::f16, Type::f16, Type::bf16, 11, 64, 96, 8, 3, true},
        {Type::f32, Type::f32, Type::f32, Type::f32, 3, 1, 1, 1, 1, false},
        {Type::f16, Type::q8_0, Type::bf16, Type::f16, 9, 40, 32, 3, 2, true},
    };
    for (const Shape &shape : shapes) {
        Random      random(91);
        const Model model(shape, Routing::spread, random);
        check_model(shape.name(), model, false, {1});
        check_model(shape.name(), model, true, {1});
    }
}

TEST("many tokens of an expert give each the bits it has alone") {
    const Shape shapes[] = {
        {Type::q8_0, Type::mxfp4, Type::q8_0, Type::q8_0, 150, 64, 32, 2, 1, true},
        {Type::iq2_xxs, Type::q8_0, Type::q8_0, Type::q8_0, 70, 256, 32, 1, 1, false},
        {Type::q8_0, Type::q2_k, Type::q8_0, Type::q8_0, 40, 32, 256, 2, 1, false},
        {Type::f16, Type::f16, Type::f16, Type::f16, 140, 32, 40, 2, 1, true},
    };
    for (const Shape &shape : shapes) {
        Random random(92);
        check_model(shape.name(), Model(shape, Routing::spread, random), false, {8});
    }
}

TEST("many experts with few choices each, and one with more than a narrow tile takes") {
    const Shape shapes[] = {
        {Type::iq2_xxs, Type::q2_k, Type::q8_0, Type::q8_0, 30, 256, 256, 20, 2, true},
        {Type::q4_k, Type::mxfp4, Type::q8_0, Type::q8_0, 20, 256, 64, 16, 2, true},
        {Type::q8_0, Type::q6_k, Type::q8_0, Type::q8_0, 20, 64, 256, 16, 2, false},
    };
    for (const Shape &shape : shapes) {
        Random random(97);
        check_model(shape.name() + " narrow", Model(shape, Routing::skewed, random), false, {8});
    }
}

TEST("one expert may get everything and others nothing") {
    Shape  shape{Type::q8_0, Type::q8_0, Type::q8_0, Type::q8_0, 70, 64, 32, 40, 2, true};
    Random random(93);
    check_model("skewed", Model(shape, Routing::skewed, random), false, {3});
    shape.experts = 3;
    shape.used = 3;
    check_model("repeated", Model(shape, Routing::repeated, random), false, {1});
    shape.used = 20;
    shape.tokens = 11;
    check_model("many choices", Model(shape, Routing::repeated, random), false, {4});
}

TEST("rows may be longer than what a lane holds, and of every alignment") {
    const Shape shapes[] = {
        {Type::iq2_xxs, Type::q8_0, Type::q8_0, Type::q8_0, 9, 4352, 32, 1, 1, false},
        {Type::q8_0, Type::q2_k, Type::q8_0, Type::q8_0, 9, 32, 2304, 1, 1, false},
        {Type::f16, Type::q8_0, Type::q8_0, Type::q8_0, 9, 33, 2080, 1, 1, false},
    };
    for (const Shape &shape : shapes) {
        Random random(94);
        /* Eight at a time: more than blocks round for themselves. */
        check_model(shape.name() + " long", Model(shape, Routing::spread, random), false, {1, 8});
    }
}

TEST("one matrix of the shared expert may be rearranged and the other not") {
    Random random(95);
    Shape  shape{Type::q8_0, Type::q8_0, Type::q8_0, Type::q8_0, 9, 256, 64, 2, 1, true};
    for (const bool other_type : {false, true}) {
        Model model(shape, Routing::spread, random);
        if (other_type) {
            model.shared_up = random_matrix(Type::f16, shape.inner, shape.width, random);
        }
        Backend                  backend = gpu(false);
        PlacedModel              plain(backend, model, Layout::file);
        PlacedModel              mixed(backend, model, Layout::file);
        const std::vector<float> whole = plain.run(shape.tokens);
        mixed.shared_gate = place_matrix(backend, model.shared_gate, Layout::arranged);
        CHECK_NMSE("mixed", whole, on_cpu(model, false), 2e-7);
        CHECK_SAME_BITS("mixed", mixed.run(shape.tokens), whole);
        CHECK_SAME_BITS("mixed singly", mixed.run(1), whole);
    }
}

TEST("experts that are begun before all are there give the bits of one call") {
    for (const Shape &shape : cpu::test::split_shapes()) {
        Random      random(97);
        const Model model(shape, Routing::spread, random);
        check_split(shape.name(), model, false, Layout::file);
        check_split(shape.name(), model, true, Layout::file);
        if (shape.has_shared && shape.shared_gate_up == Type::q8_0 && shape.width % 256 == 0) {
            check_split(shape.name(), model, false, Layout::arranged);
        }
    }
}

TEST("experts may be begun with rows too long for blocks to round, and with choices of all sorts") {
    const auto check = [](const char *name, const Shape &shape, Routing routing) {
        Random random(97);
        check_split(name, Model(shape, routing, random), false, Layout::file);
    };
    check("long rows", {Type::q8_0, Type::q8_0, Type::q8_0, Type::q8_0, 8, 4352, 32, 3, 2, true}, Routing::spread);
    check("skewed", {Type::q8_0, Type::mxfp4, Type::q8_0, Type::q8_0, 70, 64, 32, 40, 2, true}, Routing::skewed);
    check("repeated", {Type::q8_0, Type::q8_0, Type::q8_0, Type::q8_0, 11, 64, 32, 3, 20, true}, Routing::repeated);
}

TEST("only what was begun can be finished, once, and before the memory is used for something else") {
    Random            random(98);
    const Model       model({Type::q8_0, Type::q8_0, Type::q8_0, Type::q8_0, 20, 64, 32, 4, 2, true}, Routing::spread, random);
    Backend           backend = gpu(false);
    PlacedModel       placed(backend, model, Layout::file);
    const auto        out = room<float>(backend, model.x.size());
    const auto        same_ids = place(backend, model.ids);
    const ExpertsArgs args = placed.args(out.get());
    const auto        finish = [&](const int32_t *ids, int64_t tokens) {
        ExpertsArgs rest = args;
        rest.begun = rest.table;
        rest.ids = ids;
        rest.tokens = tokens;
        backend.ops->experts(rest);
    };
    CHECK_FAILS(DS4_E_INTERNAL, finish(args.ids, 20));
    CHECK(backend.ops->begin_experts(args));
    CHECK_FAILS(DS4_E_INTERNAL, finish(same_ids.get(), 20));
    CHECK(backend.ops->begin_experts(args));
    CHECK_FAILS(DS4_E_INTERNAL, finish(args.ids, 19));
    CHECK(backend.ops->begin_experts(args));
    backend.ops->experts(args);
    CHECK_FAILS(DS4_E_INTERNAL, finish(args.ids, 20));
    CHECK(backend.ops->begin_experts(args));
    finish(args.ids, 20);
    CHECK_FAILS(DS4_E_INTERNAL, finish(args.ids, 20));

    const Projection projection{&placed.matrices[0].matrix, out.get()};
    CHECK(backend.ops->begin_experts(args));
    backend.ops->project({20, args.x, {&projection, 1}});
    CHECK_FAILS(DS4_E_INTERNAL, finish(args.ids, 20));
}

TEST("experts may be read where the host keeps them") {
    Random                   random(96);
    const Shape              shape{Type::q8_0, Type::q8_0, Type::q8_0, Type::q8_0, 9, 64, 64, 2, 1, true};
    const Model              model(shape, Routing::spread, random);
    Backend                  backend = gpu(false);
    PlacedModel              placed(backend, model, Layout::file);
    const std::vector<float> want = placed.run(9);
    auto                     mapped = backend.device->map_host(model.downs[1].bytes);
    std::vector<ExpertAddress> table = placed.table.read();
    table[1].down = mapped->device_address();
    placed.table.write(table);
    CHECK_SAME_BITS("mapped", placed.run(9), want);
    CHECK_SAME_BITS("mapped singly", placed.run(1), want);
}

TEST("the gate is clamped from above only, the other factor on both sides") {
    Backend    backend = gpu(false);
    /* One value: gate g, up u, down 1. */
    const auto through = [&](float g, float u) {
        const auto                       gate = place(backend, std::vector<float>{g});
        const auto                       up = place(backend, std::vector<float>{u});
        const auto                       one = place(backend, std::vector<float>{1.0f});
        const auto                       id = place(backend, std::vector<int32_t>{0});
        const auto                       out = room<float>(backend, 1);
        const std::vector<ExpertAddress> address = {{reinterpret_cast<const std::byte *>(gate.get()),
                                                     reinterpret_cast<const std::byte *>(up.get()),
                                                     reinterpret_cast<const std::byte *>(one.get())}};
        const auto                       table = place(backend, address);
        backend.ops->experts({1, 1, 1, 1, 1, one.get(), id.get(), one.get(), table.get(), Type::f32, Type::f32, 2.0f,
                              nullptr, nullptr, nullptr, 0.0f, out.get()});
        return static_cast<double>(out.read()[0]);
    };
    const auto silu = [](double v) { return v / (1.0 + std::exp(-v)); };
    const std::vector<double> got = {through(5.0f, 1.0f), through(-5.0f, 1.0f), through(1.0f, 9.0f), through(1.0f, -9.0f)};
    CHECK_NEAR("gated", got, (std::vector<double>{silu(2.0), silu(-5.0), 2.0 * silu(1.0), -2.0 * silu(1.0)}), 1e-6);
    CHECK(std::isnan(through(NAN, 1.0f)));
    CHECK(std::isnan(through(1.0f, NAN)));
    CHECK(std::fabs(through(-200.0f, 1.0f)) < 1e-30);
}

} // namespace ds4::backend::gpu::test
