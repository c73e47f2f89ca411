#include "backend/cpu/ops_test.h"

#include "backend/parity/compress.h"
#include "quant/round_trip.h"

namespace ds4::backend::cpu::test {

namespace {

/* The softmax-weighted mean of a window's keys, channel by channel. */
std::vector<double> pooled(const parity::CompressCase &in, const std::vector<std::vector<float>> &bias, int64_t window) {
    const parity::CompressShape &shape = in.shape;
    const auto                   first = static_cast<int64_t>(shape.position);
    std::vector<double>          row;
    for (int64_t e = 0; e < shape.dim; ++e) {
        double total = 0.0;
        double mixed = 0.0;
        for (int64_t half = 0; half < shape.halves; ++half) {
            const int64_t start = (window - (half + 1 < shape.halves ? 1 : 0)) * shape.ratio;
            for (int64_t j = 0; start >= 0 && j < shape.ratio; ++j) {
                const int64_t channel = half * shape.dim + e;
                const int64_t token = start + j - first;
                double        key, gate;
                if (token >= 0) {
                    const auto at = static_cast<size_t>(token * shape.width() + channel);
                    key = static_cast<double>(in.keys[at]);
                    gate = static_cast<double>(in.gates[at]) +
                           static_cast<double>(bias[static_cast<size_t>(j)][static_cast<size_t>(channel)]);
                } else {
                    const auto at = static_cast<size_t>(j * shape.width() + channel);
                    key = static_cast<double>(in.keys_before[at]);
                    gate = static_cast<double>(in.gates_before[at]);
                }
                const double weight = std::exp(gate);
                total += weight;
                mixed += weight * key;
            }
        }
        row.push_back(mixed / total);
    }
    return row;
}

std::vector<double> in_double(const parity::CompressCase &in) {
    const parity::CompressShape    &shape = in.shape;
    std::vector<double>             want(static_cast<size_t>(shape.first_window() * shape.dim));
    std::vector<std::vector<float>> bias;
    for (int64_t r = 0; r < shape.ratio; ++r) {
        bias.push_back(in.ape.row(r));
    }
    for (int64_t w = shape.first_window(); w < shape.end_window(); ++w) {
        std::vector<double> row = pooled(in, bias, w);
        const double        scale = rms_scale(row, 1e-6);
        for (size_t e = 0; e < row.size(); ++e) {
            row[e] *= scale * static_cast<double>(in.norm[e]);
        }
        turn(row, in.frequency, static_cast<uint64_t>(w * shape.ratio), 1.0);
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
}

} // namespace

/* Batches begin and end in the middle of windows; the rings are no longer than promised. */
TEST("windows are pooled as they close, whatever the batches") {
    for (const parity::CompressShape &shape : parity::kCompressShapes) {
        if (!tried_on_cpu(shape.slow)) {
            continue;
        }
        const double tolerance = shape.rounding == RowRounding::none ? 1e-11 : shape.rounding == RowRounding::fp8 ? 1e-5 : 1e-3;
        for (const quant::Type type : shape.types) {
            const parity::CompressCase in(shape, type);
            check_op(shape.name(type), shape.tokens, Settings::one_arithmetic, tolerance,
                     [&](Backend &backend, int64_t piece) { return in.run(backend, piece); },
                     [&](bool) { return in_double(in); });
        }
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
