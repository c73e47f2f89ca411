#include "backend/cpu/ops_test.h"

#include "backend/parity/project.h"
#include "quant/activation.h"

namespace ds4::backend::cpu::test {

std::vector<double> seen_by(quant::Type type, bool exact, const float *x, int64_t columns) {
    const int64_t block = quant::block_layout(type).values;
    if (exact || block == 1) {
        return std::vector<double>(x, x + columns);
    }
    std::vector<double> seen;
    if (block == 32) {
        std::vector<quant::Q8Block32> blocks(static_cast<size_t>(columns / 32));
        quant::quantise_q8_32(x, columns, blocks.data());
        for (const auto &one : blocks) {
            for (const int8_t q : one.q) {
                seen.push_back(static_cast<double>(one.d) * q);
            }
        }
    } else {
        std::vector<quant::Q8Block256> blocks(static_cast<size_t>(columns / 256));
        quant::quantise_q8_256(x, columns, blocks.data());
        for (const auto &one : blocks) {
            for (const int8_t q : one.q) {
                seen.push_back(static_cast<double>(one.d) * q);
            }
        }
    }
    return seen;
}

std::vector<double> multiply(const OwnedMatrix &matrix, bool exact, const std::vector<float> &x, int64_t tokens) {
    const int64_t                    columns = matrix.matrix.columns;
    std::vector<std::vector<double>> seen;
    for (int64_t t = 0; t < tokens; ++t) {
        seen.push_back(seen_by(matrix.matrix.type, exact, x.data() + t * columns, columns));
    }
    std::vector<double> out(static_cast<size_t>(tokens * matrix.matrix.rows));
    for (int64_t r = 0; r < matrix.matrix.rows; ++r) {
        const std::vector<float> row = matrix.row(r);
        for (size_t t = 0; t < seen.size(); ++t) {
            double total = 0.0;
            for (size_t c = 0; c < row.size(); ++c) {
                total += static_cast<double>(row[c]) * seen[t][c];
            }
            out[t * static_cast<size_t>(matrix.matrix.rows) + static_cast<size_t>(r)] = total;
        }
    }
    return out;
}

TEST("every weight type multiplies like the reference, in any cut and on any number of threads") {
    for (const parity::ProjectShape &shape : parity::kProjectShapes) {
        for (const quant::Type type : shape.types) {
            if (tried_on_cpu(shape.slow)) {
                const parity::ProjectCase in(shape, type);
                check_op(shape.name(type), shape.tokens, settings_for(type), parity::sum_tolerance(shape.columns),
                         [&](Backend &backend, int64_t piece) { return in.run(backend, piece); },
                         [&](bool exact) { return multiply(in.matrix, exact, in.x, shape.tokens); });
            }
        }
    }
}

TEST("several matrices of different types share one input") {
    for (const parity::ProjectTogetherShape &shape : parity::kProjectTogetherShapes) {
        if (!tried_on_cpu(shape.slow)) {
            continue;
        }
        const parity::ProjectTogetherCase in(shape);
        check_op(shape.name(), shape.tokens, Settings::both_arithmetics, 1e-11,
                 [&](Backend &backend, int64_t piece) { return in.run(backend, piece); },
                 [&](bool exact) {
                     std::vector<double> want;
                     for (const OwnedMatrix &matrix : in.matrices) {
                         const auto more = multiply(matrix, exact, in.x, shape.tokens);
                         want.insert(want.end(), more.begin(), more.end());
                     }
                     return want;
                 });
    }
}

TEST("a grouped matrix applies each part to its own slice of the input") {
    for (const parity::GroupedProjectShape &shape : parity::kGroupedProjectShapes) {
        for (const quant::Type type : shape.types) {
            if (!tried_on_cpu(shape.slow)) {
                continue;
            }
            const parity::GroupedProjectCase in(shape, type);
            check_op(shape.name(type), shape.tokens, settings_for(type), 1e-11,
                     [&](Backend &backend, int64_t piece) { return in.run(backend, piece); },
                     [&](bool exact) {
                         std::vector<double> want;
                         for (int64_t slice = 0; slice < shape.tokens * shape.groups; ++slice) {
                             const float              *start = in.x.data() + slice * shape.columns;
                             const std::vector<double> all = multiply(in.matrix, exact, {start, start + shape.columns}, 1);
                             const int64_t             first = slice % shape.groups * shape.rank;
                             want.insert(want.end(), all.begin() + first, all.begin() + first + shape.rank);
                         }
                         return want;
                     });
        }
    }
}

TEST("an input that is not a number reaches every output of its token, and no other token") {
    for (const quant::Type type : kWeightTypes) {
        for (const uint32_t set : instruction_sets()) {
            Random             random(8);
            const OwnedMatrix  matrix = random_matrix(type, 20, 256, random);
            std::vector<float> x = random.normals(2 * 256);
            x[100] = NAN;
            std::vector<float> out(40);
            Backend            backend = open(1, false, set);
            const Projection   projection = {&matrix.matrix, out.data()};

            backend.ops->project({2, x.data(), {&projection, 1}});

            for (size_t i = 0; i < 20; ++i) {
                CHECK(std::isnan(out[i]));
                CHECK(std::isfinite(out[20 + i]));
            }
        }
    }
}

} // namespace ds4::backend::cpu::test
