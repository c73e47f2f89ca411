/* The indexer of ratio-4 layers: a small attention of its own that names the compressed rows worth attending to. */
#include <algorithm>

#include "model/parts.h"

namespace ds4::model {

namespace {

backend::IndexerSelectArgs select_args(const Batch &batch, const Layer &layer, int64_t token, int64_t tokens) {
    const Shape     &shape = batch.shape;
    const Workspace &work = batch.work;
    return {
        .tokens = tokens,
        .heads = shape.indexer_heads,
        .dim = shape.indexer_dim,
        .ratio = shape.ratio(layer.index),
        .top_k = shape.indexer_top_k,
        .position = batch.position + static_cast<uint64_t>(token),
        .q = work.indexer_q + token * shape.indexer_heads * shape.indexer_dim,
        .weights = work.indexer_weights + token * shape.indexer_heads,
        .rows = layer.kv.indexer.rows,
        .row_capacity = static_cast<int64_t>(layer.kv.indexer.capacity),
        .selected = work.selected + token * shape.indexer_top_k,
        .count = work.selected_count + token,
        .scores = nullptr,
        .scores_stride = 0,
    };
}

/* Scores of all rows for all tokens of a batch would need more memory than anything else; so token by token. */
void select_with_taps(const Batch &batch, const Layer &layer) {
    for (int64_t token = 0; token < batch.tokens(); ++token) {
        backend::IndexerSelectArgs args = select_args(batch, layer, token, 1);
        const uint64_t             visible = (args.position + 1) / static_cast<uint64_t>(args.ratio);
        if (batch.taps.wants(DS4_TAP_INDEXER_SCORES)) {
            args.scores = batch.score_buffer.data();
            args.scores_stride = static_cast<int64_t>(batch.score_buffer.size());
        }
        batch.ops.indexer_select(args);
        if (batch.taps.wants(DS4_TAP_INDEXER_SCORES)) {
            batch.taps.record(DS4_TAP_INDEXER_SCORES, layer.index, args.position, batch.score_buffer.first(visible));
        }
        if (batch.taps.wants(DS4_TAP_INDEXER_ROWS)) {
            const auto                 count = static_cast<size_t>(batch.taps.fetch({args.count, 1}).front());
            const std::vector<int32_t> rows = batch.taps.fetch({args.selected, count});
            const std::span<float>     to = batch.taps.add(DS4_TAP_INDEXER_ROWS, layer.index, args.position, count);
            std::copy_n(rows.begin(), to.size(), to.begin());
        }
    }
}

bool tapped(const Batch &batch) {
    return batch.taps.wants(DS4_TAP_INDEXER_SCORES) || batch.taps.wants(DS4_TAP_INDEXER_ROWS);
}

} // namespace

/* While no query sees more rows than the indexer would pick, picking changes nothing, and the indexer's projections are
 * not needed either. Its rows are, later, so they are made in any case. */
bool indexer_chooses(const Batch &batch, int64_t layer) {
    if (!batch.shape.has_indexer(layer)) {
        return false;
    }
    const uint64_t visible = batch.end() / static_cast<uint64_t>(batch.shape.ratio(layer));
    return visible > static_cast<uint64_t>(batch.shape.indexer_top_k) || tapped(batch);
}

void select_rows(const Batch &batch, const Layer &layer) {
    batch.ops.indexer_query({
        .tokens = batch.tokens(),
        .heads = batch.shape.indexer_heads,
        .dim = batch.shape.indexer_dim,
        .position = batch.position,
        .rope = layer.rope,
        .round_trip = batch.shape.round_trips,
        .q = batch.work.indexer_q,
    });
    if (tapped(batch)) {
        select_with_taps(batch, layer);
    } else {
        batch.ops.indexer_select(select_args(batch, layer, 0, batch.tokens()));
    }
}

} // namespace ds4::model
