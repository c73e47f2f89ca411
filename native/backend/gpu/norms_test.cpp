#include "backend/parity/norms.h"

#include <cmath>

#include "backend/gpu/parity_test.h"

namespace ds4::backend::gpu::test {

TEST("rows are normalised as on the processor, also in place") {
    for (const parity::RmsNormShape &shape : parity::kRmsNormShapes) {
        if (!tried_on_card(shape.slow)) {
            continue;
        }
        const parity::RmsNormCase in(shape);
        const auto                run_apart = [&](Backend &backend, int64_t piece) {
            return in.run(backend, piece, parity::Output::apart);
        };
        const std::vector<float> apart = check_parity(shape.name(), shape.rows, false, 1e-13, run_apart);
        Backend                  backend = gpu(false);
        for (const int64_t piece : {int64_t{1}, int64_t{7}, shape.rows}) {
            CHECK_SAME_BITS(shape.name() + " in place, in pieces of " + std::to_string(piece), in.run(backend, piece), apart);
        }
    }
}

TEST("a row of zeros stays one and a row that is not finite shows it") {
    constexpr int64_t  width = 1024;
    Backend            backend = gpu(false);
    std::vector<float> x(3 * width, 0.0f);
    x[width] = NAN;
    x[2 * width + 1000] = INFINITY;
    const auto placed = place(backend, x);
    const auto weight = place(backend, std::vector<float>(width, 1.0f));

    backend.ops->rms_norm({3, width, placed.get(), weight.get(), 1e-6f, placed.get()});

    const std::vector<float> got = placed.read();
    CHECK(got[0] == 0.0f && got[width - 1] == 0.0f);
    CHECK(std::isnan(got[width]) && std::isnan(got[2 * width - 1]));
    CHECK(std::isnan(got[2 * width + 1000]));
}

} // namespace ds4::backend::gpu::test
