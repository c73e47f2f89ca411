#include "backend/gpu/parity_test.h"

#include <cmath>
#include <numeric>

namespace ds4::backend::gpu::test {

namespace {

std::vector<int64_t> all_at_once(int64_t tokens) { return {tokens}; }

/* Several matrices over a batch cut into pieces; the outputs one after another. */
std::vector<float> project(Backend &backend, const std::vector<const Matrix *> &matrices, const std::vector<float> &x,
                           const std::vector<int64_t> &cut) {
    const int64_t columns = matrices.front()->columns;
    const int64_t tokens = std::accumulate(cut.begin(), cut.end(), int64_t{0});
    auto          inputs = place(backend, x);
    std::vector<Placed<float>> outputs;
    for (const Matrix *matrix : matrices) {
        outputs.push_back(room<float>(backend, static_cast<size_t>(tokens * matrix->rows)));
    }
    int64_t first = 0;
    for (const int64_t piece : cut) {
        std::vector<Projection> projections;
        for (size_t i = 0; i < matrices.size(); ++i) {
            projections.push_back({matrices[i], outputs[i].get() + first * matrices[i]->rows});
        }
        backend.ops->project({piece, inputs.get() + first * columns, projections});
        first += piece;
    }
    std::vector<float> all;
    for (const Placed<float> &output : outputs) {
        const std::vector<float> values = output.read();
        all.insert(all.end(), values.begin(), values.end());
    }
    return all;
}

std::vector<float> project_on_cpu(bool exact, const std::vector<const Matrix *> &matrices, const std::vector<float> &x,
                                  int64_t tokens) {
    cpu::CpuOps        ops = cpu_ops(exact);
    std::vector<float> all;
    for (const Matrix *matrix : matrices) {
        std::vector<float> out(static_cast<size_t>(tokens * matrix->rows));
        const Projection   projection = {matrix, out.data()};
        ops.project({tokens, x.data(), {&projection, 1}});
        all.insert(all.end(), out.begin(), out.end());
    }
    return all;
}

struct Shape {
    int64_t tokens, rows, columns;
};

/* Any type: less than a tile and more, tokens for each of the kernels, fewer units than chains and more, and a number of
 * units that is no multiple of them. */
constexpr Shape kShapes[] = {{1, 1, 256}, {2, 21, 512}, {9, 37, 1280}, {33, 20, 768}, {130, 133, 256}};

void check_matrix(const std::string &name, quant::Type type, const Shape &shape, bool exact) {
    Random                   random(static_cast<uint64_t>(shape.rows));
    const OwnedMatrix        owned = random_matrix(type, shape.rows, shape.columns, random);
    const std::vector<float> x = random.normals(shape.tokens * shape.columns);
    Backend                  backend = gpu(exact);
    const std::vector<float> want = project_on_cpu(exact, {&owned.matrix}, x, shape.tokens);

    const PlacedMatrix       file = place_matrix(backend, owned, Layout::file);
    const std::vector<float> got = project(backend, {&file.matrix}, x, all_at_once(shape.tokens));
    CHECK_NMSE(name, got, want, 1e-10);

    const PlacedMatrix arranged = place_matrix(backend, owned, Layout::arranged);
    if (shape.columns <= 8192) { /* a wider row may be too long for the kernel that arranges it */
        CHECK((arranged.matrix.layout == RowLayout::arranged) == (type == quant::Type::q8_0 && shape.columns % 256 == 0));
    }
    for (const Matrix *matrix : {&file.matrix, &arranged.matrix}) {
        const std::string layout = name + (matrix->layout == RowLayout::arranged ? " arranged" : " file");
        if (matrix->layout == RowLayout::arranged) {
            CHECK_SAME_BITS(layout + ", all at once", project(backend, {matrix}, x, all_at_once(shape.tokens)), got);
        }
        CHECK_SAME_BITS(layout + ", pieces of 7", project(backend, {matrix}, x, pieces(shape.tokens, 7)), got);
        if (shape.tokens < 10) {
            CHECK_SAME_BITS(layout + ", pieces of 3", project(backend, {matrix}, x, pieces(shape.tokens, 3)), got);
            CHECK_SAME_BITS(layout + ", pieces of 2", project(backend, {matrix}, x, pieces(shape.tokens, 2)), got);
            CHECK_SAME_BITS(layout + ", singly", project(backend, {matrix}, x, pieces(shape.tokens, 1)), got);
        }
        if (arranged.matrix.layout == RowLayout::file) {
            break;
        }
    }
}

} // namespace

TEST("every weight type multiplies as on the CPU, in any cut and layout") {
    for (const quant::Type type : kWeightTypes) {
        for (const Shape &shape : kShapes) {
            for (const bool exact : {false, true}) {
                if (exact && shape.tokens != 9) {
                    continue;
                }
                check_matrix(std::string("project ") + quant::type_name(type) + " " + std::to_string(shape.tokens) + " x " +
                                 std::to_string(shape.rows) + " x " + std::to_string(shape.columns) +
                                 (exact ? " exact" : ""),
                             type, shape, exact);
            }
        }
    }
}

TEST("columns that are no multiple of 256 stay in the layout of the file") {
    for (const quant::Type type : {quant::Type::q8_0, quant::Type::mxfp4}) {
        for (const int64_t columns : {32, 96, 1056}) {
            check_matrix(std::string("project ") + quant::type_name(type) + " columns " + std::to_string(columns), type,
                         {11, 19, columns}, false);
        }
    }
}

TEST("float matrices may have any number of columns") {
    for (const quant::Type type : {quant::Type::f32, quant::Type::f16, quant::Type::bf16}) {
        for (const int64_t columns : {1, 7, 33, 100, 1057}) {
            check_matrix(std::string("project ") + quant::type_name(type) + " columns " + std::to_string(columns), type,
                         {11, 13, columns}, false);
        }
    }
}

TEST("float matrices of many tokens end anywhere in a tile") {
    constexpr Shape kEdges[] = {{31, 33, 36}, {64, 31, 1057}, {65, 64, 100}, {127, 97, 33}, {128, 1, 64}, {130, 65, 7}};
    for (const quant::Type type : {quant::Type::f32, quant::Type::f16, quant::Type::bf16}) {
        for (const Shape &shape : kEdges) {
            check_matrix(std::string("project ") + quant::type_name(type) + " " + std::to_string(shape.tokens) + " x " +
                             std::to_string(shape.rows) + " x " + std::to_string(shape.columns),
                         type, shape, false);
        }
    }
}

/* More tiles of the larger kind than twice the multiprocessors of most cards, and in pieces fewer than that. */
TEST("tiles of either size give the same bits") {
    constexpr int64_t tokens = 1540, rows = 1300;
    struct Case {
        quant::Type type;
        int64_t     columns;
        bool        exact;
    };
    constexpr Case kCases[] = {{quant::Type::f32, 33, false},
                               {quant::Type::f32, 40, false},
                               {quant::Type::f16, 33, false},
                               {quant::Type::f16, 40, false},
                               {quant::Type::q8_0, 64, true}};
    for (const auto &[type, columns, exact] : kCases) {
        Random                   random(5);
        Backend                  backend = gpu(exact);
        const OwnedMatrix        owned = random_matrix(type, rows, columns, random);
        const PlacedMatrix       placed = place_matrix(backend, owned, Layout::file);
        const std::vector<float> x = random.normals(tokens * columns);
        const std::vector<float> got = project(backend, {&placed.matrix}, x, {tokens});
        CHECK_SAME_BITS(std::string("project ") + quant::type_name(type) + " in pieces",
                        project(backend, {&placed.matrix}, x, {500, 500, 540}), got);
    }
}

TEST("a row of the model's width and a row wider than shared memory") {
    check_matrix("project q8_0 8192", quant::Type::q8_0, {9, 17, 8192}, false);
    check_matrix("project f16 8192", quant::Type::f16, {9, 17, 8192}, false);
    check_matrix("project f32 65536", quant::Type::f32, {2, 3, 65536}, false);
    check_matrix("project q8_0 262144", quant::Type::q8_0, {2, 2, 262144}, false);
}

TEST("more matrices than one launch takes, of different types, share one input") {
    for (const bool exact : {false, true}) {
        Random                     random(6);
        Backend                    backend = gpu(exact);
        std::vector<OwnedMatrix>   owned;
        std::vector<PlacedMatrix>  placed;
        std::vector<const Matrix *> matrices, on_cpu;
        for (const quant::Type type : kWeightTypes) {
            owned.push_back(random_matrix(type, 20 + 17 * static_cast<int64_t>(owned.size()), 512, random));
        }
        owned.push_back(random_matrix(quant::Type::q8_0, 300, 512, random));
        for (const OwnedMatrix &one : owned) {
            placed.push_back(place_matrix(backend, one, Layout::arranged));
        }
        for (size_t i = 0; i < owned.size(); ++i) {
            matrices.push_back(&placed[i].matrix);
            on_cpu.push_back(&owned[i].matrix);
        }
        const std::vector<float> x = random.normals(17 * 512);
        const std::vector<float> got = project(backend, matrices, x, {17});

        CHECK_NMSE("project eleven", got, project_on_cpu(exact, on_cpu, x, 17), 1e-11);
        CHECK_SAME_BITS("project eleven, pieces of 5", project(backend, matrices, x, pieces(17, 5)), got);
        CHECK_SAME_BITS("project eleven, singly", project(backend, matrices, x, pieces(17, 1)), got);
    }
}

TEST("a grouped matrix applies each part to its own slice of the input") {
    constexpr int64_t tokens = 10, columns = 256, rank = 20;
    for (const int64_t groups : {3, 8, 11}) {
        for (const quant::Type type : {quant::Type::f16, quant::Type::q8_0, quant::Type::q4_k}) {
            for (const bool exact : {false, true}) {
                Random                   random(7);
                Backend                  backend = gpu(exact);
                const OwnedMatrix        owned = random_matrix(type, groups * rank, columns, random);
                const PlacedMatrix       placed = place_matrix(backend, owned, Layout::arranged);
                const std::vector<float> x = random.normals(tokens * groups * columns);
                const auto               inputs = place(backend, x);
                const auto               run = [&](const std::vector<int64_t> &cut) {
                    auto    out = room<float>(backend, static_cast<size_t>(tokens * groups * rank));
                    int64_t first = 0;
                    for (const int64_t piece : cut) {
                        backend.ops->grouped_project({piece, groups, inputs.get() + first * groups * columns,
                                                      &placed.matrix, out.get() + first * groups * rank});
                        first += piece;
                    }
                    return out.read();
                };
                std::vector<float> want(static_cast<size_t>(tokens * groups * rank));
                cpu::CpuOps        ops = cpu_ops(exact);
                ops.grouped_project({tokens, groups, x.data(), &owned.matrix, want.data()});

                const std::string        name = std::string("grouped ") + quant::type_name(type) + (exact ? " exact" : "");
                const std::vector<float> got = run({tokens});
                CHECK_NMSE(name, got, want, 1e-10);
                CHECK_SAME_BITS(name + ", pieces of 7", run(pieces(tokens, 7)), got);
                CHECK_SAME_BITS(name + ", singly", run(pieces(tokens, 1)), got);
            }
        }
    }
}

TEST("an input that is not a number reaches every output of its token, and no other token") {
    for (const quant::Type type : kWeightTypes) {
        Random             random(8);
        Backend            backend = gpu(false);
        const OwnedMatrix  owned = random_matrix(type, 20, 256, random);
        const PlacedMatrix placed = place_matrix(backend, owned, Layout::arranged);
        for (const int64_t tokens : {2, 12}) {
            std::vector<float> x = random.normals(tokens * 256);
            x[100] = tokens == 2 ? NAN : INFINITY;
            const std::vector<float> out = project(backend, {&placed.matrix}, x, {tokens});
            for (size_t i = 0; i < 20; ++i) {
                CHECK(!std::isfinite(out[i]));
                CHECK(std::isfinite(out[20 + i]));
            }
        }
    }
}

TEST("inputs of zeros, of very small values and with equal extremes are rounded as on the CPU") {
    Random random(9);
    for (const quant::Type type : {quant::Type::q8_0, quant::Type::q2_k}) {
        Backend            backend = gpu(false);
        const OwnedMatrix  owned = random_matrix(type, 40, 512, random);
        const PlacedMatrix placed = place_matrix(backend, owned, Layout::arranged);
        std::vector<float> x(3 * 512, 0.0f);
        for (size_t i = 0; i < 512; ++i) {
            x[512 + i] = 1e-42f * static_cast<float>(i % 7);
            x[1024 + i] = i % 3 == 0 ? 2.0f : i % 3 == 1 ? -2.0f : 0.25f * random.uniform();
        }
        const std::vector<float> got = project(backend, {&placed.matrix}, x, {3});
        const std::vector<float> want = project_on_cpu(false, {&owned.matrix}, x, 3);

        CHECK_NEAR("zeros", std::vector<float>(got.begin(), got.begin() + 40), std::vector<float>(40, 0.0f), 0.0);
        CHECK_NEAR("tiny", std::vector<float>(got.begin() + 40, got.begin() + 80),
                   std::vector<float>(want.begin() + 40, want.begin() + 80), 1e-36);
        CHECK_NMSE("equal extremes", std::vector<float>(got.begin() + 80, got.end()),
                   std::vector<float>(want.begin() + 80, want.end()), 1e-11);
    }
}

} // namespace ds4::backend::gpu::test
