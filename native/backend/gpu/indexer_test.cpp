#include "backend/parity/indexer.h"

#include <cmath>
#include <limits>
#include <string>

#include "backend/gpu/parity_test.h"

namespace ds4::backend::gpu::test {

namespace {

using Case = parity::IndexerSelectCase;
using Choice = parity::IndexerChoice;
using parity::Numbers;
using parity::Scores;

Case case_of(int64_t tokens, int64_t heads, int64_t dim, int64_t top_k, uint64_t position) {
    return parity::indexer_select_case({tokens, heads, dim, 4, top_k, position, Numbers::exact});
}

Choice on_cpu(const Case &c) {
    Backend backend = reference(false);
    return c.run(backend, c.tokens);
}

Choice on_gpu(const Case &c, int64_t piece, Scores scores) {
    Backend backend = gpu(false);
    return c.run(backend, piece, scores);
}

void check_choice(const std::string &name, const Case &c, double tolerance) {
    const Choice got = on_gpu(c, c.tokens, Scores::shown);
    const Choice want = on_cpu(c);
    CHECK_NMSE(name, got.scores, want.scores, tolerance);
    CHECK_NEAR(name + " count", got.count, want.count, 0.0);
    for (int64_t t = 0; t < c.tokens; ++t) {
        const std::vector<int32_t> best = parity::best_rows(c, got.scores, t);
        CHECK(std::equal(best.begin(), best.end(), got.selected.begin() + t * c.top_k));
    }
    if (tolerance == 0.0) {
        CHECK_NEAR(name + " selected", got.selected, want.selected, 0.0);
    }
    for (const int64_t cut : {1, 2, 7}) {
        if (cut <= c.tokens) {
            CHECK(on_gpu(c, cut, Scores::hidden).selected == got.selected);
            CHECK_SAME_BITS(name + " in pieces of " + std::to_string(cut), on_gpu(c, cut, Scores::shown).all(), got.all());
        }
    }
}

} // namespace

TEST("indexer queries equal the processor's") {
    for (const parity::IndexerQueryShape &shape : parity::kIndexerQueryShapes) {
        for (const bool round_trip : {false, true}) {
            if (tried_on_card(shape.slow)) {
                const parity::IndexerQueryCase in(shape, round_trip);
                /* A value next to a boundary of the 4-bit format may fall to the other side. */
                check_parity(in.name(), shape.tokens, false, round_trip ? 1e-3 : 1e-12,
                             [&](Backend &backend, int64_t piece) { return in.run(backend, piece); });
            }
        }
    }
}

TEST("scores equal the processor's and choose the best rows, and every cut has the same bits") {
    for (const parity::IndexerSelectShape &shape : parity::kIndexerSelectShapes) {
        if (tried_on_card(shape.slow)) {
            const double tolerance = shape.numbers == Numbers::exact ? 0.0 : shape.numbers == Numbers::halves ? 1e-10 : 1e-11;
            check_choice(shape.name(), parity::indexer_select_case(shape), tolerance);
        }
    }
}

TEST("a row or a query that halves cannot hold is scored in floats, and its neighbours as before") {
    Case         c = case_of(9, 64, 128, 16, 170);
    const Choice before = on_gpu(c, 9, Scores::shown);
    c.rows[21 * 128 + 5] += 1e-4f;
    c.rows[22 * 128 + 127] = 1e6f;
    c.q[4 * 64 * 128 + 63 * 128 + 100] += 1e-4f;
    check_choice("indexer with inexact halves", c, 1e-11);

    const Choice after = on_gpu(c, 9, Scores::shown);
    for (int64_t t = 0; t < 9; ++t) {
        for (int64_t row = 0; row < c.visible(t); ++row) {
            const auto at = static_cast<size_t>(t * c.row_capacity + row);
            CHECK(t == 4 || row == 21 || row == 22 || before.scores[at] == after.scores[at]);
        }
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
    Case c = case_of(1, 64, 128, 16, 170);
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
    check_choice("indexer of every size", c, 1e-12);
    CHECK(on_gpu(c, 1, Scores::hidden).selected == on_cpu(c).selected);
}

} // namespace ds4::backend::gpu::test
