#include "backend/gpu/parity_test.h"

#include <cmath>
#include <string>

namespace ds4::backend::gpu::test {

TEST("rows are normalised as on the processor, also in place") {
    for (const int64_t width : {1, 24, 64, 128, 1030, 1024, 1536, 2048, 4096, 7168, 8200}) {
        constexpr int64_t        rows = 8;
        const std::string        name = "rms_norm " + std::to_string(width);
        Random                   random(11);
        const std::vector<float> x = random.normals(rows * width);
        const std::vector<float> weight = random.normals(width);
        std::vector<float>       want(x.size());
        cpu::CpuOps              ops = cpu_ops(false);
        ops.rms_norm({rows, width, x.data(), weight.data(), 1e-6f, want.data()});
        Backend    backend = gpu(false);
        const auto placed_weight = place(backend, weight);
        const auto in_place = [&](int64_t piece) {
            const auto out = place(backend, x);
            int64_t    first = 0;
            for (const int64_t count : pieces(rows, piece)) {
                float *at = out.get() + first * width;
                backend.ops->rms_norm({count, width, at, placed_weight.get(), 1e-6f, at});
                first += count;
            }
            return out.read();
        };

        const auto in = place(backend, x);
        const auto out = room<float>(backend, x.size());
        backend.ops->rms_norm({rows, width, in.get(), placed_weight.get(), 1e-6f, out.get()});

        CHECK_NMSE(name, out.read(), want, 1e-13);
        for (const int64_t piece : {int64_t{1}, int64_t{7}, rows}) {
            CHECK_SAME_BITS(name + " in place, in pieces of " + std::to_string(piece), in_place(piece), out.read());
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
