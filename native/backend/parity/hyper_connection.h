/* hc_pre, hc_post and hc_head, over one table. */
#pragma once

#include "backend/parity/matrices.h"

namespace ds4::backend::parity {

struct StreamsShape {
    int64_t tokens, hc, width;
    Types   types = kF16; /* of the mixing weights */
    int64_t iterations = 20;
    Slow    slow = Slow::nowhere;

    int64_t     columns() const { return hc * width; }
    int64_t     mixes() const { return 2 * hc + hc * hc; }
    std::string name(const char *op) const {
        return std::string(op) + " " + by({tokens, hc, width}) +
               (iterations != 20 ? " after " + std::to_string(iterations) + " steps" : "");
    }
};

constexpr StreamsShape kStreamsShapes[] = {
    {10, 4, 128, kF32AndF16}, {9, 4, 1000, kF32AndF16}, {3, 2, 40, kF32AndF16}, {4, 3, 64, kF32AndF16},
    {1, 4, 4096, kF32AndF16},
    /* The dimensions of a real model; few streams and many; widths that are no multiple of what a card's thread, slice or
     * block takes; more tokens than blocks, so that a block takes several. */
    {3, 4, 4096}, {9, 4, 128}, {8, 4, 1000}, {3, 4, 30}, {2, 4, 2048}, {2, 4, 7168}, {2, 4, 8196}, {2, 1, 1536}, {2, 16, 72},
    {1700, 4, 64},
    {2, 4, 320, kWeightTypes},
    {1, 3, 64, kF32, 1}, {1, 3, 64, kF32, 2}, {1, 3, 64, kF32, 7},
    {1, 4, 64, kF32, 1}, {1, 4, 64, kF32, 2}, {1, 4, 64, kF32, 7},
};

/* Pieces of which a long batch is not made of too many. */
inline int64_t short_piece(const StreamsShape &shape) {
    return shape.tokens > 10 ? 901 : 1;
}

struct HcPreCase {
    struct Outputs {
        std::vector<float> x, post, comb;

        std::vector<float> all() const {
            std::vector<float> values = x;
            append(values, post);
            append(values, comb);
            return values;
        }
    };

    StreamsShape       shape;
    quant::Type        type;
    OwnedMatrix        fn;
    std::vector<float> streams, base, scale, norm;

    HcPreCase(const StreamsShape &of, quant::Type of_type) : shape(of), type(of_type), scale({0.1f, 0.2f, 0.15f}) {
        Random random(21);
        fn = random_matrix(type, shape.mixes(), shape.columns(), random);
        streams = random.normals(shape.tokens * shape.columns());
        base = random.normals(shape.mixes());
        norm = random.normals(shape.width);
    }

    std::string name() const { return shape.name("hc_pre") + " " + quant::type_name(type); }

    /* [tokens, width], [tokens, hc], [tokens, hc, hc] */
    Outputs run(Backend &backend, int64_t piece, Layout layout = Layout::file) const {
        const auto tokens = static_cast<size_t>(shape.tokens), hc = static_cast<size_t>(shape.hc);
        const auto matrix = place_matrix(backend, fn, layout);
        const auto placed = place(backend, streams), placed_base = place(backend, base);
        const auto placed_scale = place(backend, scale), placed_norm = place(backend, norm);
        const auto x = room<float>(backend, tokens * static_cast<size_t>(shape.width));
        const auto post = room<float>(backend, tokens * hc), comb = room<float>(backend, tokens * hc * hc);
        int64_t    first = 0;
        for (const int64_t count : pieces(shape.tokens, piece)) {
            backend.ops->hc_pre({count, shape.hc, shape.width, placed.get() + first * shape.columns(), &matrix.matrix,
                                 placed_base.get(), placed_scale.get(), shape.iterations, 1e-6f, placed_norm.get(), 1e-6f,
                                 x.get() + first * shape.width, post.get() + first * shape.hc,
                                 comb.get() + first * shape.hc * shape.hc});
            first += count;
        }
        return {x.read(), post.read(), comb.read()};
    }
};

struct HcPostCase {
    StreamsShape       shape;
    std::vector<float> streams, y, post, comb;

    explicit HcPostCase(const StreamsShape &of) : shape(of) {
        Random random(22);
        streams = random.normals(shape.tokens * shape.columns());
        y = random.normals(shape.tokens * shape.width);
        post = random.normals(shape.tokens * shape.hc);
        comb = random.normals(shape.tokens * shape.hc * shape.hc);
    }

    /* [tokens, hc, width], then what `bad_layer` has become, which was -1. */
    std::vector<float> run(Backend &backend, int64_t piece) const {
        const auto out = place(backend, streams), placed_y = place(backend, y);
        const auto placed_post = place(backend, post), placed_comb = place(backend, comb);
        const auto bad_layer = place(backend, std::vector<int32_t>{-1});
        int64_t    first = 0;
        for (const int64_t count : pieces(shape.tokens, piece)) {
            backend.ops->hc_post({count, shape.hc, shape.width, out.get() + first * shape.columns(),
                                  placed_y.get() + first * shape.width, placed_post.get() + first * shape.hc,
                                  placed_comb.get() + first * shape.hc * shape.hc, 3, bad_layer.get()});
            first += count;
        }
        std::vector<float> all = out.read();
        append(all, bad_layer.read());
        return all;
    }
};

struct HcHeadCase {
    StreamsShape       shape;
    quant::Type        type;
    OwnedMatrix        fn;
    std::vector<float> streams, base, scale, norm;

    HcHeadCase(const StreamsShape &of, quant::Type of_type) : shape(of), type(of_type), scale({0.3f}) {
        Random random(23);
        fn = random_matrix(type, shape.hc, shape.columns(), random);
        streams = random.normals(shape.tokens * shape.columns());
        base = random.normals(shape.hc);
        norm = random.normals(shape.width);
    }

    std::string name() const { return shape.name("hc_head") + " " + quant::type_name(type); }

    /* [tokens, width] */
    std::vector<float> run(Backend &backend, int64_t piece) const {
        const auto matrix = place_matrix(backend, fn, Layout::file);
        const auto placed = place(backend, streams), placed_base = place(backend, base);
        const auto placed_scale = place(backend, scale), placed_norm = place(backend, norm);
        const auto x = room<float>(backend, static_cast<size_t>(shape.tokens * shape.width));
        int64_t    first = 0;
        for (const int64_t count : pieces(shape.tokens, piece)) {
            backend.ops->hc_head({count, shape.hc, shape.width, placed.get() + first * shape.columns(), &matrix.matrix,
                                  placed_base.get(), placed_scale.get(), 1e-6f, placed_norm.get(), 1e-6f,
                                  x.get() + first * shape.width});
            first += count;
        }
        return x.read();
    }
};

} // namespace ds4::backend::parity
