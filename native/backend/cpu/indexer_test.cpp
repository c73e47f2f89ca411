#include "backend/cpu/ops_test.h"

#include <algorithm>

#include "quant/round_trip.h"

namespace ds4::backend::cpu::test {

namespace {

struct Shape {
    int64_t  tokens, heads, dim, ratio, top_k;
    uint64_t position;
};

constexpr Shape kShapes[] = {{9, 16, 64, 4, 16, 20}, {10, 8, 128, 4, 64, 700}, {8, 64, 128, 4, 512, 5000}, {5, 3, 20, 4, 2, 9}};

} // namespace

TEST("indexer queries equal the reference with and without rounding") {
    constexpr int64_t  tokens = 9, heads = 8, dim = 128, dims = 64;
    constexpr uint64_t position = 90;
    for (const bool round_trip : {false, true}) {
        Random                   random(51);
        const std::vector<float> q = random.normals(tokens * heads * dim);
        const std::vector<float> frequency = frequencies(dims);
        const auto               run = [&](Ops &ops, const std::vector<int64_t> &pieces) {
            std::vector<float> out = q;
            int64_t            first = 0;
            for (const int64_t piece : pieces) {
                ops.indexer_query({piece, heads, dim, position + static_cast<uint64_t>(first), {frequency.data(), dims},
                                   round_trip, out.data() + first * heads * dim});
                first += piece;
            }
            return out;
        };
        /* A value next to a boundary of the 4-bit format may fall to the other side. */
        check_op("indexer_query", tokens, Settings::one_arithmetic, round_trip ? 1e-4 : 1e-12, run, [&](bool) {
            std::vector<double> want;
            for (int64_t v = 0; v < tokens * heads; ++v) {
                std::vector<double> head(q.begin() + v * dim, q.begin() + (v + 1) * dim);
                turn(head, frequency, position + static_cast<uint64_t>(v / heads), 1.0);
                std::vector<float> rounded(head.begin(), head.end());
                if (round_trip) {
                    quant::hadamard(rounded.data(), dim);
                    quant::fp4_round_trip(rounded.data(), dim);
                    head.assign(rounded.begin(), rounded.end());
                }
                want.insert(want.end(), head.begin(), head.end());
            }
            return want;
        });
    }
}

TEST("scores equal the reference and the best rows are selected in ascending order") {
    for (const Shape &shape : kShapes) {
        const int64_t            most = (static_cast<int64_t>(shape.position) + shape.tokens) / shape.ratio;
        const int64_t            width = shape.heads * shape.dim;
        Random                   random(52);
        const std::vector<float> q = random.normals(shape.tokens * width);
        const std::vector<float> weights = random.normals(shape.tokens * shape.heads);
        const std::vector<float> rows = random.normals(most * shape.dim);
        const auto visible = [&](int64_t t) { return (static_cast<int64_t>(shape.position) + t + 1) / shape.ratio; };

        const auto run = [&](Ops &ops, const std::vector<int64_t> &pieces) {
            std::vector<float>   scores(static_cast<size_t>(shape.tokens * most), 0.0f);
            std::vector<int32_t> selected(static_cast<size_t>(shape.tokens * shape.top_k), -1);
            std::vector<int32_t> again = selected;
            std::vector<int32_t> count(static_cast<size_t>(shape.tokens));
            int64_t              first = 0;
            for (const int64_t piece : pieces) {
                IndexerSelectArgs args = {piece, shape.heads, shape.dim, shape.ratio, shape.top_k,
                                          shape.position + static_cast<uint64_t>(first), q.data() + first * width,
                                          weights.data() + first * shape.heads, rows.data(), most,
                                          selected.data() + first * shape.top_k, count.data() + first,
                                          scores.data() + first * most, most};
                ops.indexer_select(args);
                args.scores = nullptr; /* the choice is the same when nobody wants to see why */
                args.selected = again.data() + first * shape.top_k;
                ops.indexer_select(args);
                first += piece;
            }
            CHECK(selected == again);
            for (int64_t t = 0; t < shape.tokens; ++t) {
                std::vector<int32_t> order(static_cast<size_t>(visible(t)));
                std::iota(order.begin(), order.end(), 0);
                const float *score = scores.data() + t * most;
                std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return score[a] > score[b]; });
                order.resize(static_cast<size_t>(std::min(shape.top_k, visible(t))));
                std::sort(order.begin(), order.end());
                CHECK(count[static_cast<size_t>(t)] == static_cast<int32_t>(order.size()));
                CHECK(std::equal(order.begin(), order.end(), selected.begin() + t * shape.top_k));
            }
            return scores;
        };
        check_op("indexer_select dim " + std::to_string(shape.dim), shape.tokens, Settings::one_arithmetic, 1e-11, run, [&](bool) {
            std::vector<double> want(static_cast<size_t>(shape.tokens * most));
            const double        scale = 1.0 / std::sqrt(static_cast<double>(width));
            for (int64_t t = 0; t < shape.tokens; ++t) {
                for (int64_t c = 0; c < visible(t); ++c) {
                    double score = 0.0;
                    for (int64_t h = 0; h < shape.heads; ++h) {
                        double dot = 0.0;
                        for (int64_t i = 0; i < shape.dim; ++i) {
                            dot += static_cast<double>(q[static_cast<size_t>((t * shape.heads + h) * shape.dim + i)]) *
                                   static_cast<double>(rows[static_cast<size_t>(c * shape.dim + i)]);
                        }
                        score += static_cast<double>(weights[static_cast<size_t>(t * shape.heads + h)]) * scale *
                                 std::max(dot, 0.0);
                    }
                    want[static_cast<size_t>(t * most + c)] = score;
                }
            }
            return want;
        });
    }
}

TEST("equal scores and scores that are not numbers still give valid distinct rows") {
    for (const uint32_t set : instruction_sets()) {
        for (const float filler : {0.0f, NAN}) {
            constexpr int64_t        dim = 8;
            std::vector<float>       rows(20 * dim, filler);
            const std::vector<float> q(dim, 1.0f);
            const float              weight = 1.0f;
            rows[7 * dim] = 5.0f;
            std::fill(rows.begin() + 7 * dim + 1, rows.begin() + 8 * dim, 0.0f);
            std::vector<int32_t> selected(3, -1);
            int32_t              count = 0;
            Backend              backend = open(1, false, set);

            backend.ops->indexer_select({1, 1, dim, 4, 3, 79, q.data(), &weight, rows.data(), 20, selected.data(), &count,
                                         nullptr, 0});

            CHECK(count == 3);
            CHECK((selected == std::vector<int32_t>{0, 1, 7}));
        }
    }
}

} // namespace ds4::backend::cpu::test
