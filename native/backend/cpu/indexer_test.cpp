#include "backend/cpu/ops_test.h"

#include "backend/parity/indexer.h"
#include "quant/round_trip.h"

namespace ds4::backend::cpu::test {

namespace {

std::vector<double> in_double(const parity::IndexerQueryCase &in) {
    const parity::IndexerQueryShape &shape = in.shape;
    std::vector<double>              want;
    for (int64_t v = 0; v < shape.tokens * shape.heads; ++v) {
        std::vector<double> head(in.q.begin() + v * shape.dim, in.q.begin() + (v + 1) * shape.dim);
        turn(head, in.frequency, shape.position + static_cast<uint64_t>(v / shape.heads), 1.0);
        std::vector<float> rounded(head.begin(), head.end());
        if (in.round_trip) {
            quant::hadamard(rounded.data(), shape.dim);
            quant::fp4_round_trip(rounded.data(), shape.dim);
            head.assign(rounded.begin(), rounded.end());
        }
        want.insert(want.end(), head.begin(), head.end());
    }
    return want;
}

/* The scores; what they ask for is checked as they come. */
std::vector<double> in_double(const parity::IndexerSelectCase &in) {
    std::vector<double> want(static_cast<size_t>(in.tokens * in.row_capacity));
    const double        scale = 1.0 / std::sqrt(static_cast<double>(in.heads * in.dim));
    for (int64_t t = 0; t < in.tokens; ++t) {
        for (int64_t c = 0; c < in.visible(t); ++c) {
            double score = 0.0;
            for (int64_t h = 0; h < in.heads; ++h) {
                double dot = 0.0;
                for (int64_t i = 0; i < in.dim; ++i) {
                    dot += static_cast<double>(in.q[static_cast<size_t>((t * in.heads + h) * in.dim + i)]) *
                           static_cast<double>(in.rows[static_cast<size_t>(c * in.dim + i)]);
                }
                score += static_cast<double>(in.weights[static_cast<size_t>(t * in.heads + h)]) * scale * std::max(dot, 0.0);
            }
            want[static_cast<size_t>(t * in.row_capacity + c)] = score;
        }
    }
    return want;
}

} // namespace

TEST("indexer queries equal the reference with and without rounding") {
    for (const parity::IndexerQueryShape &shape : parity::kIndexerQueryShapes) {
        for (const bool round_trip : {false, true}) {
            if (tried_on_cpu(shape.slow)) {
                const parity::IndexerQueryCase in(shape, round_trip);
                /* A value next to a boundary of the 4-bit format may fall to the other side. */
                check_op(in.name(), shape.tokens, Settings::one_arithmetic, round_trip ? 1e-4 : 1e-12,
                         [&](Backend &backend, int64_t piece) { return in.run(backend, piece); },
                         [&](bool) { return in_double(in); });
            }
        }
    }
}

TEST("scores equal the reference and the best rows are selected in ascending order") {
    for (const parity::IndexerSelectShape &shape : parity::kIndexerSelectShapes) {
        if (!tried_on_cpu(shape.slow)) {
            continue;
        }
        const parity::IndexerSelectCase in = parity::indexer_select_case(shape);
        const auto                      run = [&](Backend &backend, int64_t piece) {
            const parity::IndexerChoice choice = in.run(backend, piece);
            /* The choice is the same when nobody wants to see why. */
            const parity::IndexerChoice again = in.run(backend, piece, parity::Scores::hidden);
            CHECK(choice.selected == again.selected && choice.count == again.count);
            for (int64_t t = 0; t < in.tokens; ++t) {
                const std::vector<int32_t> best = parity::best_rows(in, choice.scores, t);
                CHECK(choice.count[static_cast<size_t>(t)] == std::min(in.top_k, in.visible(t)));
                CHECK(std::equal(best.begin(), best.end(), choice.selected.begin() + t * in.top_k));
            }
            return choice.scores;
        };
        check_op(shape.name(), shape.tokens, Settings::one_arithmetic, 1e-11, run, [&](bool) { return in_double(in); });
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
