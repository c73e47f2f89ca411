#include "backend/gpu/parity_test.h"

#include <bit>
#include <cmath>
#include <limits>
#include <string>

namespace ds4::backend::gpu::test {

namespace {

struct Case {
    int64_t            tokens, heads, dim, ratio, top_k;
    uint64_t           position;
    int64_t            row_capacity;
    std::vector<float> q, weights, rows;
};

struct Choice {
    std::vector<int32_t> selected; /* -1 where nothing was written */
    std::vector<int32_t> count;
    std::vector<float>   scores; /* 0 where nothing was written */
};

int64_t visible(const Case &c, int64_t token) {
    return (static_cast<int64_t>(c.position) + token + 1) / c.ratio;
}

/* Numbers that FP4 holds: every dot product is exact, and with weights that become small multiples of a power of two so
 * is every score, in any order. */
std::vector<float> small_numbers(Random &random, int64_t count) {
    constexpr float    kMagnitudes[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    std::vector<float> values(static_cast<size_t>(count));
    for (float &value : values) {
        value = kMagnitudes[random.below(8)] * (random.below(2) == 0 ? 1.0f : -1.0f);
    }
    return values;
}

/* What the factor (heads * dim)^-0.5 turns into a power of two. */
float unit_weight(int64_t heads, int64_t dim) {
    const float scale = 1.0f / std::sqrt(static_cast<float>(heads * dim));
    float       weight = std::nextafter(0x1p-6f / scale, 0.0f);
    while (weight * scale < 0x1p-6f) {
        weight = std::nextafter(weight, 2.0f * weight);
    }
    CHECK(weight * scale == 0x1p-6f);
    return weight;
}

/* Numbers that halves hold, but whose sums are rounded. */
std::vector<float> halves(Random &random, int64_t count) {
    std::vector<float> values = random.normals(count);
    for (float &value : values) {
        value = std::bit_cast<float>(std::bit_cast<uint32_t>(value) & 0xffffe000u);
    }
    return values;
}

enum class Numbers { exact, halves, any };

Case case_of(int64_t tokens, int64_t heads, int64_t dim, int64_t top_k, uint64_t position, Numbers numbers,
             int64_t row_capacity = 0) {
    Random        random(101);
    const int64_t rows = (static_cast<int64_t>(position) + tokens) / 4;
    Case          c{tokens, heads, dim, 4, top_k, position, std::max(rows, row_capacity), {}, {}, {}};
    if (numbers == Numbers::exact) {
        c.q = small_numbers(random, tokens * heads * dim);
        c.rows = small_numbers(random, rows * dim);
        const float unit = unit_weight(heads, dim);
        for (int64_t i = 0; i < tokens * heads; ++i) {
            c.weights.push_back(std::ldexp(random.below(4) == 0 ? -unit : unit, static_cast<int>(random.below(3))));
        }
    } else {
        const bool short_ones = numbers == Numbers::halves;
        c.q = short_ones ? halves(random, tokens * heads * dim) : random.normals(tokens * heads * dim);
        c.rows = short_ones ? halves(random, rows * dim) : random.normals(rows * dim);
        c.weights = random.normals(tokens * heads);
    }
    c.rows.resize(static_cast<size_t>(c.row_capacity * dim), NAN);
    return c;
}

Choice on_cpu(const Case &c) {
    Choice      choice{std::vector<int32_t>(static_cast<size_t>(c.tokens * c.top_k), -1),
                       std::vector<int32_t>(static_cast<size_t>(c.tokens), -1),
                       std::vector<float>(static_cast<size_t>(c.tokens * c.row_capacity))};
    cpu::CpuOps ops = cpu_ops(false);
    ops.indexer_select({c.tokens, c.heads, c.dim, c.ratio, c.top_k, c.position, c.q.data(), c.weights.data(), c.rows.data(),
                        c.row_capacity, choice.selected.data(), choice.count.data(), choice.scores.data(), c.row_capacity});
    return choice;
}

enum class Scores { shown, hidden };

Choice on_gpu(const Case &c, int64_t piece, Scores shown) {
    Backend    backend = gpu(false);
    const auto q = place(backend, c.q);
    const auto weights = place(backend, c.weights);
    const auto rows = place(backend, c.rows);
    const auto selected = place(backend, std::vector<int32_t>(static_cast<size_t>(c.tokens * c.top_k), -1));
    const auto count = place(backend, std::vector<int32_t>(static_cast<size_t>(c.tokens), -1));
    const auto scores = room<float>(backend, static_cast<size_t>(c.tokens * c.row_capacity));
    int64_t    first = 0;
    for (const int64_t tokens : pieces(c.tokens, piece)) {
        backend.ops->indexer_select({tokens, c.heads, c.dim, c.ratio, c.top_k, c.position + static_cast<uint64_t>(first),
                                     q.get() + first * c.heads * c.dim, weights.get() + first * c.heads, rows.get(),
                                     c.row_capacity, selected.get() + first * c.top_k, count.get() + first,
                                     shown == Scores::shown ? scores.get() + first * c.row_capacity : nullptr,
                                     shown == Scores::shown ? c.row_capacity : 0});
        first += tokens;
    }
    return {selected.read(), count.read(), scores.read()};
}

/* What the scores themselves ask for. */
std::vector<int32_t> best_of(const Case &c, const std::vector<float> &scores, int64_t token) {
    std::vector<int32_t> order(static_cast<size_t>(visible(c, token)));
    std::iota(order.begin(), order.end(), 0);
    const float *score = scores.data() + token * c.row_capacity;
    const auto   ranked = [&](int32_t row) {
        return std::isnan(score[row]) ? -std::numeric_limits<float>::infinity() : score[row];
    };
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return ranked(a) > ranked(b); });
    order.resize(static_cast<size_t>(std::min(c.top_k, visible(c, token))));
    std::sort(order.begin(), order.end());
    order.resize(static_cast<size_t>(c.top_k), -1);
    return order;
}

void check_choice(const std::string &name, const Case &c, double tolerance, std::initializer_list<int64_t> cuts) {
    const Choice got = on_gpu(c, c.tokens, Scores::shown);
    const Choice want = on_cpu(c);
    CHECK_NMSE(name, got.scores, want.scores, tolerance);
    CHECK(got.count == want.count);
    for (int64_t t = 0; t < c.tokens; ++t) {
        const std::vector<int32_t> best = best_of(c, got.scores, t);
        CHECK(std::equal(best.begin(), best.end(), got.selected.begin() + t * c.top_k));
    }
    if (tolerance == 0.0) {
        CHECK(got.selected == want.selected);
    }
    for (const int64_t cut : cuts) {
        CHECK(on_gpu(c, cut, Scores::hidden).selected == got.selected);
        const Choice again = on_gpu(c, cut, Scores::shown);
        CHECK(again.selected == got.selected);
        CHECK(again.count == got.count);
        CHECK_SAME_BITS(name + " in pieces of " + std::to_string(cut), again.scores, got.scores);
    }
}

} // namespace

