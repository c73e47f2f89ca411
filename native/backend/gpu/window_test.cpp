/* Raw rows on a card against the CPU's. */
#include "backend/gpu/parity_test.h"

namespace ds4::backend::gpu::test {

TEST("window rows equal the CPU's, in the same bits however a batch is cut") {
    struct Shape {
        int64_t  dim, dims, ring_rows;
        uint64_t position;
    };
    constexpr int64_t kTokens = 20;
    for (const Shape &shape : {Shape{512, 64, 147, 0}, Shape{512, 64, 147, 1000000}, Shape{512, 16, 30, 29}, Shape{128, 64, 24, 7},
                               Shape{192, 64, 24, 1000}, Shape{32, 16, 40, 100}, Shape{21, 6, 20, 3}}) {
        for (const bool round_trip : {false, true}) {
            Random                   random(42);
            const std::vector<float> kv = random.normals(kTokens * shape.dim);
            const std::vector<float> norm = random.normals(shape.dim);
            const std::vector<float> frequency = frequencies(shape.dims);
            const std::string        name = "window " + std::to_string(shape.dim) + (round_trip ? " rounded" : "");

            std::vector<float> want(static_cast<size_t>(shape.ring_rows * shape.dim), -1.0f);
            const auto         untouched = want;
            cpu_ops(false).window({kTokens, shape.dim, shape.position, {frequency.data(), shape.dims}, kv.data(), norm.data(),
                                   1e-6f, round_trip, shape.ring_rows, want.data()});
            const auto run = [&](int64_t piece) {
                Backend    backend = gpu(false);
                const auto from = place(backend, kv), weight = place(backend, norm), ring = place(backend, untouched);
                int64_t    first = 0;
                for (const int64_t tokens : pieces(kTokens, piece)) {
                    backend.ops->window({tokens, shape.dim, shape.position + static_cast<uint64_t>(first),
                                         {frequency.data(), shape.dims}, from.get() + first * shape.dim, weight.get(), 1e-6f,
                                         round_trip, shape.ring_rows, ring.get()});
                    first += tokens;
                }
                return ring.read();
            };
            const std::vector<float> together = run(kTokens);
            /* Rounding may fall the other way for a value next to a boundary: one step of E4M3 on a few of them. */
            CHECK_NMSE(name, together, want, round_trip ? 1e-5 : 1e-12);
            CHECK_SAME_BITS(name + " singly", run(1), together);
            CHECK_SAME_BITS(name + " by 7", run(7), together);
        }
    }
}

} // namespace ds4::backend::gpu::test
