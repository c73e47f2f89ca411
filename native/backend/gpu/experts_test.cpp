#include "backend/gpu/parity_test.h"

#include <cmath>

namespace ds4::backend::gpu::test {

namespace {

using quant::Type;

struct Shape {
    Type    gate_up, down, shared_gate_up, shared_down;
    int64_t tokens, width, inner, experts, used;
    bool    has_shared;
};

enum class Routing { spread, skewed, repeated };

/* A feed-forward layer in host memory and one batch for it. */
struct Model {
    Shape                    shape;
    std::vector<OwnedMatrix> gates, ups, downs;
    OwnedMatrix              shared_gate, shared_up, shared_down;
    std::vector<float>       x, weights;
    std::vector<int32_t>     ids;

    Model(const Shape &of, Routing routing, Random &random) : shape(of) {
        for (int64_t e = 0; e < shape.experts; ++e) {
            gates.push_back(random_matrix(shape.gate_up, shape.inner, shape.width, random));
            ups.push_back(random_matrix(shape.gate_up, shape.inner, shape.width, random));
            downs.push_back(random_matrix(shape.down, shape.width, shape.inner, random));
        }
        shared_gate = random_matrix(shape.shared_gate_up, shape.inner, shape.width, random);
        shared_up = random_matrix(shape.shared_gate_up, shape.inner, shape.width, random);
        shared_down = random_matrix(shape.shared_down, shape.width, shape.inner, random);
        x = random.normals(shape.tokens * shape.width, 0.3f);
        for (int64_t t = 0; t < shape.tokens; ++t) {
            const int64_t first = random.below(shape.experts);
            for (int64_t i = 0; i < shape.used; ++i) {
                int64_t expert = (first + i * 2 + i * 2 / shape.experts) % shape.experts;
                if (routing == Routing::skewed) {
                    expert = i == 0 ? shape.experts - 1 : i - 1; /* the others get nothing */
                } else if (routing == Routing::repeated) {
                    expert = (first + i / 2) % shape.experts;
                }
                ids.push_back(static_cast<int32_t>(expert));
                weights.push_back(std::fabs(random.normal()) + 0.1f);
            }
        }
    }

    ExpertsArgs args() const {
        ExpertsArgs args{};
        args.width = shape.width;
        args.expert_width = shape.inner;
        args.experts = shape.experts;
        args.used = shape.used;
        args.gate_up_type = shape.gate_up;
        args.down_type = shape.down;
        args.clamp = 0.5f;
        args.shared_clamp = 0.7f;
        return args;
    }

    std::vector<float> on_cpu(bool exact) const {
        std::vector<ExpertAddress> table;
        for (size_t e = 0; e < gates.size(); ++e) {
            table.push_back({gates[e].matrix.data, ups[e].matrix.data, downs[e].matrix.data});
        }
        std::vector<float> out(x.size());
        ExpertsArgs        call = args();
        call.tokens = shape.tokens;
        call.x = x.data();
        call.ids = ids.data();
        call.weights = weights.data();
        call.table = table.data();
        call.shared_gate = shape.has_shared ? &shared_gate.matrix : nullptr;
        call.shared_up = shape.has_shared ? &shared_up.matrix : nullptr;
        call.shared_down = shape.has_shared ? &shared_down.matrix : nullptr;
        call.out = out.data();
        cpu::CpuOps ops = cpu_ops(exact);
        ops.experts(call);
        return out;
    }
};

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

    std::vector<float> run(int64_t piece) {
        const Shape &shape = model.shape;
        const auto   out = room<float>(backend, model.x.size());
        ExpertsArgs  call = model.args();
        call.table = table.get();
        call.shared_gate = shape.has_shared ? &shared_gate.matrix : nullptr;
        call.shared_up = shape.has_shared ? &shared_up.matrix : nullptr;
        call.shared_down = shape.has_shared ? &shared_down.matrix : nullptr;
        int64_t first = 0;
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
    CHECK_NMSE(what, whole, model.on_cpu(exact), exact ? 1e-11 : 2e-7);
    CHECK_SAME_BITS(what + " arranged", arranged.run(tokens), whole);
    for (const int64_t cut : cuts) {
        CHECK_SAME_BITS(what + " in pieces of " + std::to_string(cut), in_file.run(cut), whole);
        CHECK_SAME_BITS(what + " arranged in pieces of " + std::to_string(cut), arranged.run(cut), whole);
    }
}

std::string name_of(const Shape &shape) {
    return std::string("experts ") + quant::type_name(shape.gate_up) + "/" + quant::type_name(shape.down);
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
        check_model(name_of(shape), model, false, {1});
        check_model(name_of(shape), model, true, {1});
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
        check_model(name_of(shape) + " " + std::to_string(shape.tokens), Model(shape, Routing::spread, random), false, {8});
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
        check_model(name_of(shape) + " long", Model(shape, Routing::spread, random), false, {1, 8});
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
        CHECK_NMSE("mixed", whole, model.on_cpu(false), 2e-7);
        CHECK_SAME_BITS("mixed", mixed.run(shape.tokens), whole);
        CHECK_SAME_BITS("mixed singly", mixed.run(1), whole);
    }
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
