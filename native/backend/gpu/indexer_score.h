/* Scores of compressed rows. */
#pragma once

#include <cstdint>

#include "backend/gpu/gpu_ops.h"
#include "backend/gpu/launch.h"

namespace ds4::backend::gpu {

/* Up to this many tokens, which leave most of the card idle otherwise, a token's rows are dealt out over all of it. */
constexpr int64_t kFewTokens = 4;

struct ScoreJob {
    int32_t      tokens, heads, dim;
    int32_t      unscored; /* tokens that see no more rows than this need no scores */
    int64_t      ratio;
    Position     at;
    float        scale;
    const float *q;       /* [tokens, heads, dim] */
    const float *weights; /* [tokens, heads] */
    const float *rows;    /* [.., dim] */
    float       *scores;  /* out [tokens, scores_stride] */
    int64_t      scores_stride;

    /* Rows to score. */
    DS4_DEVICE int wanted(int token) const {
        const auto visible = static_cast<int>((position_of(at) + static_cast<unsigned>(token) + 1) /
                                              static_cast<uint64_t>(ratio));
        return visible > unscored ? visible : 0;
    }
    DS4_DEVICE const float *heads_of(int token) const { return q + static_cast<int64_t>(token) * heads * dim; }
    DS4_DEVICE const float *weights_of(int token) const { return weights + static_cast<int64_t>(token) * heads; }
    DS4_DEVICE const float *row_of(int row) const { return rows + static_cast<int64_t>(row) * dim; }
    DS4_DEVICE float       *scores_of(int token) const { return scores + token * scores_stride; }
};

/* As Ops::indexer_select says. What is started depends on the arguments only, never on the position; `most_rows` are
 * visible to the last token at most. */
void score_rows(const Stream &stream, const CardFacts &facts, const ScoreJob &job, int64_t most_rows);

} // namespace ds4::backend::gpu
