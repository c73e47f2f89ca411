#include "backend/parity/best.h"

#include <cmath>
#include <limits>
#include <string>

#include "backend/gpu/parity_test.h"

namespace ds4::backend::gpu::test {

namespace {

parity::BestFound on_gpu(const std::vector<float> &logits, int64_t count) {
    Backend backend = gpu(false);
    return parity::best(backend, logits, count);
}

void check_best(const std::string &name, const std::vector<float> &logits, int64_t count) {
    Backend                 cpu = reference(false);
    const parity::BestFound want = parity::best(cpu, logits, count);
    const parity::BestFound got = on_gpu(logits, count);
    CHECK(got.finite == want.finite);
    if (want.finite == 1) {
        const std::string what = name + ", " + std::to_string(count) + " of " + std::to_string(logits.size());
        CHECK_NEAR(what + " ids", got.ids, want.ids, 0.0);
        CHECK_SAME_BITS(what, got.logits, want.logits);
    }
}

} // namespace

TEST("the best logits are the processor's, in its order") {
    for (const parity::BestShape &shape : parity::kBestShapes) {
        if (tried_on_card(shape.slow)) {
            check_best(shape.name(), parity::BestCase(shape).logits, shape.count);
        }
    }
}

TEST("of equal logits the lower id comes first") {
    check_best("equal", std::vector<float>(5000, -2.5f), 1024);
    check_best("zeros", {0.0f, -0.0f, -1.0f, -0.0f, 0.0f}, 5);
}

TEST("logits that are alike, far apart or in order are no harder") {
    Random             random(84);
    std::vector<float> narrow, rising, wide, run;
    for (int i = 0; i < 20000; ++i) {
        narrow.push_back(100.0f + 1e-3f * random.normal());
        rising.push_back(static_cast<float>(i) * 0.01f - 50.0f);
        wide.push_back(std::ldexp(random.normal(), static_cast<int>(random.below(200)) - 100));
        run.push_back(i >= 7000 && i < 9000 ? 20.0f + random.normal() : random.normal());
    }
    for (const int64_t count : {1, 100, 1024}) {
        check_best("narrow", narrow, count);
        check_best("rising", rising, count);
        check_best("wide", wide, count);
        check_best("run", run, count);
    }
}

TEST("minus infinity comes last") {
    std::vector<float> logits(6000, -INFINITY);
    logits[5999] = -3.0f;
    logits[17] = -std::numeric_limits<float>::max();
    check_best("minus infinity", logits, 40);
    check_best("minus infinity", {-INFINITY, 3.0f}, 2);
}

TEST("logits that are not usable are reported wherever they are") {
    Random                   random(85);
    const std::vector<float> usable = random.normals(20000);
    for (const float value : {NAN, -NAN, INFINITY}) {
        for (const size_t place : {0u, 4095u, 4096u, 19999u}) {
            std::vector<float> logits = usable;
            logits[place] = value;
            CHECK(on_gpu(logits, 40).finite == 0);
        }
    }
    CHECK(on_gpu(std::vector<float>(5000, -INFINITY), 1).finite == 0);
    CHECK(on_gpu({NAN}, 1).finite == 0);
    CHECK(on_gpu({1.0f}, 1).finite == 1);
    CHECK(on_gpu(usable, 40).finite == 1);
}

} // namespace ds4::backend::gpu::test
