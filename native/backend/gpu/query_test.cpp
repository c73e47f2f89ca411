/* Queries on a card against the CPU's. */
#include "backend/gpu/parity_test.h"

namespace ds4::backend::gpu::test {

TEST("queries equal the CPU's, in the same bits however a batch is cut") {
    struct Shape {
        int64_t  heads, dim, dims;
        uint64_t position;
    };
    constexpr int64_t kTokens = 10;
    for (const Shape &shape : {Shape{64, 512, 64, 0}, Shape{3, 512, 64, 1000000}, Shape{8, 64, 32, 700}, Shape{5, 128, 128, 3},
                               Shape{3, 384, 6, 9}, Shape{3, 21, 6, 99999}, Shape{2, 32, 16, 12}, Shape{1, 640, 64, 5}}) {
        const int64_t            width = shape.heads * shape.dim;
        Random                   random(41);
        const std::vector<float> q = random.normals(kTokens * width, 3.0f);
        const std::vector<float> frequency = frequencies(shape.dims);
        const std::string        name = "query " + std::to_string(shape.heads) + " x " + std::to_string(shape.dim);

        std::vector<float> want = q;
        cpu_ops(false).query({kTokens, shape.heads, shape.dim, shape.position, {frequency.data(), shape.dims}, 1e-6f,
                              want.data()});
        const auto run = [&](int64_t piece) {
            Backend    backend = gpu(false);
            const auto out = place(backend, q);
            int64_t    first = 0;
            for (const int64_t tokens : pieces(kTokens, piece)) {
                backend.ops->query({tokens, shape.heads, shape.dim, shape.position + static_cast<uint64_t>(first),
                                    {frequency.data(), shape.dims}, 1e-6f, out.get() + first * width});
                first += tokens;
            }
            return out.read();
        };
        const std::vector<float> together = run(kTokens);
        CHECK_NMSE(name, together, want, 1e-12);
        CHECK_SAME_BITS(name + " singly", run(1), together);
        CHECK_SAME_BITS(name + " by 7", run(7), together);
    }
}

} // namespace ds4::backend::gpu::test
