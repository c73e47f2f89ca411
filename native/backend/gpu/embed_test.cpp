#include "backend/parity/embed.h"

#include "backend/gpu/parity_test.h"

namespace ds4::backend::gpu::test {

TEST("embedding rows of every type have the processor's bits in every stream, in either layout") {
    Backend cpu = reference(false);
    for (const parity::EmbedShape &shape : parity::kEmbedShapes) {
        for (const quant::Type type : shape.types) {
            if (!tried_on_card(shape.slow)) {
                continue;
            }
            const auto               tokens = static_cast<int64_t>(shape.tokens.size());
            const parity::EmbedCase  in(shape, type);
            const std::vector<float> want = in.run(cpu, tokens);
            Backend                  backend = gpu(false);
            for (const Layout layout : {Layout::file, Layout::arranged}) {
                CHECK_SAME_BITS(shape.name(type), in.run(backend, tokens, layout), want);
                CHECK_SAME_BITS(shape.name(type) + " singly", in.run(backend, 1, layout), want);
            }
        }
    }
}

} // namespace ds4::backend::gpu::test
