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

/* The best of one row of logits. Of rows whose candidates nobody wants it finds one, only to see that they are finite; the
 * last row's take its place. */
void find_best(const Batch &batch, const HeadRequest &request, int64_t row, const float *logits) {
    const Results &results = batch.work.results;
    const bool     wanted = row + 1 == request.rows() && !request.candidate_id.empty();
    batch.ops.best({
        .vocab = batch.shape.vocab,
        .count = wanted ? static_cast<int64_t>(request.candidate_id.size()) : 1,
        .logits = logits,
        .logit = results.candidate_logit,
        .id = results.candidate_id,
        .finite = results.finite + row,
    });
}

/* Rows [row, row + count) of the request, which are the first ones in work.logits. */
void fetch_logits(const Batch &batch, const HeadRequest &request, int64_t row, int64_t count) {
    if (request.logits != nullptr) {
        const int64_t vocab = batch.shape.vocab;
        batch.device.copy_out(request.logits + row * vocab, batch.work.logits,
                              static_cast<size_t>(count * vocab) * sizeof(float));
    }
}

} // namespace

void run_head(const Batch &batch, const HeadWeights &weights, const HeadRequest &request) {
    const int64_t rows = request.rows();
    const int64_t first_token = batch.tokens() - rows;
    for (int64_t done = 0; done < rows; done += batch.work.head_rows) {
        const int64_t count = std::min(batch.work.head_rows, rows - done);
        project_rows(batch, weights, first_token + done, count);
        for (int64_t row = 0; row < count; ++row) {
            find_best(batch, request, done + row, batch.work.logits + row * batch.shape.vocab);
        }
        if (done + count < rows) {
            fetch_logits(batch, request, done, count);
        }
    }
}

void fetch_last_logits(const Batch &batch, const HeadRequest &request) {
    const int64_t last = (request.rows() - 1) / batch.work.head_rows * batch.work.head_rows;
    fetch_logits(batch, request, last, request.rows() - last);
}

} // namespace ds4::model
