/* Raw rows on a card against the CPU's. */
#include "backend/gpu/parity_test.h"
#include "backend/parity/norms.h"

namespace ds4::backend::gpu::test {

TEST("window rows equal the CPU's, in the same bits however a batch is cut") {
    for (const parity::WindowShape &shape : parity::kWindowShapes) {
        for (const bool round_trip : {false, true}) {
            if (tried_on_card(shape.slow)) {
                const parity::WindowCase in(shape, round_trip);
                /* Rounding may fall the other way for a value next to a boundary: one step of E4M3 on a few of them. */
                check_parity(in.name(), shape.tokens, false, round_trip ? 1e-5 : 1e-12,
                             [&](Backend &backend, int64_t piece) { return in.run(backend, piece); });
            }
        }
    }
}

} // namespace ds4::backend::gpu::test
