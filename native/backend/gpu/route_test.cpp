#include "backend/gpu/parity_test.h"

#include <cmath>
#include <limits>

namespace ds4::backend::gpu::test {

namespace {

struct Choice {
    std::vector<int32_t> ids;
    std::vector<float>   weights;
};

struct Case {
    int64_t              tokens, experts, used;
    std::vector<float>   logits;
    std::vector<float>   bias; /* empty: none */
    std::vector<int32_t> hash; /* empty: by score */
    std::vector<int32_t> token_ids;
    bool                 normalise;
};

Choice on_cpu(const Case &c) {
    Choice      choice{std::vector<int32_t>(static_cast<size_t>(c.tokens * c.used)),
                       std::vector<float>(static_cast<size_t>(c.tokens * c.used))};
    cpu::CpuOps ops = cpu_ops(false);
    ops.route({c.tokens, c.experts, c.used, c.logits.data(), c.bias.empty() ? nullptr : c.bias.data(),
               c.hash.empty() ? nullptr : c.hash.data(), c.token_ids.data(), c.normalise, 1.5f, choice.ids.data(),
               choice.weights.data()});
    return choice;
}

Choice on_gpu(const Case &c, int64_t piece) {
    Backend    backend = gpu(false);
    const auto logits = place(backend, c.logits);
    const auto bias = place(backend, c.bias);
    const auto hash = place(backend, c.hash);
    const auto ids = room<int32_t>(backend, static_cast<size_t>(c.tokens * c.used));
    const auto weights = room<float>(backend, static_cast<size_t>(c.tokens * c.used));
    int64_t    first = 0;
    for (const int64_t count : pieces(c.tokens, piece)) {
        backend.ops->route({count, c.experts, c.used, logits.get() + first * c.experts,
                            c.bias.empty() ? nullptr : bias.get(), c.hash.empty() ? nullptr : hash.get(),
                            c.token_ids.data() + first, c.normalise, 1.5f, ids.get() + first * c.used,
                            weights.get() + first * c.used});
        first += count;
    }
    return {ids.read(), weights.read()};
}

} // namespace

TEST("the same experts are chosen as on the processor") {
    struct Shape {
        int64_t experts, used;
    };
    for (const Shape shape : {Shape{256, 6}, Shape{4, 2}, Shape{40, 6}, Shape{33, 33}, Shape{288, 40}, Shape{384, 8}}) {
        Random random(81);
        Case   c{9, shape.experts, shape.used, random.normals(9 * shape.experts, 8.0f), random.normals(shape.experts), {},
               std::vector<int32_t>(9), true};
        for (const bool normalise : {true, false}) {
            c.normalise = normalise;
            const std::string name = "route " + std::to_string(shape.used) + " of " + std::to_string(shape.experts);
            const Choice      want = on_cpu(c);
            const Choice      got = on_gpu(c, c.tokens);
            CHECK(got.ids == want.ids);
            CHECK_NMSE(name, got.weights, want.weights, 1e-13);
            for (const int64_t piece : {1, 7}) {
                const Choice cut = on_gpu(c, piece);
                CHECK(cut.ids == got.ids);
                CHECK_SAME_BITS(name + " in pieces of " + std::to_string(piece), cut.weights, got.weights);
            }
        }
    }
}

TEST("without a bias the scores themselves decide") {
    Random       random(82);
    const Case   c{3, 64, 5, random.normals(3 * 64, 30.0f), {}, {}, std::vector<int32_t>(3), true};
    const Choice want = on_cpu(c);
    const Choice got = on_gpu(c, 3);
    CHECK(got.ids == want.ids);
    CHECK_NMSE("route without bias", got.weights, want.weights, 1e-13);
}

TEST("hash layers take their experts from the table in its order, repeated or not") {
    Random       random(83);
    const Case   c{3, 8, 3, random.normals(3 * 8, 3.0f), {}, {0, 1, 3, 7, 2, 0, 5, 5, 1, 4, 6, 2}, {3, 2, 0}, true};
    const Choice want = on_cpu(c);
    for (const int64_t piece : {3, 1}) {
        const Choice got = on_gpu(c, piece);
        CHECK((got.ids == std::vector<int32_t>{4, 6, 2, 5, 5, 1, 0, 1, 3}));
        CHECK_NMSE("hash", got.weights, want.weights, 1e-13);
    }
}

TEST("equal scores go to the lower id, also across groups of experts") {
    const Case   c{1, 100, 40, std::vector<float>(100, 1.0f), std::vector<float>(100, 0.0f), {}, {0}, true};
    const Choice got = on_gpu(c, 1);
    for (int32_t i = 0; i < 40; ++i) {
        CHECK(got.ids[static_cast<size_t>(i)] == i);
    }
}

TEST("logits that are not numbers never give an invalid or repeated id") {
    Case c{1, 70, 3, std::vector<float>(70, NAN), std::vector<float>(70, 0.0f), {}, {0}, true};
    CHECK((on_gpu(c, 1).ids == std::vector<int32_t>{0, 1, 2}));
    CHECK(std::isnan(on_gpu(c, 1).weights[0]));

    c.logits[65] = 1.0f;
    c.logits[6] = -std::numeric_limits<float>::infinity();
    c.logits[69] = std::numeric_limits<float>::infinity();
    CHECK((on_gpu(c, 1).ids == std::vector<int32_t>{69, 65, 6}));
    CHECK((on_cpu(c).ids == std::vector<int32_t>{69, 65, 6}));
}

TEST("scores that are all zero do not divide by zero") {
    const Case   c{1, 4, 2, std::vector<float>(4, -200.0f), std::vector<float>(4, 0.0f), {}, {0}, true};
    const Choice got = on_gpu(c, 1);
    CHECK(got.weights[0] == 0.0f && got.weights[1] == 0.0f);
}

} // namespace ds4::backend::gpu::test
