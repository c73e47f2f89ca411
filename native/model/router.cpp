/* Which experts a token goes to: by its id in the first layers, by score in the others. */
#include <algorithm>
#include <array>

#include "model/parts.h"

namespace ds4::model {

namespace {

void tap_choice(const Batch &batch, const Layer &layer) {
    if (!batch.taps.wants(DS4_TAP_EXPERTS)) {
        return;
    }
    const auto                 used = static_cast<size_t>(batch.shape.expert_used);
    const std::vector<int32_t> ids = batch.taps.fetch({layer.expert_ids(batch), batch.token_ids.size() * used});
    for (size_t token = 0; token < batch.token_ids.size(); ++token) {
        const std::span<float> to = batch.taps.add(DS4_TAP_EXPERTS, layer.index, batch.position + token, 2 * used);
        if (to.empty()) {
            continue;
        }
        std::copy_n(ids.begin() + static_cast<std::ptrdiff_t>(token * used), used, to.begin());
        batch.device.copy_out(to.data() + used, batch.work.expert_weights + token * used, used * sizeof(float));
    }
}

} // namespace

void route(const Batch &batch, const Layer &layer) {
    const Shape                             &shape = batch.shape;
    Workspace                               &work = batch.work;
    const std::array<backend::Projection, 1> projections = {{{&layer.weights.router, work.router_logits}}};
    batch.ops.project({.tokens = batch.tokens(), .x = work.x, .projections = projections});
    batch.ops.route({
        .tokens = batch.tokens(),
        .experts = shape.expert_count,
        .used = shape.expert_used,
        .logits = work.router_logits,
        .bias = layer.weights.router_bias,
        .hash = layer.weights.router_hash,
        .token_ids = batch.token_ids.data(),
        .normalise = shape.normalise_weights,
        .scale = shape.expert_scale,
        .ids = layer.expert_ids(batch),
        .weights = work.expert_weights,
    });
    tap_choice(batch, layer);
}

} // namespace ds4::model
