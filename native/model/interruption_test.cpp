/* Evaluations that end before their time leave the session where it stood. */
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include <unistd.h>

#include "check.h"
#include "model/session.h"
#include "model/tiny_model_test.h"
#include "model/watched_ops_test.h"
#include "runtime/failure_test.h"

using namespace ds4;
using test::run;
using test::same_bits;
using test::TinyModel;
using test::tiny_tokens;

namespace {

constexpr size_t kChunk = 20;
constexpr size_t kPosition = 110; /* past every window, and at no boundary of one */

/* A tiny model whose ops count calls and do something at one of them. */
struct Watched {
    TinyModel                     tiny;
    size_t                        calls = 0;
    size_t                        at = std::numeric_limits<size_t>::max();
    std::function<void()>         action;
    std::shared_ptr<model::Model> loaded;

    Watched() {
        loaded = tiny.open({.wrap = [this](std::unique_ptr<backend::Ops> real) {
            return std::make_unique<test::WatchedOps>(std::move(real), [this] {
                if (calls++ == at) {
                    action();
                }
            });
        }});
    }

    std::unique_ptr<model::Session> session() {
        return std::make_unique<model::Session>(
            loaded, model::SessionOptions{.context = 300, .prefill_chunk = kChunk, .checkpoint_count = 1});
    }

    /* Calls of one evaluation of a whole chunk at kPosition. */
    size_t count_calls() {
        const auto counted = session();
        run(*counted, tiny_tokens(kPosition), kChunk);
        calls = 0;
        run(*counted, tiny_tokens(kChunk), kChunk);
        return calls;
    }

    /* Evaluates other tokens, with the action at call `number` of the evaluation. */
    test::Outcome interrupted(model::Session &session, size_t number) {
        calls = 0;
        at = number;
        const std::vector<int32_t> others = tiny_tokens(kChunk, 99);
        const test::Outcome        outcome = test::outcome_of([&] { run(session, others, kChunk); });
        at = std::numeric_limits<size_t>::max();
        return outcome;
    }
};

} // namespace

TEST(each_op_may_fail_once_and_the_session_goes_on_as_if_nothing_had_happened) {
    const std::vector<int32_t> tokens = tiny_tokens(kPosition + 60);
    Watched                    watched;
    watched.action = [] { throw Failure(DS4_E_DEVICE, "the op failed"); };
    const auto               plain = watched.session();
    const std::vector<float> want = run(*plain, tokens, kChunk);
    const size_t             calls = watched.count_calls();
    CHECK(calls > 60);
    for (size_t number = 0; number < calls; ++number) {
        const auto session = watched.session();
        run(*session, std::span(tokens).first(kPosition), kChunk);

        CHECK(watched.interrupted(*session, number).status == DS4_E_DEVICE);
        CHECK(session->position() == kPosition);
        const std::vector<float> got = run(*session, std::span(tokens).subspan(kPosition), kChunk);

        CHECK(same_bits(got, std::span(want).last(got.size())));
    }
}

TEST(after_a_cancelled_chunk_the_chunk_before_can_still_be_taken_back) {
    const std::vector<int32_t> tokens = tiny_tokens(kPosition + 60);
    Watched                    watched;
    watched.action = [&] { watched.tiny.telemetry->set(DS4_WORD_CANCEL, 1); };
    const auto               plain = watched.session();
    const std::vector<float> want = run(*plain, tokens, kChunk);
    const size_t             calls = watched.count_calls();
    size_t                   cancelled = 0;
    for (size_t number = 0; number < calls; number += 3) {
        const auto session = watched.session();
        run(*session, std::span(tokens).first(kPosition), kChunk);
        const test::Outcome outcome = watched.interrupted(*session, number);
        watched.tiny.telemetry->set(DS4_WORD_CANCEL, 0);
        if (outcome.status == DS4_OK) {
            CHECK(session->position() == kPosition + kChunk); /* too late: the last layer was done */
            continue;
        }
        ++cancelled;
        CHECK(outcome.status == DS4_E_CANCELLED);
        CHECK(session->position() == kPosition);
        const size_t back = kPosition - number % (kChunk + 1);

        CHECK(session->rewind(back) == back);
        const std::vector<float> got = run(*session, std::span(tokens).subspan(back), kChunk);

        CHECK(same_bits(got, std::span(want).last(got.size())));
    }
    CHECK(cancelled > 15);
}

TEST(cancelling_is_noticed_at_the_end_of_the_layer_at_the_latest) {
    Watched watched;
    watched.action = [&] { watched.tiny.telemetry->set(DS4_WORD_CANCEL, 1); };
    const size_t calls = watched.count_calls();
    for (size_t number = 0; number < calls; number += 7) {
        const auto session = watched.session();
        watched.interrupted(*session, number);
        watched.tiny.telemetry->set(DS4_WORD_CANCEL, 0);

        CHECK(watched.calls - number < calls / 4); /* of five layers */
    }
}

TEST(a_set_cancel_word_stops_an_evaluation_before_it_begins) {
    TinyModel      tiny;
    model::Session session(tiny.open(), {.context = 40, .prefill_chunk = 20, .checkpoint_count = 0});
    tiny.telemetry->set(DS4_WORD_CANCEL, 1);

    CHECK(test::outcome_of([&] { run(session, tiny_tokens(3), 3); }).status == DS4_E_CANCELLED);
    CHECK(session.position() == 0);
    CHECK(tiny.telemetry->get(DS4_WORD_PHASE) == DS4_PHASE_IDLE);
}

