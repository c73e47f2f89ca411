/* From the residual streams to logits, only for the tokens whose logits somebody wants. */
#include <algorithm>
#include <array>

#include "model/parts.h"

namespace ds4::model {

namespace {

void project_rows(const Batch &batch, const HeadWeights &weights, int64_t token, int64_t rows) {
    const Shape &shape = batch.shape;
    Workspace   &work = batch.work;
    batch.ops.hc_head({
        .tokens = rows,
        .hc = shape.hc_count,
        .width = shape.embedding,
        .streams = work.streams + token * shape.hc_count * shape.embedding,
        .fn = &weights.hc.fn,
        .base = weights.hc.base,
        .scale = weights.hc.scale,
        .hc_epsilon = shape.hc_epsilon,
        .norm = weights.norm,
        .rms_epsilon = shape.rms_epsilon,
        .x = work.head_x,
    });
    const std::array<backend::Projection, 1> projections = {{{&weights.output, work.logits}}};
    batch.ops.project({.tokens = rows, .x = work.head_x, .projections = projections});
}

/* The best of one row of logits; false if they are not all finite. */
bool best(const Batch &batch, const float *logits, std::span<float> logit, std::span<int32_t> id) {
    return batch.ops.best({
        .vocab = batch.shape.vocab,
        .count = static_cast<int64_t>(logit.size()),
        .logits = logits,
        .logit = logit.data(),
        .id = id.data(),
    });
}

} // namespace

int64_t run_head(const Batch &batch, const HeadWeights &weights, const HeadRequest &request) {
    const int64_t vocab = batch.shape.vocab;
    const int64_t tokens = batch.tokens();
    const int64_t first = tokens - std::max<int64_t>(request.logits_rows, 1);

    for (int64_t token = first; token < tokens; token += batch.work.head_rows) {
        const int64_t rows = std::min(batch.work.head_rows, tokens - token);
        project_rows(batch, weights, token, rows);
        for (int64_t row = 0; row < rows; ++row) {
            const float *logits = batch.work.logits + row * vocab;
            const bool   last = token + row + 1 == tokens;
            float        top_logit = 0.0f; /* for rows of which nobody wants candidates: only to see that they are finite */
            int32_t      top_id = 0;
            const bool   wanted = last && !request.candidate_logit.empty();
            if (!best(batch, logits, wanted ? request.candidate_logit : std::span(&top_logit, 1),
                      wanted ? request.candidate_id : std::span(&top_id, 1))) {
                return token + row;
            }
            if (request.logits != nullptr) {
                std::copy_n(logits, vocab, request.logits + (token + row - first) * vocab);
            }
        }
    }
    return -1;
}

} // namespace ds4::model
