/* One timeline of tokens through a model. */
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "model/model.h"
#include "model/workspace.h"
#include "runtime/checkpoints.h"
#include "runtime/kv_cache.h"

namespace ds4::model {

struct SessionOptions {
    uint64_t context;       /* most positions */
    uint64_t prefill_chunk; /* most tokens of one evaluation; more than `context` is as good as `context` */
    uint32_t checkpoint_count;
};

struct EvalRequest {
    std::span<const int32_t> tokens;
    uint64_t                 position;
    const float             *hidden_in;
    float                   *hidden_out;
    float                   *logits;
    int64_t                  logits_rows;
    std::span<float>         candidate_logit;
    std::span<int32_t>       candidate_id;
    uint32_t                 tap_mask;
    std::span<std::byte>     tap;
};

class Session {
public:
    /* Throws Failure(DS4_E_ARGUMENT), and DS4_E_NO_MEMORY with need, free and the context that would fit. */
    Session(std::shared_ptr<const Model> model, const SessionOptions &options);

    /* Returns the bytes of all tap records. On failure the session stands where it stood. */
    uint64_t eval(const EvalRequest &request);

    void     checkpoint();
    uint64_t rewind(uint64_t position);

    uint64_t position() const { return kv_.position(); }
    uint64_t kv_bytes() const { return kv_.bytes(); }
    uint64_t workspace_bytes() const { return work_.bytes(); }
    uint64_t scratch_bytes() const { return scratch_bytes_; }
    uint64_t checkpoint_bytes() const { return runtime::Checkpoints::bytes_of_one(kv_.shape()); }
    const Model &model() const { return *model_; }
    const runtime::KvCache &kv() const { return kv_; }

private:
    void check(const EvalRequest &request) const;
    void check_outputs(const EvalRequest &request) const;

    /* What decides which ops a step of one token consists of, besides its session. */
    struct StepKind {
        bool   indexer_chooses;
        bool   head;
        size_t candidates;

        auto operator<=>(const StepKind &) const = default;
    };
    uint64_t step_shape(const Batch &batch, const EvalRequest &request, bool head);

    std::shared_ptr<const Model> model_;
    runtime::KvCache             kv_;
    runtime::Checkpoints         checkpoints_;
    Workspace                    work_;
    uint32_t                     checkpoint_count_;
    uint64_t                     scratch_bytes_ = 0;
    std::map<StepKind, uint64_t> step_shapes_; /* numbers that no other session of the process has */
    backend::Allocation          scores_; /* made when indexer scores are first tapped */
};

} // namespace ds4::model
