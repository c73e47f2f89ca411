#pragma once

#include "backend/parity/matrices.h"

namespace ds4::backend::parity {

constexpr int32_t kEmbedThree[] = {8, 0, 3}, kEmbedRepeated[] = {8, 0, 3, 3, 10}, kEmbedTwo[] = {4, 1};
constexpr quant::Type kEmbedTypes[] = {quant::Type::f16, quant::Type::bf16, quant::Type::q8_0};

struct EmbedShape {
    std::span<const int32_t> tokens;
    int64_t                  vocab, width, hc;
    Types                    types;
    Slow                     slow = Slow::nowhere;

    std::string name(quant::Type type) const {
        return std::string("embed ") + quant::type_name(type) + " " + by({static_cast<int64_t>(tokens.size()), hc, width});
    }
};

/* Rows of every type, one of them twice; an odd width with a single stream. */
constexpr EmbedShape kEmbedShapes[] = {{kEmbedThree, 9, 256, 4, kEmbedTypes},
                                       {kEmbedRepeated, 11, 256, 4, kWeightTypes},
                                       {kEmbedRepeated, 11, 1280, 4, kWeightTypes},
                                       {kEmbedTwo, 5, 301, 1, kFloatTypes}};

struct EmbedCase {
    EmbedShape  shape;
    OwnedMatrix embedding;

    EmbedCase(const EmbedShape &of, quant::Type type) : shape(of) {
        Random random(15);
        embedding = random_matrix(type, shape.vocab, shape.width, random);
    }

    /* [tokens, hc, width] */
    std::vector<float> run(Backend &backend, int64_t piece, Layout layout = Layout::file) const {
        const auto placed = place_matrix(backend, embedding, layout);
        const auto streams = room<float>(backend, shape.tokens.size() * static_cast<size_t>(shape.hc * shape.width));
        size_t     first = 0;
        for (const int64_t tokens : pieces(static_cast<int64_t>(shape.tokens.size()), piece)) {
            const auto count = static_cast<size_t>(tokens);
            backend.ops->embed({shape.tokens.subspan(first, count), &placed.matrix, shape.hc,
                                streams.get() + static_cast<int64_t>(first) * shape.hc * shape.width});
            first += count;
        }
        return streams.read();
    }
};

} // namespace ds4::backend::parity
