#include "backend/gpu/parity_test.h"

#include <cmath>
#include <string>

namespace ds4::backend::gpu::test {

namespace {

constexpr float kEpsilon = 1e-6f;
/* The processor adds a row up in a few long sums, the card in many short ones: most of this is the processor's error. */
constexpr double kMixError = 1e-11;

struct Shape {
    int64_t tokens, hc, width;

    int64_t     columns() const { return hc * width; }
    int64_t     mixes() const { return 2 * hc + hc * hc; }
    std::string name() const {
        return std::to_string(tokens) + " x " + std::to_string(hc) + " x " + std::to_string(width);
    }
};

/* The dimensions of a real model; few streams and many; widths that are no multiple of what a thread, a slice or a block
 * takes; more tokens than blocks, so that a block takes several. */
constexpr Shape kShapes[] = {{3, 4, 4096}, {9, 4, 128},  {8, 4, 1000}, {3, 4, 30},   {2, 4, 2048},   {2, 4, 7168},
                             {2, 4, 8196}, {3, 2, 40},   {4, 3, 64},   {2, 1, 1536}, {2, 16, 72},    {1700, 4, 64}};

struct Inputs {
    OwnedMatrix        fn;
    std::vector<float> streams, base, scale, norm;
};

Inputs inputs_of(const Shape &shape, quant::Type type, int64_t rows) {
    Random random(21);
    Inputs in;
    in.fn = random_matrix(type, rows, shape.columns(), random);
    in.streams = random.normals(shape.tokens * shape.columns());
    in.base = random.normals(rows);
    in.scale = {0.1f, 0.2f, 0.15f};
    in.norm = random.normals(shape.width);
    return in;
}

struct Outputs {
    std::vector<float> x, post, comb;
};

Outputs pre_on_cpu(const Shape &shape, const Inputs &in) {
    Outputs      out{std::vector<float>(static_cast<size_t>(shape.tokens * shape.width)),
                std::vector<float>(static_cast<size_t>(shape.tokens * shape.hc)),
                std::vector<float>(static_cast<size_t>(shape.tokens * shape.hc * shape.hc))};
    cpu::CpuOps ops = cpu_ops(false);
    ops.hc_pre({shape.tokens, shape.hc, shape.width, in.streams.data(), &in.fn.matrix, in.base.data(), in.scale.data(), 20,
                kEpsilon, in.norm.data(), kEpsilon, out.x.data(), out.post.data(), out.comb.data()});
    return out;
}

Outputs pre_on_gpu(const Shape &shape, const Inputs &in, Layout layout, int64_t piece) {
    Backend    backend = gpu(false);
    const auto fn = place_matrix(backend, in.fn, layout);
    const auto streams = place(backend, in.streams);
    const auto base = place(backend, in.base);
    const auto scale = place(backend, in.scale);
    const auto norm = place(backend, in.norm);
    const auto x = room<float>(backend, static_cast<size_t>(shape.tokens * shape.width));
    const auto post = room<float>(backend, static_cast<size_t>(shape.tokens * shape.hc));
    const auto comb = room<float>(backend, static_cast<size_t>(shape.tokens * shape.hc * shape.hc));
    int64_t    first = 0;
    for (const int64_t count : pieces(shape.tokens, piece)) {
        backend.ops->hc_pre({count, shape.hc, shape.width, streams.get() + first * shape.columns(), &fn.matrix, base.get(),
                             scale.get(), 20, kEpsilon, norm.get(), kEpsilon, x.get() + first * shape.width,
                             post.get() + first * shape.hc, comb.get() + first * shape.hc * shape.hc});
        first += count;
    }
    return {x.read(), post.read(), comb.read()};
}

std::vector<float> head_on_gpu(const Shape &shape, const Inputs &in, int64_t piece) {
    Backend    backend = gpu(false);
    const auto fn = place_matrix(backend, in.fn, Layout::file);
    const auto streams = place(backend, in.streams);
    const auto base = place(backend, in.base);
    const auto scale = place(backend, in.scale);
    const auto norm = place(backend, in.norm);
    const auto x = room<float>(backend, static_cast<size_t>(shape.tokens * shape.width));
    int64_t    first = 0;
    for (const int64_t count : pieces(shape.tokens, piece)) {
        backend.ops->hc_head({count, shape.hc, shape.width, streams.get() + first * shape.columns(), &fn.matrix, base.get(),
                              scale.get(), kEpsilon, norm.get(), kEpsilon, x.get() + first * shape.width});
        first += count;
    }
    return x.read();
}

struct Expansion {
    std::vector<float> y, post, comb;
};

std::vector<float> post_on_gpu(const Shape &shape, const std::vector<float> &streams, const Expansion &with, int64_t piece) {
    Backend    backend = gpu(false);
    const auto placed = place(backend, streams);
    const auto y = place(backend, with.y);
    const auto post = place(backend, with.post);
    const auto comb = place(backend, with.comb);
    int64_t    first = 0;
    for (const int64_t count : pieces(shape.tokens, piece)) {
        backend.ops->hc_post({count, shape.hc, shape.width, placed.get() + first * shape.columns(),
                              y.get() + first * shape.width, post.get() + first * shape.hc,
                              comb.get() + first * shape.hc * shape.hc, 0, nullptr});
        first += count;
    }
    return placed.read();
}

void check_pre(const std::string &name, const Shape &shape, const Inputs &in, Layout layout) {
    const Outputs want = pre_on_cpu(shape, in);
    const Outputs got = pre_on_gpu(shape, in, layout, shape.tokens);
    CHECK_NMSE(name + ": x", got.x, want.x, kMixError);
    CHECK_NMSE(name + ": post", got.post, want.post, kMixError);
    CHECK_NMSE(name + ": comb", got.comb, want.comb, kMixError);
    for (const int64_t piece : {int64_t{7}, int64_t{1}, int64_t{901}}) {
        if (piece >= shape.tokens || (piece == 1 && shape.tokens > 10)) {
            continue;
        }
        const Outputs again = pre_on_gpu(shape, in, layout, piece);
        CHECK_SAME_BITS(name + ": x in pieces of " + std::to_string(piece), again.x, got.x);
        CHECK_SAME_BITS(name + ": post in pieces of " + std::to_string(piece), again.post, got.post);
        CHECK_SAME_BITS(name + ": comb in pieces of " + std::to_string(piece), again.comb, got.comb);
    }
}

} // namespace

TEST("streams are mixed, collapsed and normalised as on the processor") {
    for (const Shape &shape : kShapes) {
        check_pre("hc_pre " + shape.name(), shape, inputs_of(shape, quant::Type::f16, shape.mixes()), Layout::file);
    }
}

TEST("the mixing weights may have any type") {
    const Shape shape{2, 4, 320};
    for (const quant::Type type : kWeightTypes) {
        for (const Layout layout : {Layout::file, Layout::arranged}) {
            check_pre(std::string("hc_pre ") + quant::type_name(type), shape, inputs_of(shape, type, shape.mixes()), layout);
        }
    }
}

TEST("any number of steps balances the mixing matrix as on the processor") {
    for (const int64_t hc : {3, 4}) {
        for (const int64_t iterations : {1, 2, 7}) {
            const Shape shape{1, hc, 64};
            const Inputs in = inputs_of(shape, quant::Type::f32, shape.mixes());
            Outputs      want{std::vector<float>(64), std::vector<float>(static_cast<size_t>(hc)),
                         std::vector<float>(static_cast<size_t>(hc * hc))};
            cpu::CpuOps ops = cpu_ops(false);
            ops.hc_pre({1, hc, 64, in.streams.data(), &in.fn.matrix, in.base.data(), in.scale.data(), iterations, kEpsilon,
                        in.norm.data(), kEpsilon, want.x.data(), want.post.data(), want.comb.data()});
            Backend    backend = gpu(false);
            const auto fn = place_matrix(backend, in.fn, Layout::file);
            const auto streams = place(backend, in.streams);
            const auto base = place(backend, in.base);
            const auto scale = place(backend, in.scale);
            const auto norm = place(backend, in.norm);
            const auto x = room<float>(backend, want.x.size());
            const auto post = room<float>(backend, want.post.size());
            const auto comb = room<float>(backend, want.comb.size());

            backend.ops->hc_pre({1, hc, 64, streams.get(), &fn.matrix, base.get(), scale.get(), iterations, kEpsilon,
                                 norm.get(), kEpsilon, x.get(), post.get(), comb.get()});

            CHECK_NMSE("comb after " + std::to_string(iterations), comb.read(), want.comb, kMixError);
        }
    }
}

TEST("a token that is not finite spoils no other token's sublayer input") {
    const Shape shape{3, 4, 512};
    Inputs      in = inputs_of(shape, quant::Type::f16, shape.mixes());
    const auto  clean = pre_on_gpu(shape, in, Layout::file, 3);
    in.streams[static_cast<size_t>(shape.columns() + 77)] = NAN;

    const auto got = pre_on_gpu(shape, in, Layout::file, 3);

    const auto token = [&](const std::vector<float> &x, int64_t t) {
        return std::vector<float>(x.begin() + t * shape.width, x.begin() + (t + 1) * shape.width);
    };
    CHECK_SAME_BITS("the token in front", token(got.x, 0), token(clean.x, 0));
    CHECK_SAME_BITS("the token behind", token(got.x, 2), token(clean.x, 2));
    for (const float value : token(got.x, 1)) {
        CHECK(std::isnan(value));
    }
}

TEST("the head collapses the streams as on the processor") {
    for (const Shape &shape : kShapes) {
        const Inputs       in = inputs_of(shape, quant::Type::f16, shape.hc);
        std::vector<float> want(static_cast<size_t>(shape.tokens * shape.width));
        cpu::CpuOps        ops = cpu_ops(false);
        ops.hc_head({shape.tokens, shape.hc, shape.width, in.streams.data(), &in.fn.matrix, in.base.data(), in.scale.data(),
                     kEpsilon, in.norm.data(), kEpsilon, want.data()});

        const std::vector<float> got = head_on_gpu(shape, in, shape.tokens);

        CHECK_NMSE("hc_head " + shape.name(), got, want, kMixError);
        CHECK_SAME_BITS("hc_head " + shape.name() + " in pieces", head_on_gpu(shape, in, shape.tokens > 10 ? 901 : 1), got);
    }
}

TEST("streams are expanded behind a sublayer as on the processor") {
    for (const Shape &shape : kShapes) {
        Random                   random(22);
        const std::vector<float> streams = random.normals(shape.tokens * shape.columns());
        const Expansion          with{random.normals(shape.tokens * shape.width), random.normals(shape.tokens * shape.hc),
                             random.normals(shape.tokens * shape.hc * shape.hc)};
        std::vector<float>       want = streams;
        cpu::CpuOps              ops = cpu_ops(false);
        ops.hc_post({shape.tokens, shape.hc, shape.width, want.data(), with.y.data(), with.post.data(), with.comb.data(), 0,
                     nullptr});

        const std::vector<float> got = post_on_gpu(shape, streams, with, shape.tokens);

        CHECK_NMSE("hc_post " + shape.name(), got, want, 1e-13);
        CHECK_SAME_BITS("hc_post " + shape.name() + " in pieces", post_on_gpu(shape, streams, with, shape.tokens > 10 ? 901 : 1),
                        got);
    }
}

TEST("the first layer whose last token is not finite is remembered on the card") {
    for (const Shape &shape : {Shape{3, 4, 512}, Shape{9, 4, 128}, Shape{3, 2, 24}}) {
        Backend            backend = gpu(false);
        const auto         post = place(backend, std::vector<float>(static_cast<size_t>(shape.tokens * shape.hc), 1.0f));
        const auto         comb = room<float>(backend, static_cast<size_t>(shape.tokens * shape.hc * shape.hc));
        const auto         bad_layer = place(backend, std::vector<int32_t>{-1});
        std::vector<float> values(static_cast<size_t>(shape.tokens * shape.width), 0.5f);
        const auto         after = [&](int32_t layer) {
            const auto streams = place(backend, std::vector<float>(static_cast<size_t>(shape.tokens * shape.columns()), 1.0f));
            const auto y = place(backend, values);
            backend.ops->hc_post({shape.tokens, shape.hc, shape.width, streams.get(), y.get(), post.get(), comb.get(), layer,
                                  bad_layer.get()});
            return bad_layer.read()[0];
        };

        CHECK(after(0) == -1);
        values[0] = NAN; /* a token that is not the last */
        CHECK(after(1) == -1);
        values.back() = -INFINITY;
        CHECK(after(2) == 2);
        CHECK(after(3) == 2);
    }
}

} // namespace ds4::backend::gpu::test
