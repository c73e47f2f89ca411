#pragma once

#include "backend/parity/matrices.h"

namespace ds4::backend::parity {

struct AttentionShape {
    int64_t  tokens, heads, dim, dims, window, ratio, top_k;
    int64_t  spare_ring; /* rows of the ring beyond the window and the batch */
    int64_t  spare_rows; /* compressed rows that there is room for beyond those that are visible */
    uint64_t position;
    Slow     slow = Slow::nowhere;

    std::string name() const {
        return "attention " + by({tokens, heads, dim}) + " window " + std::to_string(window) + " ratio " +
               std::to_string(ratio) + " top " + std::to_string(top_k) + " at " + std::to_string(position);
    }
};

/* Empty and full windows, all rows and selected rows, ends of tiles, heads of any size; cards have kernels of their own for
 * heads of 512, one for a few tokens and one for many. */
constexpr AttentionShape kAttentionShapes[] = {
    {12, 8, 64, 32, 32, 0, 0, 1, 0, 0},
    {10, 4, 512, 64, 128, 4, 0, 1, 0, 500},
    {9, 5, 72, 6, 8, 4, 6, 1, 0, 200},
    {8, 64, 512, 64, 128, 4, 64, 1, 0, 1000, Slow::emulated},
    {5, 3, 20, 4, 16, 128, 0, 1, 0, 300},
    {12, 2, 32, 16, 32, 0, 0, 0, 0, 0},
    {10, 3, 64, 32, 16, 4, 0, 0, 0, 500},
    {9, 5, 72, 6, 8, 4, 6, 0, 7, 200},
    {5, 3, 20, 4, 16, 128, 0, 0, 1000, 300},
    {4, 9, 21, 8, 5, 6, 0, 0, 0, 3},
    {4, 2, 128, 64, 8, 128, 0, 0, 0, 100000},
    {3, 2, 32, 16, 8, 4, 0, 0, 3000, 9000},
    {5, 5, 512, 64, 3, 0, 0, 0, 0, 0},
    {2, 18, 512, 64, 128, 128, 0, 0, 0, 1000},
    {16, 3, 512, 16, 40, 128, 30, 0, 5, 100000},
    /* Real heads, several segments of rows, positions where the window is just full. */
    {40, 64, 512, 64, 128, 4, 512, 0, 100, 4000, Slow::both},
    {33, 64, 512, 64, 128, 128, 0, 0, 0, 100000, Slow::both},
    {18, 70, 512, 64, 128, 4, 0, 0, 0, 4081, Slow::both},
    {70, 64, 512, 64, 128, 0, 0, 0, 0, 100, Slow::both},
    {17, 128, 512, 64, 128, 4, 1024, 0, 0, 9000, Slow::both},
    {20, 64, 512, 64, 128, 4, 0, 0, 2000, 10000, Slow::both},
};

struct AttentionCase {
    AttentionShape       shape;
    int64_t              ring_rows, row_capacity;
    std::vector<float>   q, ring, rows, sinks, frequency;
    std::vector<int32_t> selected, count;

    explicit AttentionCase(const AttentionShape &of)
        : shape(of), ring_rows(of.window + of.tokens - 1 + of.spare_ring),
          selected(static_cast<size_t>(of.tokens * std::max<int64_t>(of.top_k, 1))), count(static_cast<size_t>(of.tokens)) {
        Random random(31);
        row_capacity = shape.ratio == 0 ? 0 : visible(shape.tokens - 1) + shape.spare_rows;
        q = random.normals(shape.tokens * shape.heads * shape.dim, 2.0f);
        ring = random.normals(ring_rows * shape.dim);
        rows = random.normals(std::max<int64_t>(row_capacity, 1) * shape.dim);
        sinks = random.normals(shape.heads, 2.0f);
        frequency = frequencies(shape.dims);
        for (int64_t t = 0; shape.top_k != 0 && t < shape.tokens; ++t) {
            const int64_t n = std::min(shape.top_k, visible(t));
            count[static_cast<size_t>(t)] = static_cast<int32_t>(n);
            for (int64_t i = 0; i < n; ++i) { /* spread over the rows, ascending */
                selected[static_cast<size_t>(t * shape.top_k + i)] = static_cast<int32_t>(i * visible(t) / n);
            }
        }
    }

    /* Compressed rows that a token can see. */
    int64_t visible(int64_t token) const {
        return shape.ratio == 0 ? 0 : (static_cast<int64_t>(shape.position) + token + 1) / shape.ratio;
    }

    /* [tokens, heads, dim] */
    std::vector<float> run(Backend &backend, int64_t piece) const {
        const int64_t width = shape.heads * shape.dim;
        const bool    all = shape.top_k == 0;
        const auto    placed_q = place(backend, q), placed_ring = place(backend, ring), placed_rows = place(backend, rows);
        const auto    placed_sinks = place(backend, sinks);
        const auto    placed_selected = place(backend, selected), placed_count = place(backend, count);
        const auto    out = room<float>(backend, q.size());
        int64_t       first = 0;
        for (const int64_t tokens : pieces(shape.tokens, piece)) {
            backend.ops->attention({tokens, shape.heads, shape.dim, shape.position + static_cast<uint64_t>(first),
                                    {frequency.data(), shape.dims}, placed_q.get() + first * width, shape.window, ring_rows,
                                    placed_ring.get(), shape.ratio, shape.ratio == 0 ? nullptr : placed_rows.get(),
                                    row_capacity, all ? nullptr : placed_selected.get() + first * shape.top_k,
                                    all ? nullptr : placed_count.get() + first, shape.top_k, placed_sinks.get(),
                                    out.get() + first * width});
            first += tokens;
        }
        return out.read();
    }
};

} // namespace ds4::backend::parity
