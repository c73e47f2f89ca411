/* The operations that normalise and rotate vectors: rms_norm, query, window, embed. */
#include "backend/cpu/ops_test.h"

#include "quant/round_trip.h"

namespace ds4::backend::cpu::test {

TEST("the RMS norm equals the reference, also in place") {
    for (const int64_t width : {1, 24, 128, 1030, 4096}) {
        constexpr int64_t        rows = 12;
        Random                   random(11);
        const std::vector<float> x = random.normals(rows * width);
        const std::vector<float> weight = random.normals(width);
        const auto               run = [&](Ops &ops, const std::vector<int64_t> &pieces) {
            std::vector<float> out = x;
            int64_t            first = 0;
            for (const int64_t piece : pieces) {
                ops.rms_norm({piece, width, out.data() + first * width, weight.data(), 1e-6f, out.data() + first * width});
                first += piece;
            }
            return out;
        };
        check_op("rms_norm " + std::to_string(width), rows, Settings::one_arithmetic, 1e-13, run, [&](bool) {
            std::vector<double> want;
            for (int64_t r = 0; r < rows; ++r) {
                const std::vector<double> row(x.begin() + r * width, x.begin() + (r + 1) * width);
                const double              scale = rms_scale(row, 1e-6);
                for (int64_t i = 0; i < width; ++i) {
                    want.push_back(row[static_cast<size_t>(i)] * scale * static_cast<double>(weight[static_cast<size_t>(i)]));
                }
            }
            return want;
        });
    }
}

TEST("queries are normalised per head and rotated at the end") {
    struct Shape {
        int64_t heads, dim, dims;
    };
    for (const Shape &shape : {Shape{8, 64, 32}, Shape{4, 512, 64}, Shape{3, 20, 6}}) {
        constexpr int64_t        tokens = 10;
        constexpr uint64_t       position = 700;
        const int64_t            width = shape.heads * shape.dim;
        Random                   random(12);
        const std::vector<float> q = random.normals(tokens * width);
        const std::vector<float> frequency = frequencies(shape.dims);
        const auto               run = [&](Ops &ops, const std::vector<int64_t> &pieces) {
            std::vector<float> out = q;
            int64_t            first = 0;
            for (const int64_t piece : pieces) {
                ops.query({piece, shape.heads, shape.dim, position + static_cast<uint64_t>(first),
                           {frequency.data(), shape.dims}, 1e-6f, out.data() + first * width});
                first += piece;
            }
            return out;
        };
        check_op("query " + std::to_string(shape.dim), tokens, Settings::one_arithmetic, 1e-12, run, [&](bool) {
            std::vector<double> want;
            for (int64_t v = 0; v < tokens * shape.heads; ++v) {
                std::vector<double> head(q.begin() + v * shape.dim, q.begin() + (v + 1) * shape.dim);
                const double        scale = rms_scale(head, 1e-6);
                for (double &value : head) {
                    value *= scale;
                }
                turn(head, frequency, position + static_cast<uint64_t>(v / shape.heads), 1.0);
                want.insert(want.end(), head.begin(), head.end());
            }
            return want;
        });
    }
}

TEST("window rows go to their place in the ring, rounded only when asked") {
    constexpr int64_t  tokens = 20, dim = 192, dims = 64, ring_rows = 24;
    constexpr uint64_t position = 1000;
    for (const bool round_trip : {false, true}) {
        Random                   random(13);
        const std::vector<float> kv = random.normals(tokens * dim);
        const std::vector<float> norm = random.normals(dim);
        const std::vector<float> frequency = frequencies(dims);
        const auto               run = [&](Ops &ops, const std::vector<int64_t> &pieces) {
            std::vector<float> ring(ring_rows * dim, -1.0f);
            int64_t            first = 0;
            for (const int64_t piece : pieces) {
                ops.window({piece, dim, position + static_cast<uint64_t>(first), {frequency.data(), dims},
                            kv.data() + first * dim, norm.data(), 1e-6f, round_trip, ring_rows, ring.data()});
                first += piece;
            }
            return ring;
        };
        /* Rounding may fall the other way for a value next to a boundary: one step of E4M3 on a few of them. */
        check_op(round_trip ? "window fp8" : "window", tokens, Settings::one_arithmetic, round_trip ? 1e-5 : 1e-12, run,
                 [&](bool) {
                     std::vector<double> want(ring_rows * dim, -1.0);
                     for (int64_t t = 0; t < tokens; ++t) {
                         std::vector<double> row(kv.begin() + t * dim, kv.begin() + (t + 1) * dim);
                         const double        scale = rms_scale(row, 1e-6);
                         for (size_t i = 0; i < row.size(); ++i) {
                             row[i] *= scale * static_cast<double>(norm[i]);
                         }
                         turn(row, frequency, position + static_cast<uint64_t>(t), 1.0);
                         if (round_trip) {
                             std::vector<float> rounded(row.begin(), row.end() - dims);
                             quant::fp8_round_trip(rounded.data(), dim - dims);
                             std::copy(rounded.begin(), rounded.end(), row.begin());
                         }
                         const auto place = (position + static_cast<uint64_t>(t)) % ring_rows;
                         std::copy(row.begin(), row.end(), want.begin() + static_cast<int64_t>(place) * dim);
                     }
                     return want;
                 });
    }
}

TEST("angles are found again by value, not by address") {
    Random             random(14);
    std::vector<float> frequency = frequencies(8);
    std::vector<float> first = random.normals(16);
    std::vector<float> second = first;
    std::vector<float> third = first;
    Backend            backend = open(1, false, DS4_ISA_AUTO);

    backend.ops->query({1, 1, 16, 5, {frequency.data(), 8}, 1e-6f, first.data()});
    backend.ops->query({1, 1, 16, 5, {frequency.data(), 8}, 1e-6f, second.data()});
    frequency[1] *= 2.0f;
    backend.ops->query({1, 1, 16, 5, {frequency.data(), 8}, 1e-6f, third.data()});

    CHECK(first == second);
    CHECK(first != third);
}

TEST("an embedding row is copied into every stream") {
    for (const quant::Type type : {quant::Type::f16, quant::Type::bf16, quant::Type::q8_0}) {
        Random                     random(15);
        const OwnedMatrix          embedding = random_matrix(type, 9, 256, random);
        const std::vector<int32_t> tokens = {8, 0, 3};
        std::vector<float>         streams(3 * 4 * 256);
        Backend                    backend = open(2, false, DS4_ISA_AUTO);

        backend.ops->embed({tokens, &embedding.matrix, 4, streams.data()});

        std::vector<float> want;
        for (const int32_t token : tokens) {
            for (int s = 0; s < 4; ++s) {
                const auto row = embedding.row(token);
                want.insert(want.end(), row.begin(), row.end());
            }
        }
        CHECK_SAME_BITS("embed", streams, want);
    }
}

} // namespace ds4::backend::cpu::test
