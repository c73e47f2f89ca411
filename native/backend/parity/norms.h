/* The operations that normalise and rotate vectors: rms_norm, query, window. */
#pragma once

#include "backend/parity/matrices.h"

namespace ds4::backend::parity {

/* ---- rms_norm --------------------------------------------------------------------------------------- */

struct RmsNormShape {
    int64_t rows, width;
    Slow    slow = Slow::nowhere;

    std::string name() const { return "rms_norm " + by({rows, width}); }
};

/* Widths for each of a card's ways through a row, the models' own, and some that are no multiple of anything. */
constexpr RmsNormShape kRmsNormShapes[] = {{12, 1},   {12, 24},  {8, 64},    {12, 128}, {12, 1030}, {8, 1024},
                                           {8, 1536}, {8, 2048}, {12, 4096}, {8, 7168}, {8, 8200}};

enum class Output { in_place, apart };

struct RmsNormCase {
    RmsNormShape       shape;
    std::vector<float> x, weight;

    explicit RmsNormCase(const RmsNormShape &of) : shape(of) {
        Random random(11);
        x = random.normals(shape.rows * shape.width);
        weight = random.normals(shape.width);
    }

    /* [rows, width] */
    std::vector<float> run(Backend &backend, int64_t piece, Output output = Output::in_place) const {
        const auto in = place(backend, x), placed_weight = place(backend, weight);
        const auto apart = room<float>(backend, x.size());
        const auto &out = output == Output::in_place ? in : apart;
        int64_t    first = 0;
        for (const int64_t rows : pieces(shape.rows, piece)) {
            const int64_t at = first * shape.width;
            backend.ops->rms_norm({rows, shape.width, in.get() + at, placed_weight.get(), 1e-6f, out.get() + at});
            first += rows;
        }
        return out.read();
    }
};

/* ---- query ------------------------------------------------------------------------------------------ */

struct QueryShape {
    int64_t  tokens, heads, dim, dims;
    uint64_t position;
    Slow     slow = Slow::nowhere;

    std::string name() const { return "query " + by({tokens, heads, dim}) + " at " + std::to_string(position); }
};

/* The models' heads, others, heads that turn as a whole, and positions far out. */
constexpr QueryShape kQueryShapes[] = {{10, 8, 64, 32, 700},  {10, 4, 512, 64, 700},      {10, 3, 20, 6, 700},
                                       {10, 64, 512, 64, 0},  {10, 3, 512, 64, 1000000},  {10, 5, 128, 128, 3},
                                       {10, 3, 384, 6, 9},    {10, 3, 21, 6, 99999},      {10, 2, 32, 16, 12},
                                       {10, 1, 640, 64, 5}};

struct QueryCase {
    QueryShape         shape;
    std::vector<float> q, frequency;

    explicit QueryCase(const QueryShape &of) : shape(of), frequency(frequencies(of.dims)) {
        Random random(12);
        q = random.normals(shape.tokens * shape.heads * shape.dim, 3.0f);
    }

    /* [tokens, heads, dim] */
    std::vector<float> run(Backend &backend, int64_t piece) const {
        const auto out = place(backend, q);
        int64_t    first = 0;
        for (const int64_t tokens : pieces(shape.tokens, piece)) {
            backend.ops->query({tokens, shape.heads, shape.dim, shape.position + static_cast<uint64_t>(first),
                                {frequency.data(), shape.dims}, 1e-6f, out.get() + first * shape.heads * shape.dim});
            first += tokens;
        }
        return out.read();
    }
};

/* ---- window ----------------------------------------------------------------------------------------- */

struct WindowShape {
    int64_t  tokens, dim, dims, ring_rows;
    uint64_t position;
    Slow     slow = Slow::nowhere;

    std::string name() const {
        return "window " + by({tokens, dim}) + " ring " + std::to_string(ring_rows) + " at " + std::to_string(position);
    }
};

/* Batches that end in front of the ring's end, at it and behind it. */
constexpr WindowShape kWindowShapes[] = {{20, 512, 64, 147, 0},   {20, 512, 64, 147, 1000000}, {20, 512, 16, 30, 29},
                                         {20, 128, 64, 24, 7},    {20, 192, 64, 24, 1000},     {20, 32, 16, 40, 100},
                                         {20, 21, 6, 20, 3}};

struct WindowCase {
    WindowShape        shape;
    bool               round_trip;
    std::vector<float> kv, norm, frequency;

    WindowCase(const WindowShape &of, bool rounded) : shape(of), round_trip(rounded), frequency(frequencies(of.dims)) {
        Random random(13);
        kv = random.normals(shape.tokens * shape.dim);
        norm = random.normals(shape.dim);
    }

    std::string name() const { return shape.name() + (round_trip ? " rounded" : ""); }

    /* [ring_rows, dim], -1 where nothing was written. */
    std::vector<float> run(Backend &backend, int64_t piece) const {
        const auto from = place(backend, kv), weight = place(backend, norm);
        const auto ring = place(backend, std::vector<float>(static_cast<size_t>(shape.ring_rows * shape.dim), -1.0f));
        int64_t    first = 0;
        for (const int64_t tokens : pieces(shape.tokens, piece)) {
            backend.ops->window({tokens, shape.dim, shape.position + static_cast<uint64_t>(first),
                                 {frequency.data(), shape.dims}, from.get() + first * shape.dim, weight.get(), 1e-6f,
                                 round_trip, shape.ring_rows, ring.get()});
            first += tokens;
        }
        return ring.read();
    }
};

} // namespace ds4::backend::parity