TEST(a_file_that_is_cut_during_an_evaluation_ends_it_and_the_model_with_its_name) {
    const size_t calls = Watched().count_calls();
    size_t       with_offset = 0;
    for (size_t number = 0; number < calls; number += calls / 9) {
        Watched    watched;
        const auto session = watched.session();
        run(*session, tiny_tokens(kPosition), kChunk);
        watched.action = [&] { CHECK(::truncate(watched.tiny.path().c_str(), 0) == 0); };

        const test::Outcome outcome = watched.interrupted(*session, number);

        CHECK(outcome.status == DS4_E_IO);
        CHECK(outcome.says(watched.tiny.path()));
        CHECK(session->position() == kPosition);
        with_offset += outcome.says(" at offset ") ? 1 : 0;
        CHECK(::truncate(watched.tiny.path().c_str(), static_cast<off_t>(watched.tiny.bytes.size())) == 0);
        CHECK(watched.interrupted(*session, calls).status == DS4_E_IO); /* for good */
        CHECK(session->rewind(0) == 0);
    }
    CHECK(with_offset > 6);
}

TEST(telemetry_counts_what_succeeded) {
    TinyModel      tiny;
    model::Session session(tiny.open(), {.context = 40, .prefill_chunk = 20, .checkpoint_count = 0});
    run(session, tiny_tokens(25), 20);

    CHECK(tiny.telemetry->get(DS4_WORD_TOKENS_DONE) == 25);
    CHECK(tiny.telemetry->get(DS4_WORD_EVALS) == 2);
    CHECK(tiny.telemetry->get(DS4_WORD_LAYER_COUNT) == 5);
    CHECK(tiny.telemetry->get(DS4_WORD_PHASE) == DS4_PHASE_IDLE);
}

namespace {

/* Opens a model with one float of one F32 vector overwritten and evaluates 30 tokens. */
test::Outcome outcome_with(uint32_t role, int32_t layer, float value) {
    TinyModel         tiny;
    const ds4_tensor &tensor = tiny.tensor(role, layer);
    if (tensor.type == static_cast<uint32_t>(quant::Type::bf16)) {
        const auto half = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
        std::memcpy(tiny.data(role, layer) + 4, &half, sizeof(half));
    } else {
        std::memcpy(tiny.data(role, layer) + 8, &value, sizeof(value));
    }
    model::Session session(tiny.open(), {.context = 60, .prefill_chunk = 30, .checkpoint_count = 0});
    test::Outcome  outcome = test::outcome_of([&] { run(session, tiny_tokens(30), 30); });
    CHECK(session.position() == (outcome.status == DS4_OK ? 30u : 0u));
    return outcome;
}

} // namespace

TEST(numbers_that_are_not_finite_stop_the_evaluation_and_name_position_and_layer) {
    const float nan = std::nanf("");

    const test::Outcome head = outcome_with(DS4_ROLE_OUTPUT_NORM, -1, nan);
    CHECK(head.status == DS4_E_NON_FINITE);
    CHECK(head.says("non-finite logits at position 0"));
    CHECK(!head.says("layer"));

    for (const uint32_t role : {DS4_ROLE_ATTN_NORM, DS4_ROLE_FFN_NORM, DS4_ROLE_ATTN_Q_A_NORM, DS4_ROLE_ATTN_SINKS,
                                DS4_ROLE_HC_FFN_BASE, DS4_ROLE_COMPRESSOR_NORM}) {
        const test::Outcome outcome = outcome_with(role, 1, nan);
        CHECK(outcome.status == DS4_E_NON_FINITE);
        CHECK(outcome.says("first seen after layer 1"));
    }
    CHECK(outcome_with(DS4_ROLE_ATTN_NORM, 3, INFINITY).says("first seen after layer 3"));
}

TEST(a_router_or_indexer_that_is_not_finite_neither_crashes_nor_invents_experts) {
    const float nan = std::nanf("");
    for (const float value : {nan, INFINITY, -INFINITY}) {
        const test::Outcome router = outcome_with(DS4_ROLE_ROUTER_BIAS, 2, value);
        CHECK(router.status == DS4_OK || router.status == DS4_E_NON_FINITE);
        const test::Outcome indexer = outcome_with(DS4_ROLE_INDEXER_COMPRESSOR_NORM, 1, value);
        CHECK(indexer.status == DS4_OK || indexer.status == DS4_E_NON_FINITE);
    }
}

TEST(without_a_head_a_slice_reports_hidden_states_that_are_not_finite) {
    TinyModel   tiny;
    const float nan = std::nanf("");
    std::memcpy(tiny.data(DS4_ROLE_ATTN_NORM, 1), &nan, sizeof(nan));
    model::Session     session(tiny.open({.first = 0, .last = 2}), {.context = 60, .prefill_chunk = 30, .checkpoint_count = 0});
    const std::vector<int32_t> tokens = tiny_tokens(10);
    model::EvalRequest request{};
    request.tokens = tokens;

    const test::Outcome outcome = test::outcome_of([&] { session.eval(request); });

    CHECK(outcome.status == DS4_E_NON_FINITE);
    CHECK(outcome.says("non-finite hidden state at position 9, first seen after layer 1"));
}