TEST("indexer queries equal the processor's") {
    struct Shape {
        int64_t heads, dim, dims;
    };
    for (const Shape shape : {Shape{64, 128, 64}, Shape{3, 64, 64}, Shape{2, 32, 16}, Shape{3, 16, 8}, Shape{2, 256, 64}}) {
        constexpr int64_t        tokens = 9;
        constexpr uint64_t       position = 8190;
        Random                   random(102);
        const std::vector<float> frequency = frequencies(shape.dims);
        const Rope               rope = {frequency.data(), shape.dims};
        const std::vector<float> q = random.normals(tokens * shape.heads * shape.dim);
        for (const bool round_trip : {false, true}) {
            const auto run = [&](int64_t piece) {
                Backend    backend = gpu(false);
                const auto placed = place(backend, q);
                int64_t    first = 0;
                for (const int64_t count : pieces(tokens, piece)) {
                    backend.ops->indexer_query({count, shape.heads, shape.dim, position + static_cast<uint64_t>(first), rope,
                                                round_trip, placed.get() + first * shape.heads * shape.dim});
                    first += count;
                }
                return placed.read();
            };
            std::vector<float> want = q;
            cpu_ops(false).indexer_query({tokens, shape.heads, shape.dim, position, rope, round_trip, want.data()});
            const std::string        name = "indexer_query dim " + std::to_string(shape.dim);
            const std::vector<float> got = run(tokens);
            /* A value next to a boundary of the 4-bit format may fall to the other side. */
            CHECK_NMSE(name, got, want, round_trip ? 1e-3 : 1e-12);
            for (const int64_t piece : {1, 7}) {
                CHECK_SAME_BITS(name + " in pieces of " + std::to_string(piece), run(piece), got);
            }
        }
    }
}

TEST("exact scores choose the same rows as on the processor") {
    check_choice("indexer 64 x 128", case_of(9, 64, 128, 16, 170, Numbers::exact), 0.0, {1, 2, 7});
    check_choice("indexer 16 x 64", case_of(7, 16, 64, 16, 130, Numbers::exact), 0.0, {1, 3});
    check_choice("indexer 1 x 16", case_of(33, 1, 16, 8, 30, Numbers::exact), 0.0, {1, 7});
}

TEST("scores of any numbers equal the processor's, and every cut has the same bits") {
    check_choice("indexer halves 64 x 128", case_of(9, 64, 128, 16, 170, Numbers::halves), 1e-10, {1, 2, 7});
    check_choice("indexer any 64 x 128", case_of(6, 64, 128, 16, 150, Numbers::any), 1e-11, {1, 4});
    check_choice("indexer any 4 x 20", case_of(33, 4, 20, 8, 20, Numbers::any), 1e-11, {1, 7});
}

