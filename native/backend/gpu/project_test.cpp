#include "backend/parity/project.h"

#include <cmath>

#include "backend/gpu/parity_test.h"

namespace ds4::backend::gpu::test {

namespace {

using parity::project;

std::vector<int64_t> cuts_of(int64_t tokens) {
    if (tokens > 1000) {
        return {500};
    }
    return tokens < 10 ? std::vector<int64_t>{7, 3, 2, 1} : std::vector<int64_t>{7};
}

void check_matrix(const std::string &name, const parity::ProjectCase &in, bool exact) {
    const parity::ProjectShape &shape = in.shape;
    const quant::Type           type = in.matrix.matrix.type;
    Backend                     backend = gpu(exact);
    Backend                     cpu = reference(exact);
    const std::vector<float>    want = in.run(cpu, shape.tokens);

    const PlacedMatrix       file = place_matrix(backend, in.matrix, Layout::file);
    const std::vector<float> got = project(backend, {&file.matrix}, in.x, {shape.tokens});
    CHECK_NMSE(name, got, want, 1e-10);

    const PlacedMatrix arranged = place_matrix(backend, in.matrix, Layout::arranged);
    if (shape.columns <= 8192) { /* a wider row may be too long for the kernel that arranges it */
        CHECK((arranged.matrix.layout == RowLayout::arranged) == (type == quant::Type::q8_0 && shape.columns % 256 == 0));
    }
    for (const Matrix *matrix : {&file.matrix, &arranged.matrix}) {
        const std::string layout = name + (matrix->layout == RowLayout::arranged ? " arranged" : " file");
        if (matrix->layout == RowLayout::arranged) {
            CHECK_SAME_BITS(layout + ", all at once", project(backend, {matrix}, in.x, {shape.tokens}), got);
        }
        for (const int64_t cut : cuts_of(shape.tokens)) {
            CHECK_SAME_BITS(layout + ", pieces of " + std::to_string(cut),
                            project(backend, {matrix}, in.x, pieces(shape.tokens, cut)), got);
        }
        if (arranged.matrix.layout == RowLayout::file) {
            break;
        }
    }
}

} // namespace

TEST("every weight type multiplies as on the CPU, in any cut and layout") {
    for (const parity::ProjectShape &shape : parity::kProjectShapes) {
        for (const quant::Type type : shape.types) {
            for (const bool exact : {false, true}) {
                if (tried_on_card(shape.slow) && tried_with(shape.arithmetics, exact)) {
                    check_matrix(shape.name(type) + (exact ? " exact" : ""), parity::ProjectCase(shape, type), exact);
                }
            }
        }
    }
}

TEST("matrices of different types share one input") {
    for (const parity::ProjectTogetherShape &shape : parity::kProjectTogetherShapes) {
        for (const bool exact : {false, true}) {
            if (tried_on_card(shape.slow)) {
                const parity::ProjectTogetherCase in(shape);
                check_parity(shape.name() + (exact ? " exact" : ""), shape.tokens, exact, 1e-11,
                             [&](Backend &backend, int64_t piece) { return in.run(backend, piece, Layout::arranged); }, {1, 5});
            }
        }
    }
}

TEST("a grouped matrix applies each part to its own slice of the input") {
    for (const parity::GroupedProjectShape &shape : parity::kGroupedProjectShapes) {
        for (const quant::Type type : shape.types) {
            for (const bool exact : {false, true}) {
                if (tried_on_card(shape.slow)) {
                    const parity::GroupedProjectCase in(shape, type);
                    check_parity(shape.name(type) + (exact ? " exact" : ""), shape.tokens, exact, 1e-10,
                                 [&](Backend &backend, int64_t piece) { return in.run(backend, piece, Layout::arranged); });
                }
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
        Backend                  cpu = reference(false);
        const std::vector<float> want = project(cpu, {&owned.matrix}, x, {3});

        CHECK_NEAR("zeros", std::vector<float>(got.begin(), got.begin() + 40), std::vector<float>(40, 0.0f), 0.0);
        CHECK_NEAR("tiny", std::vector<float>(got.begin() + 40, got.begin() + 80),
                   std::vector<float>(want.begin() + 40, want.begin() + 80), 1e-36);
        CHECK_NMSE("equal extremes", std::vector<float>(got.begin() + 80, got.end()),
                   std::vector<float>(want.begin() + 80, want.end()), 1e-11);
    }
}

} // namespace ds4::backend::gpu::test
