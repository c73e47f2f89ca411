/* Compressed rows: each window of `ratio` tokens is pooled into one row when its last token has come. */
#include "model/parts.h"

namespace ds4::model {

namespace {

void compress_into(const Batch &batch, const Layer &layer, const CompressorWeights &weights,
                   const runtime::CompressorState &state, const float *keys, const float *gates, int64_t dim,
                   backend::RowRounding rounding) {
    batch.ops.compress({
        .tokens = batch.tokens(),
        .ratio = static_cast<int64_t>(state.ratio),
        .halves = static_cast<int64_t>(state.halves),
        .dim = dim,
        .position = batch.position,
        .keys = keys,
        .gates = gates,
        .ape = &weights.ape,
        .ring_rows = static_cast<int64_t>(state.keys.rows),
        .key_ring = state.keys.data,
        .gate_ring = state.gates.data,
        .norm = weights.norm,
        .epsilon = batch.shape.rms_epsilon,
        .rope = layer.rope,
        .rounding = rounding,
        .rows = state.rows,
    });
}

void tap_rows(const Batch &batch, const Layer &layer) {
    const runtime::CompressorState &state = layer.kv.attention;
    const uint64_t                  first = batch.position / state.ratio;
    const uint64_t                  end = batch.end() / state.ratio;
    const int64_t                   dim = batch.shape.head_dim;
    batch.taps.record_rows(DS4_TAP_COMPRESSED_ROW, layer.index, first, state.rows + static_cast<int64_t>(first) * dim,
                           static_cast<int64_t>(end - first), dim);
}

} // namespace

void compress(const Batch &batch, const Layer &layer) {
    const Shape     &shape = batch.shape;
    const Workspace &work = batch.work;
    if (shape.ratio(layer.index) == 0) {
        return;
    }
    compress_into(batch, layer, layer.weights.compressor, layer.kv.attention, work.keys, work.gates, shape.head_dim,
                  shape.round_trips ? backend::RowRounding::fp8 : backend::RowRounding::none);
    tap_rows(batch, layer);
    if (shape.has_indexer(layer.index)) {
        compress_into(batch, layer, layer.weights.indexer_compressor, layer.kv.indexer, work.indexer_keys,
                      work.indexer_gates, shape.indexer_dim,
                      shape.round_trips ? backend::RowRounding::hadamard_fp4 : backend::RowRounding::none);
    }
}

} // namespace ds4::model
