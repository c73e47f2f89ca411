/* indexer_query and indexer_select. */
#pragma once

#include "backend/parity/matrices.h"

namespace ds4::backend::parity {

/* ---- indexer_query ---------------------------------------------------------------------------------- */

struct IndexerQueryShape {
    int64_t  tokens, heads, dim, dims;
    uint64_t position;
    Slow     slow = Slow::nowhere;

    std::string name() const { return "indexer_query " + by({tokens, heads, dim}) + " at " + std::to_string(position); }
};

/* The models' heads; heads that turn as a whole; heads shorter and longer than a group of lanes takes. */
constexpr IndexerQueryShape kIndexerQueryShapes[] = {{9, 8, 128, 64, 90},   {9, 64, 128, 64, 8190}, {9, 3, 64, 64, 8190},
                                                     {9, 2, 32, 16, 8190},  {9, 3, 16, 8, 8190},    {9, 2, 256, 64, 8190}};

struct IndexerQueryCase {
    IndexerQueryShape  shape;
    bool               round_trip;
    std::vector<float> q, frequency;

    IndexerQueryCase(const IndexerQueryShape &of, bool rounded)
        : shape(of), round_trip(rounded), frequency(frequencies(of.dims)) {
        Random random(51);
        q = random.normals(shape.tokens * shape.heads * shape.dim);
    }

    std::string name() const { return shape.name() + (round_trip ? " rounded" : ""); }

    /* [tokens, heads, dim] */
    std::vector<float> run(Backend &backend, int64_t piece) const {
        const auto out = place(backend, q);
        int64_t    first = 0;
        for (const int64_t tokens : pieces(shape.tokens, piece)) {
            backend.ops->indexer_query({tokens, shape.heads, shape.dim, shape.position + static_cast<uint64_t>(first),
                                        {frequency.data(), shape.dims}, round_trip,
                                        out.get() + first * shape.heads * shape.dim});
            first += tokens;
        }
        return out.read();
    }
};

/* ---- indexer_select --------------------------------------------------------------------------------- */

/* exact: queries and rows that FP4 holds, with weights that make every score a small multiple of a power of two, so that
 * it is exact in any order of summing. halves: numbers that FP16 holds, whose sums are rounded. */
enum class Numbers { exact, halves, any };

struct IndexerSelectShape {
    int64_t  tokens, heads, dim, ratio, top_k;
    uint64_t position;
    Numbers  numbers;
    int64_t  row_capacity = 0; /* 0: the rows that are visible */
    Slow     slow = Slow::nowhere;

    std::string name() const {
        constexpr const char *kNames[] = {" exact", " halves", ""};
        return "indexer_select " + by({tokens, heads, dim}) + " top " + std::to_string(top_k) + " at " +
               std::to_string(position) + (row_capacity != 0 ? " room for " + std::to_string(row_capacity) : "") +
               kNames[static_cast<int>(numbers)];
    }
};

constexpr IndexerSelectShape kIndexerSelectShapes[] = {
    {9, 16, 64, 4, 16, 20, Numbers::any},
    {10, 8, 128, 4, 64, 700, Numbers::any},
    {8, 64, 128, 4, 512, 5000, Numbers::any, 0, Slow::emulated},
    {5, 3, 20, 4, 2, 9, Numbers::any},
    {9, 64, 128, 4, 16, 170, Numbers::exact},
    {7, 16, 64, 4, 16, 130, Numbers::exact},
    {33, 1, 16, 4, 8, 30, Numbers::exact},
    {9, 64, 128, 4, 16, 170, Numbers::halves},
    {6, 64, 128, 4, 16, 150, Numbers::any},
    {33, 4, 20, 4, 8, 20, Numbers::any},
    /* Just as many rows as are asked for, one more, one less, far fewer, none. */
    {9, 4, 32, 4, 15, 60, Numbers::exact},
    {9, 4, 32, 4, 16, 60, Numbers::exact},
    {9, 4, 32, 4, 17, 60, Numbers::exact},
    {9, 4, 32, 4, 40, 60, Numbers::exact},
    {3, 64, 128, 4, 8, 0, Numbers::exact, 4},
    {2, 16, 64, 4, 16, 400, Numbers::exact},
    {2, 16, 64, 4, 16, 400, Numbers::exact, 20000},
};

struct IndexerChoice {
    std::vector<int32_t> selected; /* -1 where nothing was written */
    std::vector<int32_t> count;
    std::vector<float>   scores; /* 0 where nothing was written */

    std::vector<float> all() const {
        std::vector<float> values = scores;
        append(values, selected);
        append(values, count);
        return values;
    }
};

enum class Scores { shown, hidden };

struct IndexerSelectCase {
    int64_t            tokens, heads, dim, ratio, top_k;
    uint64_t           position;
    int64_t            row_capacity;
    std::vector<float> q, weights, rows;

