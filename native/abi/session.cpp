#include <memory>
#include <string>

#include "abi/guard.h"
#include "abi/handles.h"
#include "abi/sized_struct.h"

namespace ds4::abi {

namespace {

void require(bool good, const char *sentence) {
    if (!good) {
        throw Failure(DS4_E_ARGUMENT, sentence);
    }
}

model::EvalRequest read_eval(const ds4_eval_args *given) {
    const ds4_eval_args args = read_struct(given, "ds4_eval_args");
    require(args.tokens != nullptr || args.token_count == 0, "tokens is NULL");
    require(args.candidate_count == 0 || (args.candidate_logit != nullptr && args.candidate_id != nullptr),
            "candidate_logit or candidate_id is NULL");
    require(args.tap_bytes == 0 || args.tap != nullptr, "tap is NULL");
    require(reinterpret_cast<uintptr_t>(args.tap) % 8 == 0, "tap is not 8-byte aligned");
    return {
        .tokens = {args.tokens, args.token_count},
        .position = args.position,
        .hidden_in = args.hidden_in,
        .hidden_out = args.hidden_out,
        .logits = args.logits,
        .logits_rows = args.logits_rows,
        .candidate_logit = {args.candidate_logit, args.candidate_count},
        .candidate_id = {args.candidate_id, args.candidate_count},
        .tap_mask = args.tap_mask,
        .tap = {static_cast<std::byte *>(args.tap), args.tap_bytes},
    };
}

/* Runs `body` on the model's thread with the session. */
template <typename Body> ds4_status on_session(ds4_session *session, ds4_error *error, Body &&body) noexcept {
    return guarded(error, [&] {
        require(session != nullptr, "session is NULL");
        session->loaded->thread.run([&] { body(*session->session); });
    });
}

} // namespace

} // namespace ds4::abi

ds4_status ds4_session_open(ds4_model *model, const ds4_session_args *args, ds4_session **session, ds4_error *error) {
    using namespace ds4;
    return abi::guarded(error, [&] {
        abi::require(model != nullptr && session != nullptr, "model or session is NULL");
        *session = nullptr;
        const ds4_session_args known = abi::read_struct(args, "ds4_session_args");
        auto                   opened = std::make_unique<ds4_session>();
        opened->loaded = model->loaded;
        opened->loaded->thread.run([&] {
            opened->session = std::make_unique<model::Session>(
                opened->loaded->model, model::SessionOptions{.context = known.context,
                                                             .prefill_chunk = known.prefill_chunk,
                                                             .checkpoint_count = known.checkpoint_count});
        });
        *session = opened.release();
    });
}

void ds4_session_close(ds4_session *session) { const std::unique_ptr<ds4_session> owned(session); }

ds4_status ds4_session_measure(ds4_session *session, ds4_session_sizes *sizes, ds4_error *error) {
    using namespace ds4;
    return abi::guarded(error, [&] {
        abi::require(session != nullptr, "session is NULL");
        ds4_session_sizes filled{};
        filled.kv_bytes = session->session->kv_bytes();
        filled.workspace_bytes = session->session->workspace_bytes();
        filled.checkpoint_bytes = session->session->checkpoint_bytes();
        filled.scratch_bytes = session->session->scratch_bytes();
        abi::write_struct(sizes, filled, "ds4_session_sizes");
    });
}

ds4_status ds4_eval(ds4_session *session, const ds4_eval_args *args, ds4_eval_result *result, ds4_error *error) {
    using namespace ds4;
    return abi::on_session(session, error, [&](model::Session &timeline) {
        abi::check_size(result, "ds4_eval_result");
        const model::EvalRequest request = abi::read_eval(args);
        ds4_eval_result          filled{};
        filled.tap_bytes = timeline.eval(request);
        filled.candidate_count = static_cast<uint32_t>(request.candidate_id.size());
        filled.position = timeline.position();
        abi::write_struct(result, filled, "ds4_eval_result");
    });
}

ds4_status ds4_checkpoint(ds4_session *session, ds4_error *error) {
    return ds4::abi::on_session(session, error, [](ds4::model::Session &timeline) { timeline.checkpoint(); });
}

ds4_status ds4_rewind(ds4_session *session, uint64_t position, uint64_t *reached, ds4_error *error) {
    using namespace ds4;
    return abi::on_session(session, error, [&](model::Session &timeline) {
        abi::require(reached != nullptr, "reached is NULL");
        *reached = timeline.rewind(position);
    });
}
