#include "backend/cpu/ops_test.h"

#include <algorithm>

namespace ds4::backend::cpu::test {

namespace {

struct Found {
    bool                 usable;
    std::vector<float>   logits;
    std::vector<int32_t> ids;
};

Found best(const std::vector<float> &logits, int64_t count) {
    Backend backend = open(1, false, DS4_ISA_AUTO);
    Found   found{false, std::vector<float>(static_cast<size_t>(count)), std::vector<int32_t>(static_cast<size_t>(count))};
    int32_t finite = -1;
    backend.ops->best({static_cast<int64_t>(logits.size()), count, logits.data(), found.logits.data(), found.ids.data(), &finite});
    CHECK(finite == 0 || finite == 1);
    found.usable = finite == 1;
    return found;
}

} // namespace

TEST("the best logits come in order, the lower id first among equals") {
    for (const int64_t vocab : {1, 7, 512, 20000}) {
        for (const int64_t count : {int64_t{1}, int64_t{40}, int64_t{1024}, vocab}) {
            Random             random(81);
            std::vector<float> logits = random.normals(vocab);
            for (float &logit : logits) {
                logit = std::round(logit * 50.0f) / 50.0f; /* many equal ones */
            }
            std::vector<int32_t> order(logits.size());
            std::iota(order.begin(), order.end(), 0);
            std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
                return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
            });
            order.resize(static_cast<size_t>(std::min(count, vocab)));

            const Found found = best(logits, std::min(count, vocab));

            CHECK(found.usable);
            CHECK(found.ids == order);
            CHECK(std::equal(order.begin(), order.end(), found.logits.begin(),
                             [&](int32_t id, float logit) { return logits[static_cast<size_t>(id)] == logit; }));
        }
    }
}

TEST("minus zero equals zero and minus infinity comes last") {
    const Found found = best({-INFINITY, -0.0f, 0.0f, -1.0f, -0.0f}, 5);

    CHECK(found.usable);
    CHECK((found.ids == std::vector<int32_t>{1, 2, 4, 3, 0}));
}

TEST("not-a-number, infinity or nothing finite is refused") {
    CHECK(!best({1.0f, NAN, 2.0f}, 1).usable);
    CHECK(!best({1.0f, INFINITY, 2.0f}, 1).usable);
    CHECK(!best({-INFINITY, -INFINITY}, 1).usable);
    CHECK(best({-INFINITY, 3.0f}, 2).usable);
}

} // namespace ds4::backend::cpu::test
