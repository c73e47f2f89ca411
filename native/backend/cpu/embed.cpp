#include "backend/cpu/cpu_ops.h"

#include <cstring>

#include "quant/dequantise.h"

namespace ds4::backend::cpu {

void CpuOps::embed(const EmbedArgs &args) {
    const Matrix &embedding = *args.embedding;
    const int64_t width = embedding.columns;
    const auto    tokens = static_cast<int64_t>(args.tokens.size());
    pool_.run_ranges(tokens, tokens * width * (args.hc + 1), [&](int64_t first, int64_t last, uint32_t) {
        for (int64_t t = first; t < last; ++t) {
            float *streams = args.streams + t * args.hc * width;
            quant::dequantise_row(embedding.type,
                                  embedding.data + args.tokens[static_cast<size_t>(t)] * embedding.row_bytes, width,
                                  streams);
            for (int64_t s = 1; s < args.hc; ++s) {
                std::memcpy(streams + s * width, streams, static_cast<size_t>(width) * sizeof(float));
            }
        }
    });
}

} // namespace ds4::backend::cpu
