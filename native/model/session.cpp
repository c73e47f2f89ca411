#include "model/session.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <string>
#include <utility>

#include "failure.h"
#include "runtime/checked_bytes.h"

namespace ds4::model {

namespace {

using runtime::checked_add;
using runtime::checked_multiply;

/* Row indices are 32-bit integers in kernels. */
constexpr uint64_t kMostPositions = std::numeric_limits<int32_t>::max();
/* Callers seldom ask for more candidates; those who do may make the ops take more memory then. */
constexpr int64_t kOrdinaryCandidates = 1024;

/* A backend may keep what it recorded of a session that is closed: its number must not come again. */
std::atomic<uint64_t> next_step_shape = 1;

runtime::KvShape kv_shape(const Model &model, const SessionOptions &options) {
    const Shape &shape = model.shape();
    runtime::KvShape kv;
    kv.context = options.context;
    kv.prefill_chunk = std::min(options.prefill_chunk, options.context);
    for (int64_t layer = model.slice().first; layer <= model.slice().last; ++layer) {
        kv.layers.push_back({
            .row_width = static_cast<uint64_t>(shape.head_dim),
            .window = static_cast<uint64_t>(shape.window),
            .ratio = static_cast<uint64_t>(shape.ratio(layer)),
            .halves = static_cast<uint64_t>(shape.halves(layer)),
            .indexer_width = shape.has_indexer(layer) ? static_cast<uint64_t>(shape.indexer_dim) : 0,
        });
    }
    return kv;
}

backend::OpsLimits ops_limits(const Model &model, const runtime::KvShape &kv) {
    const Shape       &shape = model.shape();
    const Slice       &slice = model.slice();
    const int64_t      queries = shape.head_count * shape.head_dim;
    const int64_t      low_outputs = shape.output_groups * shape.output_rank;
    backend::OpsLimits limits;
    limits.tokens = static_cast<int64_t>(kv.prefill_chunk);
    limits.width = shape.embedding;
    limits.hc = shape.hc_count;
    limits.heads = shape.head_count;
    limits.head_dim = shape.head_dim;
    limits.widest_input =
        std::max({shape.hc_count * shape.embedding, shape.q_rank, queries, low_outputs, shape.expert_width});
    limits.widest_output = std::max({shape.embedding, shape.q_rank, queries, low_outputs, 2 * shape.head_dim,
                                     shape.expert_width, shape.expert_count});
    limits.experts = shape.expert_count;
    limits.used = shape.expert_used;
    limits.expert_width = shape.expert_width;
    limits.window = shape.window;
    for (int64_t layer = slice.first; layer <= slice.last; ++layer) {
        if (shape.ratio(layer) != 0) {
            const uint64_t rows = kv.context / static_cast<uint64_t>(shape.ratio(layer));
            limits.row_capacity = std::max(limits.row_capacity, static_cast<int64_t>(rows));
        }
        if (shape.has_indexer(layer)) {
            limits.indexer_heads = shape.indexer_heads;
            limits.indexer_dim = shape.indexer_dim;
            limits.top_k = shape.indexer_top_k;
            limits.widest_output =
                std::max({limits.widest_output, shape.indexer_heads * shape.indexer_dim, 2 * shape.indexer_dim});
        }
    }
    if (slice.head) {
        limits.vocab = shape.vocab;
        limits.candidates = std::min(shape.vocab, kOrdinaryCandidates);
    }
    return limits;
}

/* Refuses before anything is taken: memory is handed out lazily, and a session that ran out of it half-way through a
 * conversation would be ended by the system instead of by a sentence. */
runtime::KvShape affordable(const Model &model, const SessionOptions &options) {
    if (options.context == 0 || options.context > kMostPositions) {
        throw Failure(DS4_E_ARGUMENT, "a context of " + std::to_string(options.context) +
                                          " tokens cannot be had; choose 1 to " + std::to_string(kMostPositions));
    }
    if (options.prefill_chunk == 0) {
        throw Failure(DS4_E_ARGUMENT, "a prefill chunk must have at least 1 token");
    }
    runtime::KvShape kv = kv_shape(model, options);
    const uint64_t   workspace =
        Workspace::bytes_for(model.shape(), model.slice(), static_cast<int64_t>(kv.prefill_chunk));
    const uint64_t checkpoints = checked_multiply(runtime::Checkpoints::bytes_of_one(kv), options.checkpoint_count);
    const uint64_t scratch = model.backend().ops->scratch_bytes(ops_limits(model, kv));
    const uint64_t fixed = checked_add(checked_add(workspace, checkpoints), scratch);
    const uint64_t need = checked_add(runtime::KvCache::bytes_for(kv), fixed);
    const uint64_t free = model.backend().device->info().free_bytes;
    if (free != 0 && need > free) { /* 0: the device cannot say */
        const uint64_t fits = free > fixed ? runtime::KvCache::largest_context(kv, free - fixed) : 0;
        throw Failure(DS4_E_NO_MEMORY,
                      "cannot open a session of " + std::to_string(kv.context) + " tokens: it needs " +
                          runtime::describe_bytes(need) + " (" + runtime::describe_bytes(need - fixed) +
                          " for the KV cache), " + runtime::describe_bytes(free) + " free; " +
                          (fits > 0 ? "the largest context that fits is " + std::to_string(fits) + " tokens"
                                    : std::string("no context fits; choose a smaller prefill chunk or fewer checkpoints")));
    }
    return kv;
}

std::string count(uint64_t number, const char *noun) {
    return std::to_string(number) + " " + noun + (number == 1 ? "" : "s");
}

} // namespace

Session::Session(std::shared_ptr<const Model> model, const SessionOptions &options)
    : model_(std::move(model)), kv_(*model_->backend().device, affordable(*model_, options)),
      checkpoints_(*model_->backend().device, kv_, options.checkpoint_count),
      work_(*model_->backend().device, model_->shape(), model_->slice(),
            static_cast<int64_t>(kv_.shape().prefill_chunk)),
      checkpoint_count_(options.checkpoint_count) {
    const backend::OpsLimits limits = ops_limits(*model_, kv_.shape());
    scratch_bytes_ = model_->backend().ops->scratch_bytes(limits);
    model_->backend().ops->prepare(limits);
    model_->note_free_memory();
}

void Session::check(const EvalRequest &request) const {
    const uint64_t tokens = request.tokens.size();
    const auto     refuse = [](const std::string &sentence) { throw Failure(DS4_E_ARGUMENT, sentence); };
    if (request.position != position()) {
        refuse("cannot evaluate at position " + std::to_string(request.position) + ": the session is at " +
               std::to_string(position()));
    }
    if (tokens == 0 || tokens > kv_.shape().prefill_chunk) {
        refuse("cannot evaluate " + count(tokens, "token") + " at once: the session takes 1 to " +
               std::to_string(kv_.shape().prefill_chunk));
    }
    if (tokens > kv_.shape().context - position()) {
        refuse("cannot evaluate " + count(tokens, "token") + " at position " + std::to_string(position()) +
               ": the context of " + count(kv_.shape().context, "token") + " is full");
    }
    for (size_t i = 0; i < tokens; ++i) {
        if (request.tokens[i] < 0 || request.tokens[i] >= model_->shape().vocab) {
            refuse("token " + std::to_string(request.tokens[i]) + " at position " + std::to_string(position() + i) +
                   " is not in the vocabulary of " + std::to_string(model_->shape().vocab));
        }
    }
    if (model_->slice().embedding == (request.hidden_in != nullptr)) {
        refuse(model_->slice().embedding ? "hidden states were given to a slice that begins with the embedding"
                                         : "a slice without embedding needs hidden states");
    }
}

void Session::check_outputs(const EvalRequest &request) const {
    const auto refuse = [](const std::string &sentence) { throw Failure(DS4_E_ARGUMENT, sentence); };
    if (!model_->slice().head && (request.logits_rows > 0 || !request.candidate_id.empty())) {
        refuse("logits were asked of a slice without head");
    }
    if (request.logits_rows > static_cast<int64_t>(request.tokens.size())) {
        refuse("logits of " + count(static_cast<uint64_t>(request.logits_rows), "row") + " were asked of a batch of " +
               count(request.tokens.size(), "token"));
    }
    if ((request.logits == nullptr) != (request.logits_rows == 0)) {
        refuse("logits and logits_rows must be given together");
    }
    if (request.candidate_id.size() > static_cast<size_t>(model_->shape().vocab)) {
        refuse(count(request.candidate_id.size(), "candidate") + " were asked of a vocabulary of " +
               std::to_string(model_->shape().vocab));
    }
}

uint64_t Session::step_shape(const Batch &batch, const EvalRequest &request, bool head) {
    if (request.tokens.size() != 1 || request.tap_mask != 0 || !model_->steps_repeat()) {
        return 0;
    }
    const Slice &slice = model_->slice();
    StepKind     kind{.indexer_chooses = false, .head = head, .candidates = request.candidate_id.size()};
    for (int64_t layer = slice.first; layer <= slice.last; ++layer) {
        kind.indexer_chooses = kind.indexer_chooses || indexer_chooses(batch, layer);
    }
    const auto [known, is_new] = step_shapes_.try_emplace(kind, 0);
    if (is_new) {
        known->second = next_step_shape.fetch_add(1, std::memory_order_relaxed);
    }
    return known->second;
}

uint64_t Session::eval(const EvalRequest &request) {
    runtime::Telemetry &telemetry = model_->telemetry();
    check(request);
    check_outputs(request);
    telemetry.poll_cancel("the evaluation");
    model_->store().check_files();

    Taps taps(request.tap_mask, request.tap, *model_->backend().device);
    if (taps.wants(DS4_TAP_INDEXER_SCORES) && scores_.bytes() == 0) {
        scores_ = model_->backend().device->allocate((kv_.shape().context / 4 + 1) * sizeof(float), "indexer scores");
    }
    const Batch batch{
        .device = *model_->backend().device,
        .ops = *model_->backend().ops,
        .shape = model_->shape(),
        .work = work_,
        .taps = taps,
        .token_ids = request.tokens,
        .position = position(),
        .score_buffer = {scores_.as<float>(), scores_.bytes() / sizeof(float)},
    };
    const bool         head = request.logits_rows > 0 || !request.candidate_id.empty();
    const GraphRequest graph_request{
        .hidden_in = request.hidden_in,
        .hidden_out = request.hidden_out,
        .step_shape = step_shape(batch, request, head),
        .head = head,
        .head_request = {.logits_rows = request.logits_rows,
                         .logits = request.logits,
                         .candidate_logit = request.candidate_logit,
                         .candidate_id = request.candidate_id},
    };

    const runtime::PhaseScope phase(telemetry, DS4_PHASE_EVAL);
    telemetry.set(DS4_WORD_LAYER_COUNT, static_cast<uint64_t>(model_->shape().layer_count));
    kv_.begin_write(request.tokens.size());
    try {
        evaluate(model_->graph(), batch, kv_, graph_request);
    } catch (...) {
        model_->store().check_files(); /* what a lost file makes of a step is not its cause */
        throw;
    }
    model_->store().check_files();
    kv_.advance(request.tokens.size());
    telemetry.add(DS4_WORD_TOKENS_DONE, request.tokens.size());
    telemetry.add(DS4_WORD_EVALS, 1);
    return taps.bytes();
}

void Session::checkpoint() {
    if (checkpoint_count_ == 0) {
        throw Failure(DS4_E_ARGUMENT, "cannot checkpoint: the session was opened with room for none");
    }
    checkpoints_.save(kv_);
}

uint64_t Session::rewind(uint64_t position) {
    const uint64_t wanted = std::min(position, kv_.position());
    if (kv_.reaches(wanted)) {
        kv_.go_back(wanted);
    } else if (const auto saved = checkpoints_.latest_at(wanted)) {
        checkpoints_.restore(kv_, *saved);
    } else {
        kv_.go_back(0);
    }
    checkpoints_.forget_after(kv_.position());
    return kv_.position();
}

} // namespace ds4::model
