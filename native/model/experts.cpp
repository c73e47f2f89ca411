/* The FFN sublayer: the chosen experts and the shared one. */
#include "model/parts.h"

namespace ds4::model {

void expert_sublayer(const Batch &batch, const Layer &layer) {
    const Shape        &shape = batch.shape;
    const LayerWeights &weights = layer.weights;
    Workspace          &work = batch.work;
    const bool          shared = shape.expert_shared > 0;
    const auto          index = static_cast<size_t>(layer.index);

    collapse_streams(batch, weights.hc_ffn, weights.ffn_norm);
    route(batch, layer);
    batch.ops.experts({
        .tokens = batch.tokens(),
        .width = shape.embedding,
        .expert_width = shape.expert_width,
        .experts = shape.expert_count,
        .used = shape.expert_used,
        .x = work.x,
        .ids = work.expert_ids,
        .weights = work.expert_weights,
        .table = layer.experts,
        .gate_up_type = weights.gate_up_type,
        .down_type = weights.down_type,
        .clamp = shape.clamp_routed[index],
        .shared_gate = shared ? &weights.shared_gate : nullptr,
        .shared_up = shared ? &weights.shared_up : nullptr,
        .shared_down = shared ? &weights.shared_down : nullptr,
        .shared_clamp = shape.clamp_shared[index],
        .out = work.y,
    });
    batch.taps.record_rows(DS4_TAP_FFN_OUT, layer.index, batch.position, work.y, batch.tokens(), shape.embedding);
    spread_over_streams(batch, layer, batch.work.results.bad_layer);
    batch.taps.record_rows(DS4_TAP_HIDDEN, layer.index, batch.position, work.streams, batch.tokens(),
                           shape.hc_count * shape.embedding);
}

} // namespace ds4::model
