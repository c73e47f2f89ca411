/* The FFN sublayer: the chosen experts and the shared one. */
#include <vector>

#include "model/parts.h"

namespace ds4::model {

namespace {

/* The same args for some of the tokens. */
backend::ExpertsArgs part_of(const backend::ExpertsArgs &args, int64_t first, int64_t tokens) {
    backend::ExpertsArgs part = args;
    part.tokens = tokens;
    part.x += first * args.width;
    part.ids += first * args.used;
    part.weights += first * args.used;
    part.out += first * args.width;
    return part;
}

/* Experts may be absent: they are fetched while those that are here are computed. Where there is no room for all that the
 * batch needs, its tokens take turns; how a batch is cut changes no value. */
void stream_experts(const Batch &batch, const Layer &layer, const backend::ExpertsArgs &args) {
    std::vector<int32_t> ids = foreseen_ids(batch, layer.weights);
    /* To know them is enough where nothing has to be fetched any more: what gives way to a fetch may not be in use. */
    if (ids.empty() || !layer.experts.has_all(layer.place, ids)) {
        ids.resize(static_cast<size_t>(args.tokens * args.used));
        batch.device.copy_out(ids.data(), args.ids, ids.size() * sizeof(int32_t));
    }
    for (int64_t first = 0; first < args.tokens;) {
        const auto rest = std::span<const int32_t>(ids).subspan(static_cast<size_t>(first * args.used));
        const auto run = layer.experts.begin_run(layer.place, rest, static_cast<size_t>(args.tokens));
        backend::ExpertsArgs part = part_of(args, first, static_cast<int64_t>(run.tokens));
        if (run.present != nullptr) {
            part.table = run.present;
            part.begun = batch.ops.begin_experts(part) ? run.present : nullptr;
        }
        layer.experts.complete_run();
        part.table = layer.experts.table(layer.place);
        batch.ops.experts(part);
        layer.experts.end_run();
        first += part.tokens;
    }
}

} // namespace

std::vector<int32_t> foreseen_ids(const Batch &batch, const LayerWeights &weights) {
    std::vector<int32_t> ids;
    if (!weights.router_hash_here.empty()) {
        const auto used = static_cast<size_t>(batch.shape.expert_used);
        for (const int32_t token : batch.token_ids) {
            const auto row = weights.router_hash_here.subspan(static_cast<size_t>(token) * used, used);
            ids.insert(ids.end(), row.begin(), row.end());
        }
    }
    return ids;
}

void expert_sublayer(const Batch &batch, const Layer &layer) {
    const Shape        &shape = batch.shape;
    const LayerWeights &weights = layer.weights;
    Workspace          &work = batch.work;
    const bool          shared = shape.expert_shared > 0;
    const auto          index = static_cast<size_t>(layer.index);

    collapse_streams(batch, weights.hc_ffn, weights.ffn_norm);
    route(batch, layer);
    const backend::ExpertsArgs args{
        .tokens = batch.tokens(),
        .width = shape.embedding,
        .expert_width = shape.expert_width,
        .experts = shape.expert_count,
        .used = shape.expert_used,
        .x = work.x,
        .ids = layer.expert_ids(batch),
        .weights = work.expert_weights,
        .table = layer.experts.table(layer.place),
        .gate_up_type = weights.gate_up_type,
        .down_type = weights.down_type,
        .clamp = shape.clamp_routed[index],
        .shared_gate = shared ? &weights.shared_gate : nullptr,
        .shared_up = shared ? &weights.shared_up : nullptr,
        .shared_down = shared ? &weights.shared_down : nullptr,
        .shared_clamp = shape.clamp_shared[index],
        .out = work.y,
    };
    if (layer.experts.streams()) {
        stream_experts(batch, layer, args);
    } else {
        batch.ops.experts(args);
    }
    batch.taps.record_rows(DS4_TAP_FFN_OUT, layer.index, batch.position, work.y, batch.tokens(), shape.embedding);
    spread_over_streams(batch, layer, batch.work.results.bad_layer);
    batch.taps.record_rows(DS4_TAP_HIDDEN, layer.index, batch.position, work.streams, batch.tokens(),
                           shape.hc_count * shape.embedding);
}

} // namespace ds4::model