    int64_t visible(int64_t token) const { return (static_cast<int64_t>(position) + token + 1) / ratio; }

    /* [tokens, top_k], [tokens], [tokens, row_capacity] */
    IndexerChoice run(Backend &backend, int64_t piece, Scores scores = Scores::shown) const {
        const bool shown = scores == Scores::shown;
        const auto placed_q = place(backend, q), placed_weights = place(backend, weights), placed_rows = place(backend, rows);
        const auto selected = place(backend, std::vector<int32_t>(static_cast<size_t>(tokens * top_k), -1));
        const auto count = place(backend, std::vector<int32_t>(static_cast<size_t>(tokens), -1));
        const auto out = room<float>(backend, static_cast<size_t>(tokens * row_capacity));
        int64_t    first = 0;
        for (const int64_t some : pieces(tokens, piece)) {
            backend.ops->indexer_select({some, heads, dim, ratio, top_k, position + static_cast<uint64_t>(first),
                                         placed_q.get() + first * heads * dim, placed_weights.get() + first * heads,
                                         placed_rows.get(), row_capacity, selected.get() + first * top_k, count.get() + first,
                                         shown ? out.get() + first * row_capacity : nullptr, shown ? row_capacity : 0});
            first += some;
        }
        return {selected.read(), count.read(), out.read()};
    }
};

inline std::vector<float> small_numbers(Random &random, int64_t count) {
    constexpr float    kMagnitudes[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    std::vector<float> values(static_cast<size_t>(count));
    for (float &value : values) {
        value = kMagnitudes[random.below(8)] * (random.below(2) == 0 ? 1.0f : -1.0f);
    }
    return values;
}

/* What the factor (heads * dim)^-0.5 turns into a power of two. */
inline float unit_weight(int64_t heads, int64_t dim) {
    const float scale = 1.0f / std::sqrt(static_cast<float>(heads * dim));
    float       weight = std::nextafter(0x1p-6f / scale, 0.0f);
    while (weight * scale < 0x1p-6f) {
        weight = std::nextafter(weight, 2.0f * weight);
    }
    CHECK(weight * scale == 0x1p-6f);
    return weight;
}

inline std::vector<float> half_numbers(Random &random, int64_t count) {
    std::vector<float> values = random.normals(count);
    for (float &value : values) {
        value = std::bit_cast<float>(std::bit_cast<uint32_t>(value) & 0xffffe000u);
    }
    return values;
}

/* Rows that nobody can see are not numbers. */
inline IndexerSelectCase indexer_select_case(const IndexerSelectShape &shape) {
    Random            random(101);
    const int64_t     rows = (static_cast<int64_t>(shape.position) + shape.tokens) / shape.ratio;
    const int64_t     queries = shape.tokens * shape.heads;
    IndexerSelectCase one{shape.tokens, shape.heads, shape.dim, shape.ratio, shape.top_k, shape.position,
                          std::max(rows, shape.row_capacity), {}, {}, {}};
    if (shape.numbers == Numbers::exact) {
        one.q = small_numbers(random, queries * shape.dim);
        one.rows = small_numbers(random, rows * shape.dim);
        const float unit = unit_weight(shape.heads, shape.dim);
        for (int64_t i = 0; i < queries; ++i) {
            one.weights.push_back(std::ldexp(random.below(4) == 0 ? -unit : unit, static_cast<int>(random.below(3))));
        }
    } else {
        const bool halves = shape.numbers == Numbers::halves;
        one.q = halves ? half_numbers(random, queries * shape.dim) : random.normals(queries * shape.dim);
        one.rows = halves ? half_numbers(random, rows * shape.dim) : random.normals(rows * shape.dim);
        one.weights = random.normals(queries);
    }
    one.rows.resize(static_cast<size_t>(one.row_capacity * shape.dim), NAN);
    return one;
}

/* What the scores themselves ask for, -1 behind it: lower row first among equals, not-a-number last, in ascending order. */
inline std::vector<int32_t> best_rows(const IndexerSelectCase &one, const std::vector<float> &scores, int64_t token) {
    std::vector<int32_t> order;
    for (int64_t row = 0; row < one.visible(token); ++row) {
        order.push_back(static_cast<int32_t>(row));
    }
    const float *score = scores.data() + token * one.row_capacity;
    const auto   ranked = [&](int32_t row) { return std::isnan(score[row]) ? -INFINITY : score[row]; };
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return ranked(a) > ranked(b); });
    order.resize(static_cast<size_t>(std::min(one.top_k, one.visible(token))));
    std::sort(order.begin(), order.end());
    order.resize(static_cast<size_t>(one.top_k), -1);
    return order;
}

} // namespace ds4::backend::parity
