/* What attention needs of the present tokens: queries of all heads, through a low-rank projection, and one row that serves
 * every head as key and value. */
#include <array>

#include "model/parts.h"

namespace ds4::model {

/* All matrices that read x in one call: for a single token each call's start and end cost as much as a small matrix. */
void project_attention_input(const Batch &batch, const Layer &layer) {
    Workspace                         &work = batch.work;
    const LayerWeights                &weights = layer.weights;
    std::array<backend::Projection, 7> projections = {{{&weights.q_a, work.q_low}, {&weights.kv, work.kv}}};
    size_t                             count = 2;
    if (batch.shape.ratio(layer.index) != 0) {
        projections[count++] = {&weights.compressor.kv, work.keys};
        projections[count++] = {&weights.compressor.gate, work.gates};
    }
    if (batch.shape.has_indexer(layer.index)) {
        projections[count++] = {&weights.indexer_compressor.kv, work.indexer_keys};
        projections[count++] = {&weights.indexer_compressor.gate, work.indexer_gates};
    }
    if (indexer_chooses(batch, layer.index)) {
        projections[count++] = {&weights.indexer_proj, work.indexer_weights};
    }
    batch.ops.project({.tokens = batch.tokens(), .x = work.x, .projections = {projections.data(), count}});
}

void make_queries(const Batch &batch, const Layer &layer) {
    const Shape &shape = batch.shape;
    Workspace   &work = batch.work;
    batch.ops.rms_norm({
        .rows = batch.tokens(),
        .width = shape.q_rank,
        .x = work.q_low,
        .weight = layer.weights.q_a_norm,
        .epsilon = shape.rms_epsilon,
        .out = work.q_low,
    });
    /* The indexer's queries come from the same low-rank vector. */
    const std::array<backend::Projection, 2> projections = {
        {{&layer.weights.q_b, work.q}, {&layer.weights.indexer_q_b, work.indexer_q}}};
    batch.ops.project({
        .tokens = batch.tokens(),
        .x = work.q_low,
        .projections = {projections.data(), indexer_chooses(batch, layer.index) ? size_t{2} : size_t{1}},
    });
    batch.ops.query({
        .tokens = batch.tokens(),
        .heads = shape.head_count,
        .dim = shape.head_dim,
        .position = batch.position,
        .rope = layer.rope,
        .epsilon = shape.rms_epsilon,
        .q = work.q,
    });
}

void push_window_rows(const Batch &batch, const Layer &layer) {
    const runtime::Ring &ring = layer.kv.window;
    batch.ops.window({
        .tokens = batch.tokens(),
        .dim = batch.shape.head_dim,
        .position = batch.position,
        .rope = layer.rope,
        .kv = batch.work.kv,
        .norm = layer.weights.kv_norm,
        .epsilon = batch.shape.rms_epsilon,
        .round_trip = batch.shape.round_trips,
        .ring_rows = static_cast<int64_t>(ring.rows),
        .ring = ring.data,
    });
}

} // namespace ds4::model
