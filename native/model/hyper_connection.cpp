/* Hyper-connections: instead of one residual vector a token carries hc streams. In front of a sublayer they are mixed down
 * to its input; behind it each stream takes a share of its output and a mix of all streams. */
#include "model/parts.h"

namespace ds4::model {

void collapse_streams(const Batch &batch, const HyperConnectionWeights &weights, const float *norm) {
    batch.ops.hc_pre({
        .tokens = batch.tokens(),
        .hc = batch.shape.hc_count,
        .width = batch.shape.embedding,
        .streams = batch.work.streams,
        .fn = &weights.fn,
        .base = weights.base,
        .scale = weights.scale,
        .sinkhorn_iterations = batch.shape.sinkhorn_iterations,
        .hc_epsilon = batch.shape.hc_epsilon,
        .norm = norm,
        .rms_epsilon = batch.shape.rms_epsilon,
        .x = batch.work.x,
        .post = batch.work.post,
        .comb = batch.work.comb,
    });
}

void spread_over_streams(const Batch &batch, const Layer &layer, int32_t *bad_layer) {
    batch.ops.hc_post({
        .tokens = batch.tokens(),
        .hc = batch.shape.hc_count,
        .width = batch.shape.embedding,
        .streams = batch.work.streams,
        .y = batch.work.y,
        .post = batch.work.post,
        .comb = batch.work.comb,
        .layer = static_cast<int32_t>(layer.index),
        .bad_layer = bad_layer,
    });
}

} // namespace ds4::model
