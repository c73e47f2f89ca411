#include "backend/cpu/ops_test.h"

#include "quant/round_trip.h"

namespace ds4::backend::cpu::test {

namespace {

struct Shape {
    int64_t     tokens, ratio, halves, dim, dims;
    RowRounding rounding;
};

} // namespace

/* Batches begin and end in the middle of windows; the rings are no longer than promised. */
TEST("windows are pooled as they close, whatever the batches") {
    for (const Shape &shape : {Shape{23, 4, 2, 64, 32, RowRounding::none}, Shape{23, 4, 2, 128, 64, RowRounding::hadamard_fp4},
                               Shape{23, 4, 2, 192, 64, RowRounding::fp8}, Shape{300, 128, 1, 100, 20, RowRounding::none}}) {
        const int64_t            width = shape.halves * shape.dim;
        const int64_t            ring_rows = shape.halves * shape.ratio + shape.tokens - 1;
        const int64_t            windows = shape.tokens / shape.ratio;
        Random                   random(41);
        const OwnedMatrix        ape = random_matrix(quant::Type::f16, shape.ratio, width, random);
        const std::vector<float> keys = random.normals(shape.tokens * width);
        const std::vector<float> gates = random.normals(shape.tokens * width, 2.0f);
        const std::vector<float> norm = random.normals(shape.dim);
        const std::vector<float> frequency = frequencies(shape.dims);
        const auto               run = [&](Ops &ops, const std::vector<int64_t> &pieces) {
            std::vector<float> key_ring(static_cast<size_t>(ring_rows * width), NAN);
            std::vector<float> gate_ring(static_cast<size_t>(ring_rows * width), NAN);
            std::vector<float> rows(static_cast<size_t>(windows * shape.dim));
            int64_t            first = 0;
            for (const int64_t piece : pieces) {
                ops.compress({piece, shape.ratio, shape.halves, shape.dim, static_cast<uint64_t>(first),
                              keys.data() + first * width, gates.data() + first * width, &ape.matrix, ring_rows,
                              key_ring.data(), gate_ring.data(), norm.data(), 1e-6f, {frequency.data(), shape.dims},
                              shape.rounding, rows.data()});
                first += piece;
            }
            return rows;
        };
        const double tolerance = shape.rounding == RowRounding::none ? 1e-11 : shape.rounding == RowRounding::fp8 ? 1e-5 : 1e-3;
        check_op("compress ratio " + std::to_string(shape.ratio) + " dim " + std::to_string(shape.dim), shape.tokens,
                 Settings::one_arithmetic, tolerance, run, [&](bool) {
                     std::vector<double> want;
                     for (int64_t w = 0; w < windows; ++w) {
                         std::vector<double> row;
                         for (int64_t e = 0; e < shape.dim; ++e) {
                             double total = 0.0;
                             double mixed = 0.0;
                             for (int64_t half = 0; half < shape.halves; ++half) {
                                 const int64_t start = (w - (half + 1 < shape.halves ? 1 : 0)) * shape.ratio;
                                 for (int64_t j = 0; start >= 0 && j < shape.ratio; ++j) {
                                     const auto at = static_cast<size_t>((start + j) * width + half * shape.dim + e);
                                     const auto bias = ape.row(j)[static_cast<size_t>(half * shape.dim + e)];
                                     const double weight = std::exp(static_cast<double>(gates[at]) + static_cast<double>(bias));
                                     total += weight;
                                     mixed += weight * static_cast<double>(keys[at]);
                                 }
                             }
                             row.push_back(mixed / total);
                         }
                         const double scale = rms_scale(row, 1e-6);
                         for (size_t e = 0; e < row.size(); ++e) {
                             row[e] *= scale * static_cast<double>(norm[e]);
                         }
                         turn(row, frequency, static_cast<uint64_t>(w * shape.ratio), 1.0);
                         std::vector<float> rounded(row.begin(), row.end());
                         if (shape.rounding == RowRounding::fp8) {
                             quant::fp8_round_trip(rounded.data(), shape.dim - shape.dims);
                         } else if (shape.rounding == RowRounding::hadamard_fp4) {
                             quant::hadamard(rounded.data(), shape.dim);
                             quant::fp4_round_trip(rounded.data(), shape.dim);
                         }
                         want.insert(want.end(), rounded.begin(), rounded.end());
                     }
                     return want;
                 });
    }
}

TEST("a batch in the middle of the sequence writes only the rows of its own windows") {
    constexpr int64_t        dim = 32, width = 64;
    Random                   random(42);
    const OwnedMatrix        ape = random_matrix(quant::Type::f32, 4, width, random);
    const std::vector<float> keys = random.normals(6 * width);
    std::vector<float>       key_ring = random.normals(13 * width);
    std::vector<float>       gate_ring = random.normals(13 * width);
    const std::vector<float> norm(dim, 1.0f);
    const std::vector<float> frequency = frequencies(8);
    std::vector<float>       rows(10 * dim, 7.0f);
    Backend                  backend = open(1, false, DS4_ISA_AUTO);

    /* Positions 10 to 15 close windows 2 (8 to 11) and 3 (12 to 15). */
    backend.ops->compress({6, 4, 2, dim, 10, keys.data(), keys.data(), &ape.matrix, 13, key_ring.data(), gate_ring.data(),
                           norm.data(), 1e-6f, {frequency.data(), 8}, RowRounding::none, rows.data()});

    for (int64_t r = 0; r < 10; ++r) {
        const bool written = rows[static_cast<size_t>(r * dim)] != 7.0f;
        CHECK(written == (r == 2 || r == 3));
    }
}

} // namespace ds4::backend::cpu::test
