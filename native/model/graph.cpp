#include "model/graph.h"

#include <algorithm>
#include <bit>
#include <string>

#include "failure.h"

namespace ds4::model {

namespace {

void load_streams(const Graph &graph, const Batch &batch, const GraphRequest &request) {
    if (graph.slice.embedding) {
        batch.ops.embed({
            .tokens = batch.token_ids,
            .embedding = &graph.weights.embedding(),
            .hc = batch.shape.hc_count,
            .streams = batch.work.streams,
        });
    } else {
        std::copy_n(request.hidden_in, batch.tokens() * batch.shape.hc_count * batch.shape.embedding,
                    batch.work.streams);
    }
}

/* Only the last token is looked at: it has seen all the others, and its streams fit in a processor's cache. On the bits,
 * because a loop over integers runs many lanes at a time where a float sum has to keep its order. */
bool last_streams_finite(const Batch &batch) {
    constexpr uint32_t exponent = 0x7f800000u; /* all ones in infinities and NaNs only */
    const int64_t      width = batch.shape.hc_count * batch.shape.embedding;
    const float       *streams = batch.work.streams + (batch.tokens() - 1) * width;
    uint32_t           bad = 0;
    for (int64_t i = 0; i < width; ++i) {
        bad |= (std::bit_cast<uint32_t>(streams[i]) & exponent) == exponent ? 1u : 0u;
    }
    return bad == 0;
}

[[noreturn]] void fail_non_finite(const char *what, uint64_t position, int64_t first_bad_layer) {
    std::string sentence = std::string("non-finite ") + what + " at position " + std::to_string(position);
    if (first_bad_layer >= 0) {
        sentence += ", first seen after layer " + std::to_string(first_bad_layer);
    }
    throw Failure(DS4_E_NON_FINITE, sentence + "; the model file may be damaged");
}

} // namespace

void evaluate(const Graph &graph, const Batch &batch, const runtime::KvCache &kv, const GraphRequest &request) {
    runtime::Telemetry &telemetry = graph.telemetry;
    int64_t             first_bad_layer = -1;

    load_streams(graph, batch, request);
    for (int64_t index = graph.slice.first; index <= graph.slice.last; ++index) {
        telemetry.poll_cancel("the evaluation");
        telemetry.set(DS4_WORD_LAYER, static_cast<uint64_t>(index));
        const Layer layer{
            .index = index,
            .weights = graph.weights.layer(index),
            .experts = graph.weights.experts(index),
            .kv = kv.layer(static_cast<size_t>(index - graph.slice.first)),
            .rope = graph.ropes.for_ratio(batch.shape.ratio(index)),
        };
        attention_sublayer(batch, layer);
        expert_sublayer(batch, layer);
        if (first_bad_layer < 0 && !last_streams_finite(batch)) {
            first_bad_layer = index;
        }
    }
    telemetry.poll_cancel("the evaluation");

    if (request.head) {
        const int64_t bad = run_head(batch, graph.weights.head(), request.head_request);
        if (bad >= 0) {
            fail_non_finite("logits", batch.position + static_cast<uint64_t>(bad), first_bad_layer);
        }
    } else if (first_bad_layer >= 0) {
        fail_non_finite("hidden state", batch.end() - 1, first_bad_layer);
    }
    if (request.hidden_out != nullptr) {
        std::copy_n(batch.work.streams, batch.tokens() * batch.shape.hc_count * batch.shape.embedding,
                    request.hidden_out);
    }
}

} // namespace ds4::model
