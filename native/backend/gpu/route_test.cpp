#include "backend/parity/route.h"

#include <cmath>
#include <limits>

#include "backend/gpu/parity_test.h"

namespace ds4::backend::gpu::test {

namespace {

using Case = parity::RouteCase;
using Choice = parity::RouteChoice;

Choice on_cpu(const Case &c) {
    Backend backend = reference(false);
    return c.run(backend, c.tokens);
}

Choice on_gpu(const Case &c, int64_t piece) {
    Backend backend = gpu(false);
    return c.run(backend, piece);
}

} // namespace

TEST("the same experts are chosen as on the processor") {
    for (const parity::RouteShape &shape : parity::kRouteShapes) {
        for (const bool normalise : {true, false}) {
            if (!tried_on_card(shape.slow)) {
                continue;
            }
            const Case   c = parity::route_case(shape, normalise);
            const Choice want = on_cpu(c);
            const Choice got = on_gpu(c, c.tokens);
            CHECK_NEAR(shape.name() + " ids", got.ids, want.ids, 0.0);
            CHECK_NMSE(shape.name(), got.weights, want.weights, 1e-13);
            for (const int64_t piece : {1, 7}) {
                CHECK_SAME_BITS(shape.name() + " in pieces of " + std::to_string(piece), on_gpu(c, piece).all(), got.all());
            }
        }
    }
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
