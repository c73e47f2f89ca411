#include "backend/cpu/ops_test.h"

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
    const int64_t       columns = matrix.matrix.columns;
    std::vector<double> out;
    for (int64_t t = 0; t < tokens; ++t) {
        const std::vector<double> seen = seen_by(matrix.matrix.type, exact, x.data() + t * columns, columns);
        for (int64_t r = 0; r < matrix.matrix.rows; ++r) {
            const std::vector<float> row = matrix.row(r);
            double                   total = 0.0;
            for (size_t c = 0; c < row.size(); ++c) {
                total += static_cast<double>(row[c]) * seen[c];
            }
            out.push_back(total);
        }
    }
    return out;
}

namespace {

struct Shape {
    int64_t tokens, rows, columns;
};

/* One panel and less, ends of panels and tiles, more columns than one piece of a panel, work for several threads. */
constexpr Shape kShapes[] = {{1, 1, 256}, {3, 16, 256}, {9, 37, 512}, {20, 50, 1536}, {33, 129, 1024}};

} // namespace

TEST("every weight type multiplies like the reference, in any cut and on any number of threads") {
    for (const quant::Type type : kWeightTypes) {
        for (const Shape &shape : kShapes) {
            Random                   random(static_cast<uint64_t>(shape.rows));
            const OwnedMatrix        matrix = random_matrix(type, shape.rows, shape.columns, random);
            const std::vector<float> x = random.normals(shape.tokens * shape.columns);
            const auto               run = [&](Ops &ops, const std::vector<int64_t> &pieces) {
                std::vector<float> out(static_cast<size_t>(shape.tokens * shape.rows));
                int64_t            first = 0;
                for (const int64_t piece : pieces) {
                    const Projection projection = {&matrix.matrix, out.data() + first * shape.rows};
                    ops.project({piece, x.data() + first * shape.columns, {&projection, 1}});
                    first += piece;
                }
                return out;
            };
            const std::string name = std::string("project ") + quant::type_name(type) + " " +
                                     std::to_string(shape.tokens) + " x " + std::to_string(shape.rows) + " x " +
                                     std::to_string(shape.columns);
            check_op(name, shape.tokens, Settings::both_arithmetics, 1e-11, run,
                     [&](bool exact) { return multiply(matrix, exact, x, shape.tokens); });
        }
    }
}

TEST("float matrices may have any number of columns") {
    for (const quant::Type type : {quant::Type::f32, quant::Type::f16, quant::Type::bf16}) {
        for (const int64_t columns : {1, 7, 33, 100}) {
            Random                   random(5);
            const OwnedMatrix        matrix = random_matrix(type, 13, columns, random);
            const std::vector<float> x = random.normals(10 * columns);
            const auto               run = [&](Ops &ops, const std::vector<int64_t> &pieces) {
                std::vector<float> out(130);
                int64_t            first = 0;
                for (const int64_t piece : pieces) {
                    const Projection projection = {&matrix.matrix, out.data() + first * 13};
                    ops.project({piece, x.data() + first * columns, {&projection, 1}});
                    first += piece;
                }
                return out;
            };
            check_op(std::string("project ") + quant::type_name(type) + " columns " + std::to_string(columns), 10,
                     Settings::one_arithmetic, 1e-11, run, [&](bool exact) { return multiply(matrix, exact, x, 10); });
        }
    }
}

TEST("several matrices of different types share one input") {
    Random                   random(6);
    constexpr int64_t        tokens = 5;
    const OwnedMatrix        a = random_matrix(quant::Type::q8_0, 40, 512, random);
    const OwnedMatrix        b = random_matrix(quant::Type::f16, 24, 512, random);
    const OwnedMatrix        c = random_matrix(quant::Type::q4_k, 300, 512, random);
    const std::vector<float> x = random.normals(tokens * 512);
    const auto               run = [&](Ops &ops, const std::vector<int64_t> &pieces) {
        std::vector<float> out(static_cast<size_t>(tokens * 364));
        int64_t            first = 0;
        for (const int64_t piece : pieces) {
            const Projection projections[] = {{&a.matrix, out.data() + first * 40},
                                              {&b.matrix, out.data() + tokens * 40 + first * 24},
                                              {&c.matrix, out.data() + tokens * 64 + first * 300}};
            ops.project({piece, x.data() + first * 512, projections});
            first += piece;
        }
        return out;
    };
    check_op("project three", tokens, Settings::both_arithmetics, 1e-11, run, [&](bool exact) {
        std::vector<double> want = multiply(a, exact, x, tokens);
        for (const OwnedMatrix *matrix : {&b, &c}) {
            const auto more = multiply(*matrix, exact, x, tokens);
            want.insert(want.end(), more.begin(), more.end());
        }
        return want;
    });
}

TEST("a grouped matrix applies each part to its own slice of the input") {
    constexpr int64_t tokens = 9, groups = 3, columns = 256, rank = 20;
    for (const quant::Type type : {quant::Type::f16, quant::Type::q8_0, quant::Type::q4_k}) {
        Random                   random(7);
        const OwnedMatrix        matrix = random_matrix(type, groups * rank, columns, random);
        const std::vector<float> x = random.normals(tokens * groups * columns);
        const auto               run = [&](Ops &ops, const std::vector<int64_t> &pieces) {
            std::vector<float> out(static_cast<size_t>(tokens * groups * rank));
            int64_t            first = 0;
            for (const int64_t piece : pieces) {
                ops.grouped_project({piece, groups, x.data() + first * groups * columns, &matrix.matrix,
                                     out.data() + first * groups * rank});
                first += piece;
            }
            return out;
        };
        check_op(std::string("grouped ") + quant::type_name(type), tokens, Settings::both_arithmetics, 1e-11, run,
                 [&](bool exact) {
                     std::vector<double> want;
                     for (int64_t t = 0; t < tokens; ++t) {
                         for (int64_t g = 0; g < groups; ++g) {
                             const float              *start = x.data() + (t * groups + g) * columns;
                             const std::vector<float>  slice(start, start + columns);
                             const std::vector<double> all = multiply(matrix, exact, slice, 1);
                             want.insert(want.end(), all.begin() + g * rank, all.begin() + (g + 1) * rank);
                         }
                     }
                     return want;
                 });
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