TEST("a row or a query that halves cannot hold is scored in floats, and its neighbours as before") {
    Case         c = case_of(9, 64, 128, 16, 170, Numbers::exact);
    const Choice before = on_gpu(c, 9, Scores::shown);
    c.rows[21 * 128 + 5] += 1e-4f;
    c.rows[22 * 128 + 127] = 1e6f;
    c.q[4 * 64 * 128 + 63 * 128 + 100] += 1e-4f;
    check_choice("indexer with inexact halves", c, 1e-11, {1, 7});

    const Choice after = on_gpu(c, 9, Scores::shown);
    for (int64_t t = 0; t < 9; ++t) {
        for (int64_t row = 0; row < visible(c, t); ++row) {
            const auto at = static_cast<size_t>(t * c.row_capacity + row);
            CHECK(t == 4 || row == 21 || row == 22 || before.scores[at] == after.scores[at]);
        }
    }
}

TEST("fewer rows than asked for are all selected") {
    for (const int64_t top_k : {15, 16, 17, 40}) {
        const Case c = case_of(9, 4, 32, top_k, 60, Numbers::exact);
        check_choice("indexer top " + std::to_string(top_k), c, 0.0, {1, 7});
    }
    const Choice none = on_gpu(case_of(3, 64, 128, 8, 0, Numbers::exact, 4), 3, Scores::hidden);
    CHECK((none.count == std::vector<int32_t>{0, 0, 0}));
}

TEST("the choice does not depend on how many rows there is room for") {
    const Case   c = case_of(2, 16, 64, 16, 400, Numbers::exact);
    const Case   roomy = case_of(2, 16, 64, 16, 400, Numbers::exact, 20000);
    const Choice want = on_cpu(c);
    for (const int64_t piece : {1, 2}) {
        CHECK(on_gpu(c, piece, Scores::hidden).selected == want.selected);
        CHECK(on_gpu(roomy, piece, Scores::hidden).selected == want.selected);
    }
}

TEST("very many rows are narrowed down in chunks, with the lower row first among equals") {
    constexpr int64_t rows = 17000, top_k = 700;
    Random            random(103);
    Case              c{2, 1, 4, 4, top_k, 4 * rows - 2, rows, {1, 0, 0, 0, 1, 0, 0, 0}, {1, 1}, {}};
    for (int64_t row = 0; row < rows; ++row) {
        /* Few different scores; the best that are tied lie in both chunks. */
        const float score = row % 97 == 0 ? 9.0f : row % 13 == 0 ? 8.0f : static_cast<float>(random.below(8));
        c.rows.insert(c.rows.end(), {score, 0, 0, 0});
    }
    for (const int64_t end : {rows, int64_t{8192 + 300}, int64_t{8192}}) {
        c.position = static_cast<uint64_t>(4 * end - 2);
        const Choice want = on_cpu(c);
        const Choice got = on_gpu(c, 2, Scores::hidden);
        CHECK(got.selected == want.selected);
        CHECK(got.count == want.count);
        CHECK(on_gpu(c, 1, Scores::shown).selected == want.selected);
    }
}

TEST("equal scores and scores that are not numbers still give valid distinct rows") {
    constexpr int64_t dim = 8;
    for (const float filler : {0.0f, -1.0f, NAN}) {
        Case c{1, 1, dim, 4, 3, 79, 20, std::vector<float>(dim, 1.0f), {1.0f}, std::vector<float>(20 * dim, filler)};
        c.rows[7 * dim] = 5.0f;
        std::fill(c.rows.begin() + 7 * dim + 1, c.rows.begin() + 8 * dim, 0.0f);

        CHECK((on_gpu(c, 1, Scores::hidden).selected == std::vector<int32_t>{0, 1, 7}));
        CHECK((on_gpu(c, 1, Scores::hidden).count == std::vector<int32_t>{3}));
    }
    Case c = case_of(1, 64, 128, 16, 170, Numbers::exact);
    std::fill(c.rows.begin(), c.rows.begin() + 30 * 128, NAN);
    std::fill(c.rows.begin() + 35 * 128, c.rows.end(), std::numeric_limits<float>::infinity());
    CHECK(on_gpu(c, 1, Scores::hidden).selected == on_cpu(c).selected);
}

TEST("scores of both signs and of every size are ranked as numbers") {
    constexpr int64_t rows = 500;
    Random            random(104);
    Case              c{1, 2, 4, 4, 100, 4 * rows - 1, rows, {1, 0, 0, 0, 0, 1, 0, 0}, {1, -1}, {}};
    for (int64_t row = 0; row < rows; ++row) {
        const float score = std::ldexp(random.uniform(), static_cast<int>(random.below(120)) - 60);
        c.rows.insert(c.rows.end(), {score, -score, 0, 0});
    }
    check_choice("indexer of every size", c, 1e-12, {1});
    CHECK(on_gpu(c, 1, Scores::hidden).selected == on_cpu(c).selected);
}

} // namespace ds4::backend::gpu::test
