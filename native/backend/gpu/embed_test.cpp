#include "backend/gpu/parity_test.h"

#include <string>

namespace ds4::backend::gpu::test {

namespace {

std::vector<float> on_cpu(const OwnedMatrix &embedding, const std::vector<int32_t> &tokens, int64_t hc) {
    std::vector<float> streams(tokens.size() * static_cast<size_t>(hc * embedding.matrix.columns));
    cpu::CpuOps        ops = cpu_ops(false);
    ops.embed({tokens, &embedding.matrix, hc, streams.data()});
    return streams;
}

std::vector<float> on_gpu(const OwnedMatrix &embedding, Layout layout, const std::vector<int32_t> &tokens, int64_t hc) {
    Backend    backend = gpu(false);
    const auto placed = place_matrix(backend, embedding, layout);
    const auto streams = room<float>(backend, tokens.size() * static_cast<size_t>(hc * embedding.matrix.columns));
    backend.ops->embed({tokens, &placed.matrix, hc, streams.get()});
    return streams.read();
}

} // namespace

TEST("embedding rows of every type have the processor's bits in every stream") {
    const std::vector<int32_t> tokens = {8, 0, 3, 3, 10};
    for (const quant::Type type : kWeightTypes) {
        for (const int64_t columns : {256, 1280}) {
            Random                   random(15);
            const OwnedMatrix        embedding = random_matrix(type, 11, columns, random);
            const std::vector<float> want = on_cpu(embedding, tokens, 4);
            for (const Layout layout : {Layout::file, Layout::arranged}) {
                CHECK_SAME_BITS(std::string("embed ") + quant::type_name(type) + " " + std::to_string(columns),
                                on_gpu(embedding, layout, tokens, 4), want);
            }
        }
    }
}

TEST("embedding rows may have an odd width and a single stream") {
    for (const quant::Type type : {quant::Type::f32, quant::Type::f16, quant::Type::bf16}) {
        Random            random(16);
        const OwnedMatrix embedding = random_matrix(type, 5, 301, random);
        CHECK_SAME_BITS(std::string("embed ") + quant::type_name(type), on_gpu(embedding, Layout::file, {4, 1}, 1),
                        on_cpu(embedding, {4, 1}, 1));
    }
}

} // namespace ds4::backend::gpu::test
