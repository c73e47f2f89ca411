#include "backend/gpu/parity_test.h"

#include <cmath>
#include <limits>
#include <string>

namespace ds4::backend::gpu::test {

namespace {

struct Found {
    int32_t              finite = -1;
    std::vector<float>   logits;
    std::vector<int32_t> ids;
};

Found on_cpu(const std::vector<float> &logits, int64_t count) {
    Found       found{-1, std::vector<float>(static_cast<size_t>(count)), std::vector<int32_t>(static_cast<size_t>(count))};
    cpu::CpuOps ops = cpu_ops(false);
    ops.best({static_cast<int64_t>(logits.size()), count, logits.data(), found.logits.data(), found.ids.data(), &found.finite});
    return found;
}

Found on_gpu(const std::vector<float> &logits, int64_t count) {
    Backend    backend = gpu(false);
    const auto placed = place(backend, logits);
    const auto best = room<float>(backend, static_cast<size_t>(count));
    const auto ids = room<int32_t>(backend, static_cast<size_t>(count));
    const auto finite = place(backend, std::vector<int32_t>{-1});
    backend.ops->best({static_cast<int64_t>(logits.size()), count, placed.get(), best.get(), ids.get(), finite.get()});
    return {finite.read()[0], best.read(), ids.read()};
}

void check_best(const std::string &name, const std::vector<float> &logits, int64_t count) {
    const Found want = on_cpu(logits, count);
    const Found got = on_gpu(logits, count);
    CHECK(got.finite == want.finite);
    if (want.finite == 1) {
        CHECK(got.ids == want.ids);
        CHECK_SAME_BITS(name + ", " + std::to_string(count) + " of " + std::to_string(logits.size()), got.logits, want.logits);
    }
}

} // namespace

TEST("the best logits are the processor's, in its order") {
    for (const int64_t vocab : {1, 7, 512, 4097, 20000, 129280}) {
        for (const int64_t count : {1, 40, 1024}) {
            Random                   random(81);
            const std::vector<float> logits = random.normals(vocab, 5.0f);
            check_best("normal", logits, std::min(count, vocab));
        }
    }
}

TEST("all logits can be asked for") {
    for (const int64_t vocab : {300, 4096, 5000}) {
        Random random(82);
        check_best("all", random.normals(vocab), vocab);
    }
}

TEST("of equal logits the lower id comes first") {
    Random             random(83);
    std::vector<float> logits = random.normals(20000);
    for (float &logit : logits) {
        logit = std::round(logit * 10.0f) / 10.0f;
    }
    check_best("rounded", logits, 1024);
    check_best("rounded", logits, 3);
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
