/* The attention sublayer: over the raw rows of the window and the compressed rows of everything before, then out through a
 * low-rank projection per group of heads. */
#include <array>

#include "model/parts.h"

namespace ds4::model {

namespace {

void attend(const Batch &batch, const Layer &layer, bool selected) {
    const Shape     &shape = batch.shape;
    const Workspace &work = batch.work;
    batch.ops.attention({
        .tokens = batch.tokens(),
        .heads = shape.head_count,
        .dim = shape.head_dim,
        .position = batch.position,
        .rope = layer.rope,
        .q = work.q,
        .window = shape.window,
        .ring_rows = static_cast<int64_t>(layer.kv.window.rows),
        .ring = layer.kv.window.data,
        .ratio = shape.ratio(layer.index),
        .rows = layer.kv.attention.rows,
        .row_capacity = static_cast<int64_t>(layer.kv.attention.capacity),
        .selected = selected ? work.selected : nullptr,
        .count = selected ? work.selected_count : nullptr,
        .top_k = shape.indexer_top_k,
        .sinks = layer.weights.sinks,
        .out = work.attended,
    });
}

void project_output(const Batch &batch, const Layer &layer) {
    Workspace &work = batch.work;
    batch.ops.grouped_project({
        .tokens = batch.tokens(),
        .groups = batch.shape.output_groups,
        .x = work.attended,
        .matrix = &layer.weights.output_a,
        .out = work.output_low,
    });
    const std::array<backend::Projection, 1> projections = {{{&layer.weights.output_b, work.y}}};
    batch.ops.project({.tokens = batch.tokens(), .x = work.output_low, .projections = projections});
}

} // namespace

void attention_sublayer(const Batch &batch, const Layer &layer) {
    collapse_streams(batch, layer.weights.hc_attn, layer.weights.attn_norm);
    project_attention_input(batch, layer);
    make_queries(batch, layer);
    push_window_rows(batch, layer);
    compress(batch, layer);
    const bool selected = indexer_chooses(batch, layer.index);
    if (selected) {
        select_rows(batch, layer);
    }
    attend(batch, layer, selected);
    project_output(batch, layer);
    batch.taps.record_rows(DS4_TAP_ATTN_OUT, layer.index, batch.position, batch.work.y, batch.tokens(),
                           batch.shape.embedding);
    spread_over_streams(batch, layer, nullptr);
}

} // namespace ds4::model
