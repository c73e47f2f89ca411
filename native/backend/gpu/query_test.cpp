/* Queries on a card against the CPU's. */
#include "backend/gpu/parity_test.h"
#include "backend/parity/norms.h"

namespace ds4::backend::gpu::test {

TEST("queries equal the CPU's, in the same bits however a batch is cut") {
    for (const parity::QueryShape &shape : parity::kQueryShapes) {
        if (tried_on_card(shape.slow)) {
            const parity::QueryCase in(shape);
            check_parity(shape.name(), shape.tokens, false, 1e-12,
                         [&](Backend &backend, int64_t piece) { return in.run(backend, piece); });
        }
    }
}

} // namespace ds4::backend::gpu::test
