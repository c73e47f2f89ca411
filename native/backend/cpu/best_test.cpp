#include "backend/cpu/ops_test.h"

#include <algorithm>

#include "backend/parity/best.h"

namespace ds4::backend::cpu::test {

namespace {

parity::BestFound best(const std::vector<float> &logits, int64_t count) {
    Backend                 backend = open(1, false, DS4_ISA_AUTO);
    const parity::BestFound found = parity::best(backend, logits, count);
    CHECK(found.finite == 0 || found.finite == 1);
    return found;
}

} // namespace

TEST("the best logits come in order, the lower id first among equals") {
    for (const parity::BestShape &shape : parity::kBestShapes) {
        if (!tried_on_cpu(shape.slow)) {
            continue;
        }
        const parity::BestCase in(shape);
        const auto             logit = [&](int32_t id) { return in.logits[static_cast<size_t>(id)]; };
        std::vector<int32_t>   order(in.logits.size());
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logit(a) > logit(b); });
        order.resize(static_cast<size_t>(shape.count));
        std::vector<float> logits;
        for (const int32_t id : order) {
            logits.push_back(logit(id));
        }
        for (const uint32_t set : instruction_sets()) {
            Backend                 backend = open(1, false, set);
            const parity::BestFound found = in.run(backend);

            CHECK(found.finite == 1);
            CHECK_SAME_BITS(shape.name() + " " + instruction_set_name(set), found.logits, logits);
            CHECK_NEAR(shape.name() + " " + instruction_set_name(set) + " ids", found.ids, order, 0.0);
        }
    }
}

TEST("minus zero equals zero and minus infinity comes last") {
    const parity::BestFound found = best({-INFINITY, -0.0f, 0.0f, -1.0f, -0.0f}, 5);

    CHECK(found.finite == 1);
    CHECK((found.ids == std::vector<int32_t>{1, 2, 4, 3, 0}));
}

TEST("not-a-number, infinity or nothing finite is refused") {
    CHECK(best({1.0f, NAN, 2.0f}, 1).finite == 0);
    CHECK(best({1.0f, INFINITY, 2.0f}, 1).finite == 0);
    CHECK(best({-INFINITY, -INFINITY}, 1).finite == 0);
    CHECK(best({-INFINITY, 3.0f}, 2).finite == 1);
}

} // namespace ds4::backend::cpu::test
