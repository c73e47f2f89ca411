#include "backend/parity/compress.h"

#include "backend/gpu/parity_test.h"

namespace ds4::backend::gpu::test {

TEST("windows are pooled as on the processor, whatever the batches") {
    for (const parity::CompressShape &shape : parity::kCompressShapes) {
        if (!tried_on_card(shape.slow)) {
            continue;
        }
        /* A value next to a boundary of the small format may fall to the other side. */
        const double tolerance = shape.rounding == RowRounding::none ? 1e-11 : shape.rounding == RowRounding::fp8 ? 1e-5 : 1e-3;
        for (const quant::Type type : shape.types) {
            const parity::CompressCase in(shape, type);
            check_parity(shape.name(type), shape.tokens, false, tolerance,
                         [&](Backend &backend, int64_t piece) { return in.run(backend, piece); });
        }
    }
}

TEST("a batch in the middle of the sequence writes only the rows of its own windows") {
    constexpr int64_t        dim = 32, width = 64;
    Random                   random(42);
    Backend                  backend = gpu(false);
    const OwnedMatrix        owned = random_matrix(quant::Type::f32, 4, width, random);
    const auto               ape = place_matrix(backend, owned, Layout::file);
    const auto               keys = place(backend, random.normals(6 * width));
    const auto               key_ring = place(backend, random.normals(13 * width));
    const auto               gate_ring = place(backend, random.normals(13 * width));
    const auto               norm = place(backend, std::vector<float>(dim, 1.0f));
    const std::vector<float> frequency = frequencies(8);
    const auto               rows = place(backend, std::vector<float>(10 * dim, 7.0f));

    /* Positions 10 to 15 close windows 2 (8 to 11) and 3 (12 to 15). */
    backend.ops->compress({6, 4, 2, dim, 10, keys.get(), keys.get(), &ape.matrix, 13, key_ring.get(), gate_ring.get(),
                           norm.get(), 1e-6f, {frequency.data(), 8}, RowRounding::none, rows.get()});

    const std::vector<float> got = rows.read();
    for (int64_t r = 0; r < 10; ++r) {
        const bool written = got[static_cast<size_t>(r * dim)] != 7.0f;
        CHECK(written == (r == 2 || r == 3));
    }
}

} // namespace ds4::backend::gpu::test
