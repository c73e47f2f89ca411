/* Which compressed rows a query attends to. */
#include "backend/cpu/cpu_ops.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace ds4::backend::cpu {

namespace {

/* Not-a-number counts as the lowest. */
float ranked(float score) {
    return std::isnan(score) ? -std::numeric_limits<float>::infinity() : score;
}

/* The top_k best of `visible` scores, lower index first among equals, in ascending order of index. */
int64_t select(const float *scores, int64_t visible, int64_t top_k, std::vector<int32_t> &order, int32_t *selected) {
    if (visible <= top_k) {
        std::iota(selected, selected + visible, 0);
        return visible;
    }
    order.resize(static_cast<size_t>(visible));
    std::iota(order.begin(), order.end(), 0);
    std::nth_element(order.begin(), order.begin() + top_k, order.end(), [&](int32_t a, int32_t b) {
        const float x = ranked(scores[a]);
        const float y = ranked(scores[b]);
        return x != y ? x > y : a < b;
    });
    std::sort(order.begin(), order.begin() + top_k);
    std::copy_n(order.begin(), top_k, selected);
    return top_k;
}

} // namespace

void CpuOps::indexer_query(const IndexerQueryArgs &args) {
    const Angles  angles = rope_.of(args.rope, args.position, args.tokens, pool_);
    const int64_t vectors = args.tokens * args.heads;
    pool_.run_ranges(vectors, vectors * args.dim * 8, [&](int64_t first, int64_t last, uint32_t) {
        for (int64_t v = first; v < last; ++v) {
            const int64_t token = v / args.heads;
            float        *q = args.q + v * args.dim;
            kernels_.rotate(q + args.dim - args.rope.dims, angles.cosine_of(token), angles.sine_of(token), angles.pairs);
            if (args.round_trip) {
                kernels_.hadamard(q, args.dim);
                kernels_.fp4_round_trip(q, args.dim);
            }
        }
    });
}

void CpuOps::indexer_select(const IndexerSelectArgs &args) {
    const float scale = 1.0f / std::sqrt(static_cast<float>(args.heads * args.dim));
    const auto  visible_of = [&](int64_t t) {
        return static_cast<int64_t>((args.position + static_cast<uint64_t>(t) + 1) / static_cast<uint64_t>(args.ratio));
    };
    /* Scores that nobody asked for and that decide nothing are not computed. */
    const auto wanted = [&](int64_t visible) { return args.scores != nullptr || visible > args.top_k; };

    const int64_t most = visible_of(args.tokens - 1);
    const int64_t stride = args.scores != nullptr ? args.scores_stride : most;
    auto         *weights = mixes_.take<float>(args.tokens * args.heads);
    for (int64_t i = 0; i < args.tokens * args.heads; ++i) {
        weights[i] = args.weights[i] * scale;
    }

    /* As many tokens at a time as a bounded scratch holds; the rows of a token in pieces, because one token of a long
     * text has enough of them for all threads. */
    constexpr int64_t kScratchScores = int64_t{1} << 22;
    constexpr int64_t kPieceRows = 512;
    int64_t           batch = args.tokens;
    if (args.scores == nullptr) {
        batch = std::clamp(kScratchScores / std::max<int64_t>(most, 1), int64_t{1}, args.tokens);
    }
    const int64_t     pieces = (most + kPieceRows - 1) / kPieceRows;
    for (int64_t start = 0; start < args.tokens; start += batch) {
        const int64_t tokens = std::min(batch, args.tokens - start);
        float        *scores = args.scores;
        if (scores != nullptr) {
            scores += start * stride;
        } else if (wanted(most)) {
            scores = scores_.take<float>(tokens * stride);
        }
        const auto scores_of = [&](int64_t t) { return scores != nullptr ? scores + t * stride : nullptr; };

        if (wanted(most)) {
            pool_.run(tokens * pieces, tokens * most * args.heads * args.dim, [&](int64_t item, uint32_t) {
                const int64_t t = item / pieces;
                const int64_t first = item % pieces * kPieceRows;
                const int64_t visible = visible_of(start + t);
                if (!wanted(visible) || first >= visible) {
                    return;
                }
                kernels_.index_scores({
                    .heads = args.heads,
                    .dim = args.dim,
                    .row_count = std::min(kPieceRows, visible - first),
                    .q = args.q + (start + t) * args.heads * args.dim,
                    .weights = weights + (start + t) * args.heads,
                    .rows = args.rows + first * args.dim,
                    .scores = scores_of(t) + first,
                });
            });
        }
        pool_.run_ranges(tokens, tokens * most * 8, [&](int64_t first, int64_t last, uint32_t thread) {
            for (int64_t t = first; t < last; ++t) {
                args.count[start + t] = static_cast<int32_t>(
                    select(scores_of(t), visible_of(start + t), args.top_k, workspaces_[thread].order,
                           args.selected + (start + t) * args.top_k));
            }
        });
    }
}

} // namespace ds4::backend::cpu
