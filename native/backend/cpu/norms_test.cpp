/* The operations that normalise and rotate vectors: rms_norm, query, window; and embed. */
#include "backend/cpu/ops_test.h"

#include "backend/parity/embed.h"
#include "backend/parity/norms.h"
#include "quant/round_trip.h"

namespace ds4::backend::cpu::test {

namespace {

std::vector<double> in_double(const parity::RmsNormCase &in) {
    const int64_t       width = in.shape.width;
    std::vector<double> want;
    for (int64_t r = 0; r < in.shape.rows; ++r) {
        const std::vector<double> row(in.x.begin() + r * width, in.x.begin() + (r + 1) * width);
        const double              scale = rms_scale(row, 1e-6);
        for (size_t i = 0; i < row.size(); ++i) {
            want.push_back(row[i] * scale * static_cast<double>(in.weight[i]));
        }
    }
    return want;
}

std::vector<double> in_double(const parity::QueryCase &in) {
    const parity::QueryShape &shape = in.shape;
    std::vector<double>       want;
    for (int64_t v = 0; v < shape.tokens * shape.heads; ++v) {
        std::vector<double> head(in.q.begin() + v * shape.dim, in.q.begin() + (v + 1) * shape.dim);
        const double        scale = rms_scale(head, 1e-6);
        for (double &value : head) {
            value *= scale;
        }
        turn(head, in.frequency, shape.position + static_cast<uint64_t>(v / shape.heads), 1.0);
        want.insert(want.end(), head.begin(), head.end());
    }
    return want;
}

std::vector<double> in_double(const parity::WindowCase &in) {
    const parity::WindowShape &shape = in.shape;
    std::vector<double>        want(static_cast<size_t>(shape.ring_rows * shape.dim), -1.0);
    for (int64_t t = 0; t < shape.tokens; ++t) {
        const uint64_t      position = shape.position + static_cast<uint64_t>(t);
        std::vector<double> row(in.kv.begin() + t * shape.dim, in.kv.begin() + (t + 1) * shape.dim);
        const double        scale = rms_scale(row, 1e-6);
        for (size_t i = 0; i < row.size(); ++i) {
            row[i] *= scale * static_cast<double>(in.norm[i]);
        }
        turn(row, in.frequency, position, 1.0);
        if (in.round_trip) {
            std::vector<float> rounded(row.begin(), row.end() - shape.dims);
            quant::fp8_round_trip(rounded.data(), shape.dim - shape.dims);
            std::copy(rounded.begin(), rounded.end(), row.begin());
        }
        const auto place = static_cast<int64_t>(position % static_cast<uint64_t>(shape.ring_rows));
        std::copy(row.begin(), row.end(), want.begin() + place * shape.dim);
    }
    return want;
}

} // namespace

TEST("the RMS norm equals the reference, also in place") {
    for (const parity::RmsNormShape &shape : parity::kRmsNormShapes) {
        if (!tried_on_cpu(shape.slow)) {
            continue;
        }
        const parity::RmsNormCase in(shape);
        for (const parity::Output output : {parity::Output::in_place, parity::Output::apart}) {
            const std::string name = shape.name() + (output == parity::Output::in_place ? " in place" : "");
            check_op(name, shape.rows, Settings::one_arithmetic, 1e-13,
                     [&](Backend &backend, int64_t piece) { return in.run(backend, piece, output); },
                     [&](bool) { return in_double(in); });
        }
    }
}

TEST("queries are normalised per head and rotated at the end") {
    for (const parity::QueryShape &shape : parity::kQueryShapes) {
        if (tried_on_cpu(shape.slow)) {
            const parity::QueryCase in(shape);
            check_op(shape.name(), shape.tokens, Settings::one_arithmetic, 1e-12,
                     [&](Backend &backend, int64_t piece) { return in.run(backend, piece); },
                     [&](bool) { return in_double(in); });
        }
    }
}

TEST("window rows go to their place in the ring, rounded only when asked") {
    for (const parity::WindowShape &shape : parity::kWindowShapes) {
        for (const bool round_trip : {false, true}) {
            if (tried_on_cpu(shape.slow)) {
                const parity::WindowCase in(shape, round_trip);
                /* Rounding may fall the other way for a value next to a boundary: one step of E4M3 on a few of them. */
                check_op(in.name(), shape.tokens, Settings::one_arithmetic, round_trip ? 1e-5 : 1e-12,
                         [&](Backend &backend, int64_t piece) { return in.run(backend, piece); },
                         [&](bool) { return in_double(in); });
            }
        }
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
    for (const parity::EmbedShape &shape : parity::kEmbedShapes) {
        for (const quant::Type type : shape.types) {
            if (!tried_on_cpu(shape.slow)) {
                continue;
            }
            const parity::EmbedCase in(shape, type);
            std::vector<double>     want;
            for (const int32_t token : shape.tokens) {
                const std::vector<float> row = in.embedding.row(token);
                for (int64_t s = 0; s < shape.hc; ++s) {
                    want.insert(want.end(), row.begin(), row.end());
                }
            }
            check_op(shape.name(type), static_cast<int64_t>(shape.tokens.size()), settings_for(type), 0.0,
                     [&](Backend &backend, int64_t piece) { return in.run(backend, piece); }, [&](bool) { return want; });
        }
    }
}

} // namespace ds4::backend::cpu::test
