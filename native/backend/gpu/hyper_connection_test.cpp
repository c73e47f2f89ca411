#include "backend/parity/hyper_connection.h"

#include <cmath>

#include "backend/gpu/parity_test.h"

namespace ds4::backend::gpu::test {

namespace {

using Shape = parity::StreamsShape;

/* The processor adds a row up in a few long sums, the card in many short ones: most of this is the processor's error. */
double mix_error(const Shape &shape) {
    return parity::sum_tolerance(shape.columns());
}

void check_pre(const parity::HcPreCase &in, Layout layout) {
    using Outputs = parity::HcPreCase::Outputs;
    const Shape      &shape = in.shape;
    const std::string name = in.name() + (layout == Layout::arranged ? " arranged" : "");
    Backend           cpu = reference(false);
    Backend           card = gpu(false);
    const Outputs     want = in.run(cpu, shape.tokens);
    const Outputs     got = in.run(card, shape.tokens, layout);
    CHECK_NMSE(name + ": x", got.x, want.x, mix_error(shape));
    CHECK_NMSE(name + ": post", got.post, want.post, mix_error(shape));
    CHECK_NMSE(name + ": comb", got.comb, want.comb, mix_error(shape));
    for (const int64_t piece : {int64_t{7}, int64_t{1}, int64_t{901}}) {
        if (piece < shape.tokens && (piece != 1 || shape.tokens <= 10)) {
            CHECK_SAME_BITS(name + " in pieces of " + std::to_string(piece), in.run(card, piece, layout).all(), got.all());
        }
    }
}

} // namespace

TEST("streams are mixed, collapsed and normalised as on the processor") {
    for (const Shape &shape : parity::kStreamsShapes) {
        for (const quant::Type type : shape.types) {
            if (tried_on_card(shape.slow)) {
                const parity::HcPreCase in(shape, type);
                check_pre(in, Layout::file);
                if (type == quant::Type::q8_0) {
                    check_pre(in, Layout::arranged);
                }
            }
        }
    }
}

TEST("the head collapses the streams as on the processor") {
    for (const Shape &shape : parity::kStreamsShapes) {
        for (const quant::Type type : shape.types) {
            if (tried_on_card(shape.slow)) {
                const parity::HcHeadCase in(shape, type);
                check_parity(in.name(), shape.tokens, false, mix_error(shape),
                             [&](Backend &backend, int64_t piece) { return in.run(backend, piece); }, {short_piece(shape)});
            }
        }
    }
}

TEST("streams are expanded behind a sublayer as on the processor") {
    for (const Shape &shape : parity::kStreamsShapes) {
        if (tried_on_card(shape.slow)) {
            const parity::HcPostCase in(shape);
            check_parity(shape.name("hc_post"), shape.tokens, false, 1e-13,
                         [&](Backend &backend, int64_t piece) { return in.run(backend, piece); }, {short_piece(shape)});
        }
    }
}

TEST("a token that is not finite spoils no other token's sublayer input") {
    const Shape       shape{3, 4, 512};
    parity::HcPreCase in(shape, quant::Type::f16);
    Backend           backend = gpu(false);
    const auto        clean = in.run(backend, 3);
    in.streams[static_cast<size_t>(shape.columns() + 77)] = NAN;

    const auto got = in.run(backend, 3);

    const auto token = [&](const std::vector<float> &x, int64_t t) {
        return std::vector<float>(x.begin() + t * shape.width, x.begin() + (t + 1) * shape.width);
    };
    CHECK_SAME_BITS("the token in front", token(got.x, 0), token(clean.x, 0));
    CHECK_SAME_BITS("the token behind", token(got.x, 2), token(clean.x, 2));
    for (const float value : token(got.x, 1)) {
        CHECK(std::isnan(value));
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
