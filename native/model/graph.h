/* All layers of a slice, from tokens or hidden states to hidden states and logits. */
#pragma once

#include <cstdint>

#include "model/parts.h"
#include "model/rope_tables.h"
#include "runtime/telemetry.h"

namespace ds4::model {

/* What a slice is evaluated with; lives as long as the model. */
struct Graph {
    const Shape        &shape;
    const Slice        &slice;
    const Weights      &weights;
    const RopeTables   &ropes;
    runtime::Telemetry &telemetry;
};

struct GraphRequest {
    const float *hidden_in;  /* host memory [tokens, hc, embedding], slices without embedding */
    float       *hidden_out; /* host memory [tokens, hc, embedding] or nullptr */
    uint64_t     step_shape; /* of backend::Step */
    bool         head;
    HeadRequest  head_request;
};

/* Runs the batch through the slice. Writes into `kv` only at the batch's positions. Polls for cancellation between layers.
 * Throws Failure(DS4_E_CANCELLED), and DS4_E_NON_FINITE with the position, and the layer where it began if that was seen. */
void evaluate(const Graph &graph, const Batch &batch, const runtime::KvCache &kv, const GraphRequest &request);

} // namespace ds4::model
