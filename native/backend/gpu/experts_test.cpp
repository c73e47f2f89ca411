#include "backend/parity/experts.h"

#include <cmath>

#include "backend/gpu/parity_test.h"

namespace ds4::backend::gpu::test {

namespace {

using quant::Type;

using Shape = parity::ExpertsShape;
using Model = parity::ExpertsCase;
using PlacedModel = parity::PlacedExperts;
using parity::kMissing;
using parity::kMissingNames;
using parity::Missing;
using parity::Routing;

std::vector<float> on_cpu(const Model &model, bool exact) {
    Backend backend = reference(exact);
    return model.run(backend, model.shape.tokens);
}

/* Against the processor's arithmetic, then against itself: cut into pieces, and with the shared expert rearranged. */
void check_model(const Model &model, bool exact) {
    const std::string  what = model.shape.name() + (exact ? " exact" : "");
    Backend            backend = gpu(exact);
    PlacedModel        in_file(backend, model, Layout::file);
    PlacedModel        arranged(backend, model, Layout::arranged);
    const int64_t      tokens = model.shape.tokens;
    const int64_t      piece = model.shape.piece;
    std::vector<float> whole = in_file.run(tokens);
    /* In the fast arithmetic an inner value next to a rounding boundary may become the neighbouring byte. */
    CHECK_NMSE(what, whole, on_cpu(model, exact), exact ? 1e-11 : 2e-7);
    CHECK_SAME_BITS(what + " arranged", arranged.run(tokens), whole);
    CHECK_SAME_BITS(what + " in pieces of " + std::to_string(piece), in_file.run(piece), whole);
    CHECK_SAME_BITS(what + " arranged in pieces of " + std::to_string(piece), arranged.run(piece), whole);
}

/* Begun before all experts are there, against one call. */
void check_split(const Model &model, bool exact, Layout layout) {
    const std::string        what =
        "begin_" + model.shape.name() + (exact ? " exact" : "") + (layout == Layout::arranged ? " arranged" : "");
    Backend                  backend = gpu(exact);
    PlacedModel              placed(backend, model, layout);
    const std::vector<float> whole = placed.run(model.shape.tokens);
    for (const Missing missing : kMissing) {
        CHECK_SAME_BITS(what + kMissingNames[static_cast<int>(missing)], placed.run_split(missing), whole);
    }
}

} // namespace

TEST("experts of every mix of types and sort of choice add up as on the processor, however the batch is cut") {
    for (const Shape &shape : parity::experts_shapes()) {
        for (const bool exact : {false, true}) {
            if (tried_on_card(shape.slow) && tried_with(shape.arithmetics, exact)) {
                check_model(Model(shape), exact);
            }
        }
    }
}

TEST("one matrix of the shared expert may be rearranged and the other not") {
    Random      random(95);
    const Shape shape{Type::q8_0, Type::q8_0, Type::q8_0, Type::q8_0, 9, 256, 64, 2, 1, true};
    for (const bool other_type : {false, true}) {
        Model model(shape);
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
    for (const Shape &shape : parity::begin_experts_shapes()) {
        if (!tried_on_card(shape.slow)) {
            continue;
        }
        const Model model(shape);
        for (const bool exact : {false, true}) {
            if (tried_with(shape.arithmetics, exact)) {
                check_split(model, exact, Layout::file);
            }
        }
        if (shape.has_shared && shape.shared_gate_up == Type::q8_0 && shape.width % 256 == 0) {
            check_split(model, false, Layout::arranged);
        }
    }
}

TEST("only what was begun can be finished, once, and before the memory is used for something else") {
    const Model       model({Type::q8_0, Type::q8_0, Type::q8_0, Type::q8_0, 20, 64, 32, 4, 2, true});
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
    const Model              model({Type::q8_0, Type::q8_0, Type::q8_0, Type::q8_0, 9, 64, 64, 2, 1, true});
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
