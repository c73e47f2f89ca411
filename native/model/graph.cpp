#include "model/graph.h"

#include <algorithm>
#include <string>
#include <vector>

#include "failure.h"

namespace ds4::model {

namespace {

/* Around the ops of one evaluation. */
class StepScope {
public:
    StepScope(backend::Ops &ops, const backend::Step &step) : ops_(ops), replayed_(ops.begin_step(step)) {}
    ~StepScope() {
        if (!ended_) {
            ops_.abandon_step();
        }
    }
    StepScope(const StepScope &) = delete;
    StepScope &operator=(const StepScope &) = delete;

    bool replayed() const { return replayed_; }
    void end() {
        ops_.end_step();
        ended_ = true;
    }

private:
    backend::Ops &ops_;
    bool          replayed_;
    bool          ended_ = false;
};

size_t stream_bytes(const Batch &batch) {
    return static_cast<size_t>(batch.tokens() * batch.shape.hc_count * batch.shape.embedding) * sizeof(float);
}

/* Where the results of a request lie in a block of memory; returns its bytes. */
uint64_t place_results(const GraphRequest &request, std::byte *block, Results &results) {
    const auto    asked = static_cast<int64_t>(request.head_request.candidate_id.size());
    const int64_t rows = request.head ? request.head_request.rows() : 0;
    const int64_t candidates = request.head ? std::max<int64_t>(asked, 1) : 0;
    return results.place(runtime::Carver(block), rows, candidates);
}

/* Puts in what the ops only change when something is wrong. */
void prepare_results(const Batch &batch) {
    Workspace &work = batch.work;
    if (!work.bad_layer_clear) {
        constexpr int32_t none = -1;
        batch.device.copy_in(work.results.bad_layer, &none, sizeof(none));
    }
    work.bad_layer_clear = false; /* until the evaluation has ended well */
}

void run_layers(const Graph &graph, const Batch &batch, const runtime::KvCache &kv, const GraphRequest &request) {
    runtime::Telemetry &telemetry = graph.telemetry;
    if (graph.slice.embedding) {
        batch.ops.embed({
            .tokens = batch.token_ids,
            .embedding = &graph.weights.embedding(),
            .hc = batch.shape.hc_count,
            .streams = batch.work.streams,
        });
    }
    for (int64_t index = graph.slice.first; index <= graph.slice.last; ++index) {
        telemetry.poll_cancel("the evaluation");
        telemetry.set(DS4_WORD_LAYER, static_cast<uint64_t>(index));
        const auto  place = static_cast<size_t>(index - graph.slice.first);
        const Layer layer{
            .index = index,
            .place = place,
            .weights = graph.weights.layer(index),
            .experts = graph.weights.experts(),
            .kv = kv.layer(place),
            .rope = graph.ropes.for_ratio(batch.shape.ratio(index)),
        };
        runtime::WeightPager *const pager = graph.weights.pager();
        if (pager != nullptr) {
            pager->enter(place);
        }
        attention_sublayer(batch, layer);
        expert_sublayer(batch, layer);
        if (pager != nullptr) {
            pager->leave(place);
        }
        if (request.step_shape == 0) {
            batch.ops.pace();
        }
    }
    telemetry.poll_cancel("the evaluation");
    if (request.head) {
        run_head(batch, graph.weights.head(), request.head_request);
    }
}

[[noreturn]] void fail_non_finite(const char *what, uint64_t position, int32_t first_bad_layer) {
    std::string sentence = std::string("non-finite ") + what + " at position " + std::to_string(position);
    if (first_bad_layer >= 0) {
        sentence += ", first seen after layer " + std::to_string(first_bad_layer);
    }
    throw Failure(DS4_E_NON_FINITE, sentence + "; the model file may be damaged");
}

void check_finite(const Batch &batch, const GraphRequest &request, const Results &fetched) {
    const int32_t bad_layer = *fetched.bad_layer;
    batch.work.bad_layer_clear = bad_layer < 0;
    if (request.head) {
        const int64_t        rows = request.head_request.rows();
        const int32_t *const bad = std::find(fetched.finite, fetched.finite + rows, 0);
        if (bad != fetched.finite + rows) {
            fail_non_finite("logits", batch.end() - static_cast<uint64_t>(fetched.finite + rows - bad), bad_layer);
        }
    } else if (bad_layer >= 0) {
        fail_non_finite("hidden state", batch.end() - 1, bad_layer);
    }
}

/* The first copy waits for everything that was asked of the device. */
void fetch_results(const Batch &batch, const GraphRequest &request, uint64_t bytes) {
    Workspace         &work = batch.work;
    const HeadRequest &head = request.head_request;
    Results            fetched;
    place_results(request, work.fetched.data(), fetched);
    batch.device.copy_out(work.fetched.data(), work.result_block, bytes);
    check_finite(batch, request, fetched);
    if (request.head) {
        std::copy_n(fetched.candidate_id, head.candidate_id.size(), head.candidate_id.begin());
        std::copy_n(fetched.candidate_logit, head.candidate_logit.size(), head.candidate_logit.begin());
        fetch_last_logits(batch, head);
    }
    if (request.hidden_out != nullptr) {
        batch.device.copy_out(request.hidden_out, work.streams, stream_bytes(batch));
    }
}

/* Before the first op, so that reading has a lead. Layers that route by token id are the first ones. */
void foresee_experts(const Graph &graph, const Batch &batch) {
    std::vector<std::vector<int32_t>> ids;
    for (int64_t layer = graph.slice.first; layer <= graph.slice.last && graph.shape.routes_by_hash(layer); ++layer) {
        ids.push_back(foreseen_ids(batch, graph.weights.layer(layer)));
    }
    graph.weights.experts().foresee(ids, batch.token_ids.size());
}

/* Lets the experts that were used often come nearer. */
void tell_choices(const Graph &graph, const Batch &batch) {
    runtime::ExpertStore &experts = graph.weights.experts();
    std::vector<int32_t>  ids;
    if (experts.learns() && !experts.streams()) {
        ids.resize(static_cast<size_t>(graph.slice.layers() * batch.tokens() * batch.shape.expert_used));
        batch.device.copy_out(ids.data(), batch.work.expert_ids, ids.size() * sizeof(int32_t));
    }
    experts.end_step(ids, batch.token_ids.size());
}

} // namespace

void evaluate(const Graph &graph, const Batch &batch, const runtime::KvCache &kv, const GraphRequest &request) {
    const uint64_t result_bytes = place_results(request, batch.work.result_block, batch.work.results);
    prepare_results(batch);
    graph.weights.experts().begin_step();
    if (graph.weights.experts().streams()) {
        foresee_experts(graph, batch);
    }
    if (!graph.slice.embedding) {
        batch.device.copy_in(batch.work.streams, request.hidden_in, stream_bytes(batch));
    }
    {
        StepScope step(batch.ops, {batch.position, batch.token_ids, request.step_shape});
        if (!step.replayed()) {
            run_layers(graph, batch, kv, request);
        }
        step.end();
    }
    fetch_results(batch, request, result_bytes);
    tell_choices(graph, batch);
}

} // namespace ds4::model
