#pragma once

#include "backend/parity/matrices.h"

namespace ds4::backend::parity {

struct CompressShape {
    int64_t     tokens, ratio, halves, dim, dims;
    uint64_t    position;  /* where a window begins */
    int64_t     ring_rows; /* 0: as few as promised */
    RowRounding rounding;
    Types       types; /* of the position bias */
    Slow        slow = Slow::nowhere;

    std::string name(quant::Type type) const {
        return "compress " + by({tokens, halves, dim}) + " ratio " + std::to_string(ratio) + " at " + std::to_string(position) +
               " " + quant::type_name(type);
    }
    int64_t width() const { return halves * dim; }
    int64_t first_window() const { return static_cast<int64_t>(position) / ratio; }
    int64_t end_window() const { return (static_cast<int64_t>(position) + tokens) / ratio; }
};

constexpr CompressShape kCompressShapes[] = {
    /* The fixtures' and the models' dimensions; batches that end in the middle of windows. */
    {23, 4, 2, 64, 32, 0, 0, RowRounding::none, kF16},
    {23, 4, 2, 128, 64, 0, 0, RowRounding::hadamard_fp4, kF16},
    {23, 4, 2, 192, 64, 0, 0, RowRounding::fp8, kF16},
    {300, 128, 1, 100, 20, 0, 0, RowRounding::none, kF16},
    {22, 4, 2, 128, 64, 0, 0, RowRounding::hadamard_fp4, kF32},
    {9, 4, 2, 512, 64, 0, 0, RowRounding::fp8, kF16},
    {25, 6, 1, 50, 20, 0, 0, RowRounding::none, kBf16},
    {20, 6, 2, 33, 2, 12, 0, RowRounding::none, kF32},
    {129, 128, 1, 512, 64, 0, 0, RowRounding::fp8, kF16},
    {260, 128, 1, 32, 16, 0, 0, RowRounding::none, kF32},
    /* Windows that wrap around the end of the rings anywhere. */
    {16, 4, 2, 32, 8, 1u << 12, 23, RowRounding::none, kF32},
    {16, 4, 2, 32, 8, 1u << 12, 24, RowRounding::none, kF32},
    {16, 4, 2, 32, 8, 1u << 12, 29, RowRounding::none, kF32},
    {16, 4, 2, 32, 8, 1u << 12, 30, RowRounding::none, kF32},
    {9, 4, 2, 128, 64, 4, 0, RowRounding::none, kWeightTypes},
    /* Rows wider than a block, and a long window of few channels. */
    {5, 4, 1, 1030, 64, 0, 0, RowRounding::none, kF32},
    {5, 4, 2, 4224, 64, 0, 0, RowRounding::fp8, kF32},
    {256, 256, 1, 4, 4, 0, 0, RowRounding::hadamard_fp4, kF32},
};

struct CompressCase {
    CompressShape      shape;
    OwnedMatrix        ape;
    std::vector<float> keys, gates, norm, frequency;
    std::vector<float> keys_before, gates_before; /* of the window in front; these gates have their bias */

    CompressCase(const CompressShape &of, quant::Type type) : shape(of), frequency(frequencies(of.dims)) {
        Random random(91);
        ape = random_matrix(type, shape.ratio, shape.width(), random);
        keys = random.normals(shape.tokens * shape.width());
        gates = random.normals(shape.tokens * shape.width(), 2.0f);
        norm = random.normals(shape.dim);
        keys_before = random.normals(shape.ratio * shape.width());
        gates_before = random.normals(shape.ratio * shape.width(), 2.0f);
    }

    /* Rows [end_window, dim] of the whole sequence, zero where none was written. */
    std::vector<float> run(Backend &backend, int64_t piece) const {
        const int64_t width = shape.width();
        const int64_t promised = shape.halves * shape.ratio + std::min(piece, shape.tokens) - 1;
        const int64_t ring_rows = shape.ring_rows != 0 ? shape.ring_rows : promised;
        const auto    bias = place_matrix(backend, ape, Layout::file);
        const auto    placed_keys = place(backend, keys), placed_gates = place(backend, gates), weight = place(backend, norm);
        const auto    key_ring = place(backend, ring_before(keys_before, ring_rows));
        const auto    gate_ring = place(backend, ring_before(gates_before, ring_rows));
        const auto    rows = room<float>(backend, static_cast<size_t>(shape.end_window() * shape.dim));
        int64_t       first = 0;
        for (const int64_t tokens : pieces(shape.tokens, piece)) {
            backend.ops->compress({tokens, shape.ratio, shape.halves, shape.dim, shape.position + static_cast<uint64_t>(first),
                                   placed_keys.get() + first * width, placed_gates.get() + first * width, &bias.matrix,
                                   ring_rows, key_ring.get(), gate_ring.get(), weight.get(), 1e-6f,
                                   {frequency.data(), shape.dims}, shape.rounding, rows.get()});
            first += tokens;
        }
        return rows.read();
    }

private:
    /* The ring as it stands at `position`: the window in front is in it, the rest is not a number. */
    std::vector<float> ring_before(const std::vector<float> &last, int64_t ring_rows) const {
        std::vector<float> ring(static_cast<size_t>(ring_rows * shape.width()), NAN);
        for (int64_t i = 0; i < shape.ratio && shape.position != 0 && shape.halves > 1; ++i) {
            const int64_t row = (static_cast<int64_t>(shape.position) - shape.ratio + i) % ring_rows;
            std::copy_n(last.begin() + i * shape.width(), shape.width(), ring.begin() + row * shape.width());
        }
        return ring;
    }
};

} // namespace ds4::backend::parity
