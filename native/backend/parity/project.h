/* project and grouped_project. */
#pragma once

#include "backend/parity/matrices.h"

namespace ds4::backend::parity {

/* ---- project ---------------------------------------------------------------------------------------- */

struct ProjectShape {
    int64_t     tokens, rows, columns;
    Types       types;
    Arithmetics arithmetics = Arithmetics::fast;
    Slow        slow = Slow::nowhere;

    std::string name(quant::Type type) const {
        return std::string("project ") + quant::type_name(type) + " " + by({tokens, rows, columns});
    }
};

constexpr ProjectShape kProjectShapes[] = {
    /* One panel of the CPU and less, ends of panels and tiles, more columns than one piece of a panel, work for several
     * threads. */
    {1, 1, 256, kWeightTypes},
    {3, 16, 256, kWeightTypes},
    {9, 37, 512, kWeightTypes, Arithmetics::both},
    {20, 50, 1536, kWeightTypes},
    {33, 129, 1024, kWeightTypes},
    /* Less than a tile of a card and more, tokens for each of its kernels, fewer units than chains and more, and a number of
     * units that is no multiple of them. */
    {2, 21, 512, kWeightTypes},
    {9, 37, 1280, kWeightTypes, Arithmetics::both},
    {33, 20, 768, kWeightTypes},
    {130, 133, 256, kWeightTypes},
    /* Columns that are no multiple of 256 stay in the layout of the file. */
    {11, 19, 32, kTypesOf32},
    {11, 19, 96, kTypesOf32},
    {11, 19, 1056, kTypesOf32},
    /* Float matrices may have any number of columns. */
    {10, 13, 1, kFloatTypes},
    {10, 13, 7, kFloatTypes},
    {10, 13, 33, kFloatTypes},
    {10, 13, 100, kFloatTypes},
    {11, 13, 1, kFloatTypes},
    {11, 13, 7, kFloatTypes},
    {11, 13, 33, kFloatTypes},
    {11, 13, 100, kFloatTypes},
    {11, 13, 1057, kFloatTypes},
    /* Many tokens end anywhere in a tile. */
    {31, 33, 36, kFloatTypes},
    {64, 31, 1057, kFloatTypes},
    {65, 64, 100, kFloatTypes},
    {127, 97, 33, kFloatTypes},
    {128, 1, 64, kFloatTypes},
    {130, 65, 7, kFloatTypes},
    /* More tiles of the larger kind than twice the multiprocessors of most cards, and in pieces fewer than that. */
    {1540, 1300, 33, kF32AndF16, Arithmetics::fast, Slow::cpu},
    {1540, 1300, 40, kF32AndF16, Arithmetics::fast, Slow::cpu},
    {1540, 1300, 64, kQ8_0, Arithmetics::exact, Slow::cpu},
    /* A row of the model's width, and rows wider than shared memory. */
    {9, 17, 8192, kQ8_0},
    {9, 17, 8192, kF16},
    {2, 3, 65536, kF32},
    {2, 2, 262144, kQ8_0},
};

/* Matrices on a device that share one input [tokens, columns]. */
inline std::vector<float> project(Backend &backend, const std::vector<const Matrix *> &matrices, const std::vector<float> &x,
                                  const std::vector<int64_t> &cut) {
    const int64_t              columns = matrices.front()->columns;
    const auto                 inputs = place(backend, x);
    std::vector<Placed<float>> outputs;
    for (const Matrix *matrix : matrices) {
        outputs.push_back(room<float>(backend, x.size() / static_cast<size_t>(columns) * static_cast<size_t>(matrix->rows)));
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
    std::vector<float> all; /* one matrix after another: [tokens, rows] */
    for (const Placed<float> &output : outputs) {
        append(all, output.read());
    }
    return all;
}

struct ProjectCase {
    ProjectShape       shape;
    OwnedMatrix        matrix;
    std::vector<float> x;

    ProjectCase(const ProjectShape &of, quant::Type type) : shape(of) {
        Random random(static_cast<uint64_t>(shape.rows));
        matrix = random_matrix(type, shape.rows, shape.columns, random);
        x = random.normals(shape.tokens * shape.columns);
    }

    /* [tokens, rows] */
    std::vector<float> run(Backend &backend, int64_t piece, Layout layout = Layout::file) const {
        const PlacedMatrix placed = place_matrix(backend, matrix, layout);
        return project(backend, {&placed.matrix}, x, pieces(shape.tokens, piece));
    }
};

/* ---- several matrices at once ----------------------------------------------------------------------- */

struct TypedRows {
    quant::Type type;
    int64_t     rows;
};
constexpr TypedRows kThreeMatrices[] = {{quant::Type::q8_0, 40}, {quant::Type::f16, 24}, {quant::Type::q4_k, 300}};
constexpr TypedRows kElevenMatrices[] = {{quant::Type::f32, 20},   {quant::Type::f16, 37},      {quant::Type::bf16, 54},
                                         {quant::Type::q8_0, 71},  {quant::Type::mxfp4, 88},    {quant::Type::q2_k, 105},
                                         {quant::Type::q4_k, 122}, {quant::Type::q5_k, 139},    {quant::Type::q6_k, 156},
                                         {quant::Type::iq2_xxs, 173}, {quant::Type::q8_0, 300}};

struct ProjectTogetherShape {
    int64_t                    tokens, columns;
    std::span<const TypedRows> matrices;
    Slow                       slow = Slow::nowhere;

    std::string name() const { return "project " + std::to_string(matrices.size()) + " matrices " + by({tokens, columns}); }
};

/* Few, and more than one launch of a card takes. */
constexpr ProjectTogetherShape kProjectTogetherShapes[] = {{5, 512, kThreeMatrices}, {17, 512, kElevenMatrices}};

struct ProjectTogetherCase {
    ProjectTogetherShape     shape;
    std::vector<OwnedMatrix> matrices;
    std::vector<float>       x;

    explicit ProjectTogetherCase(const ProjectTogetherShape &of) : shape(of) {
        Random random(6);
        for (const TypedRows &one : shape.matrices) {
            matrices.push_back(random_matrix(one.type, one.rows, shape.columns, random));
        }
        x = random.normals(shape.tokens * shape.columns);
    }

    /* [tokens, rows] for each matrix */
    std::vector<float> run(Backend &backend, int64_t piece, Layout layout = Layout::file) const {
        std::vector<PlacedMatrix>   placed;
        std::vector<const Matrix *> pointers;
        for (const OwnedMatrix &one : matrices) {
            placed.push_back(place_matrix(backend, one, layout));
        }
        for (const PlacedMatrix &one : placed) {
            pointers.push_back(&one.matrix);
        }
        return project(backend, pointers, x, pieces(shape.tokens, piece));
    }
};

/* ---- grouped_project -------------------------------------------------------------------------------- */

constexpr quant::Type kGroupedTypes[] = {quant::Type::f16, quant::Type::q8_0, quant::Type::q4_k};

struct GroupedProjectShape {
    int64_t tokens, groups, rank, columns;
    Types   types;
    Slow    slow = Slow::nowhere;

    std::string name(quant::Type type) const {
        return std::string("grouped_project ") + quant::type_name(type) + " " + by({tokens, groups, rank, columns});
    }
};

constexpr GroupedProjectShape kGroupedProjectShapes[] = {{9, 3, 20, 256, kGroupedTypes},
                                                         {10, 3, 20, 256, kGroupedTypes},
                                                         {10, 8, 20, 256, kGroupedTypes},
                                                         {10, 11, 20, 256, kGroupedTypes}};

struct GroupedProjectCase {
    GroupedProjectShape shape;
    OwnedMatrix         matrix;
    std::vector<float>  x;

    GroupedProjectCase(const GroupedProjectShape &of, quant::Type type) : shape(of) {
        Random random(7);
        matrix = random_matrix(type, shape.groups * shape.rank, shape.columns, random);
        x = random.normals(shape.tokens * shape.groups * shape.columns);
    }

    /* [tokens, groups * rank] */
    std::vector<float> run(Backend &backend, int64_t piece, Layout layout = Layout::file) const {
        const PlacedMatrix placed = place_matrix(backend, matrix, layout);
        const auto         inputs = place(backend, x);
        const auto         out = room<float>(backend, static_cast<size_t>(shape.tokens * shape.groups * shape.rank));
        int64_t            first = 0;
        for (const int64_t tokens : pieces(shape.tokens, piece)) {
            backend.ops->grouped_project({tokens, shape.groups, inputs.get() + first * shape.groups * shape.columns,
                                          &placed.matrix, out.get() + first * shape.groups * shape.rank});
            first += tokens;
        }
        return out.read();
    }
};

} // namespace ds4::backend::parity
