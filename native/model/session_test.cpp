#include "model/session.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "check.h"
#include "model/tiny_model_test.h"
#include "runtime/failure_test.h"

using namespace ds4;
using test::run;
using test::same_bits;
using test::TinyModel;
using test::tiny_tokens;

namespace {

constexpr model::SessionOptions kRoomy{.context = 400, .prefill_chunk = 200, .checkpoint_count = 0};

std::span<const int32_t> part(const std::vector<int32_t> &tokens, size_t first, size_t end) {
    return std::span(tokens).subspan(first, end - first);
}

/* Everything the cache holds that the present position can see, in one list. */
std::vector<float> state_of(const model::Session &session) {
    std::vector<float>     state;
    const runtime::KvCache &kv = session.kv();
    const auto             take = [&](const float *values, uint64_t count) {
        const size_t before = state.size();
        state.resize(before + count);
        if (count > 0) {
            session.model().backend().device->copy_out(state.data() + before, values, count * sizeof(float));
        }
    };
    kv.for_each_tail(kv.position(), [&](const runtime::Ring &ring, uint64_t, uint64_t first, uint64_t end) {
        for (uint64_t position = first; position < end; ++position) {
            take(ring.row(position), ring.width);
        }
    });
    for (size_t layer = 0; layer < kv.shape().layers.size(); ++layer) {
        const runtime::KvLayerShape &shape = kv.shape().layers[layer];
        if (shape.ratio != 0) {
            take(kv.layer(layer).attention.rows, kv.position() / shape.ratio * shape.row_width);
            take(kv.layer(layer).indexer.rows, kv.position() / shape.ratio * shape.indexer_width);
        }
    }
    return state;
}

/* Puts tokens in one at a time, as the plainest way there is. */
struct Reference {
    std::vector<float> logits;
    std::vector<float> state;
};
Reference one_by_one(const std::shared_ptr<model::Model> &loaded, std::span<const int32_t> tokens) {
    model::Session     session(loaded, kRoomy);
    std::vector<float> logits = run(session, tokens, 1);
    return {std::move(logits), state_of(session)};
}

} // namespace

TEST(every_chunk_size_gives_the_same_bits_in_logits_and_cache) {
    const std::vector<int32_t> tokens = tiny_tokens(300);
    for (const bool exact : {true, false}) {
        TinyModel       tiny;
        const auto      loaded = tiny.open({.exact = exact});
        const Reference want = one_by_one(loaded, tokens);
        for (const size_t chunk : {3, 4, 7, 127, 128, 129}) {
            model::Session session(loaded, {.context = 400, .prefill_chunk = chunk, .checkpoint_count = 0});

            const std::vector<float> got = run(session, tokens, chunk);

            CHECK(same_bits(got, want.logits));
            CHECK(same_bits(state_of(session), want.state));
        }
    }
}

TEST(every_tensor_has_a_say_in_the_logits) {
    const std::vector<int32_t> tokens = tiny_tokens(70);
    TinyModel                  tiny;
    const std::vector<float>   want = one_by_one(tiny.open(), tokens).logits;
    for (const ds4_tensor &tensor : tiny.tensors) {
        TinyModel changed;
        changed.turn_around(tensor.role, tensor.layer);
        model::Session session(changed.open(), kRoomy);

        const std::vector<float> got = run(session, tokens, 70);

        if (same_bits(got, want)) {
            test::report(false, __FILE__, __LINE__, model::tensor_name(tensor.role, tensor.layer));
        }
    }
}

TEST(rounding_of_kv_rows_is_a_switch_of_the_model) {
    const std::vector<int32_t> tokens = tiny_tokens(60);
    TinyModel                  rounded({.round_trips = true});
    TinyModel                  plain({.round_trips = false});

    const Reference a = one_by_one(rounded.open(), tokens);
    const Reference b = one_by_one(plain.open(), tokens);

    CHECK(!same_bits(a.logits, b.logits));
}

TEST(every_thread_count_gives_the_same_bits) {
    const std::vector<int32_t> tokens = tiny_tokens(120);
    for (const bool exact : {true, false}) {
        TinyModel       tiny;
        const Reference want = one_by_one(tiny.open({.exact = exact}), tokens);
        for (const uint32_t threads : {2u, 3u, 5u}) {
            model::Session session(tiny.open({.threads = threads, .exact = exact}), kRoomy);

            const std::vector<float> got = run(session, tokens, 50);

            CHECK(same_bits(got, want.logits));
            CHECK(same_bits(state_of(session), want.state));
        }
    }
}

TEST(read_and_misaligned_weights_give_the_same_bits_as_mapped_ones) {
    const std::vector<int32_t> tokens = tiny_tokens(80);
    TinyModel                  tiny;
    const Reference            want = one_by_one(tiny.open(), tokens);

    CHECK(same_bits(one_by_one(tiny.open({.plan = {.source = runtime::WeightSource::read}}), tokens).logits, want.logits));
    for (const uint32_t misalign : {1u, 2u, 4u, 8u}) {
        TinyModel odd({.misalign = misalign});
        CHECK(same_bits(one_by_one(odd.open(), tokens).logits, want.logits));
    }
}

TEST(two_slices_one_after_the_other_are_the_whole_model) {
    const std::vector<int32_t> tokens = tiny_tokens(90);
    TinyModel                  tiny;
    const Reference            want = one_by_one(tiny.open(), tokens);
    for (int64_t cut = 0; cut < 4; ++cut) {
        model::Session     lower(tiny.open({.first = 0, .last = cut}), kRoomy);
        model::Session     upper(tiny.open({.first = cut + 1, .last = 4}), kRoomy);
        std::vector<float> got(tokens.size() * test::kTinyVocab);
        std::vector<float> hidden(30 * 4 * 32);
        for (size_t done = 0; done < tokens.size(); done += 30) {
            model::EvalRequest request{};
            request.tokens = part(tokens, done, done + 30);
            request.position = done;
            request.hidden_out = hidden.data();
            lower.eval(request);
            request.hidden_out = nullptr;
            request.hidden_in = hidden.data();
            request.logits = got.data() + done * test::kTinyVocab;
            request.logits_rows = 30;
            upper.eval(request);
        }
        CHECK(same_bits(got, want.logits));
    }
}

TEST(going_back_within_a_chunk_and_on_with_other_tokens_is_exact) {
    constexpr size_t           chunk = 24;
    const std::vector<int32_t> tokens = tiny_tokens(260);
    const std::vector<int32_t> others = tiny_tokens(40, 8);
    TinyModel                  tiny;
    const auto                 loaded = tiny.open();
    for (size_t back = 0; back <= chunk; ++back) {
        model::Session session(loaded, {.context = 400, .prefill_chunk = chunk, .checkpoint_count = 0});
        run(session, tokens, chunk);
        const size_t position = tokens.size() - back;

        CHECK(session.rewind(position) == position);
        const std::vector<float> got = run(session, others, chunk);

        std::vector<int32_t> line(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(position));
        line.insert(line.end(), others.begin(), others.end());
        const Reference want = one_by_one(loaded, line);
        CHECK(same_bits(got, std::span(want.logits).last(got.size())));
        CHECK(same_bits(state_of(session), want.state));
    }
}

TEST(going_back_step_by_step_never_passes_what_is_still_there) {
    constexpr size_t           chunk = 16;
    const std::vector<int32_t> tokens = tiny_tokens(200);
    TinyModel                  tiny;
    const auto                 loaded = tiny.open();
    model::Session             session(loaded, {.context = 400, .prefill_chunk = chunk, .checkpoint_count = 0});
    run(session, tokens, chunk);
    uint64_t position = session.position();
    while (position > 0) {
        const uint64_t reached = session.rewind(position - 1);
        CHECK(reached == position - 1 || reached == 0);
        if (reached == 0) {
            break;
        }
        const Reference want = one_by_one(loaded, part(tokens, 0, reached));
        CHECK(same_bits(state_of(session), want.state));
        position = reached;
    }
    CHECK(tokens.size() - position >= chunk);
}

TEST(a_checkpoint_reaches_back_farther_than_the_rings) {
    constexpr size_t           chunk = 16;
    const std::vector<int32_t> tokens = tiny_tokens(330);
    const std::vector<int32_t> others = tiny_tokens(50, 8);
    TinyModel                  tiny;
    const auto                 loaded = tiny.open();
    for (const size_t saved : {1u, 4u, 31u, 32u, 70u, 71u, 73u}) {
        model::Session session(loaded, {.context = 400, .prefill_chunk = chunk, .checkpoint_count = 1});
        run(session, part(tokens, 0, saved), chunk);
        session.checkpoint();
        run(session, part(tokens, saved, tokens.size()), chunk);

        CHECK(session.rewind(saved + 90) == saved);
        const std::vector<float> got = run(session, others, chunk);

        std::vector<int32_t> line(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(saved));
        line.insert(line.end(), others.begin(), others.end());
        const Reference want = one_by_one(loaded, line);
        CHECK(same_bits(got, std::span(want.logits).last(got.size())));
        CHECK(same_bits(state_of(session), want.state));
    }
}

TEST(a_checkpoint_of_a_timeline_that_was_left_is_gone) {
    const std::vector<int32_t> tokens = tiny_tokens(200);
    TinyModel                  tiny;
    model::Session session(tiny.open(), {.context = 400, .prefill_chunk = 10, .checkpoint_count = 4});
    run(session, part(tokens, 0, 20), 10);
    session.checkpoint();
    run(session, part(tokens, 20, 60), 10);
    session.checkpoint();
    CHECK(session.rewind(55) == 55);
    run(session, part(tokens, 0, 100), 10);

    CHECK(session.rewind(100) == 20);
    CHECK(session.rewind(19) == 19 || session.position() == 0);
}

TEST(nothing_saved_means_back_to_the_start_and_a_start_is_fresh) {
    const std::vector<int32_t> tokens = tiny_tokens(200);
    TinyModel                  tiny;
    const auto                 loaded = tiny.open();
    model::Session             session(loaded, {.context = 400, .prefill_chunk = 10, .checkpoint_count = 0});
    run(session, tokens, 10);

    CHECK(session.rewind(50) == 0);
    const std::vector<float> got = run(session, part(tokens, 0, 70), 10);

    CHECK(same_bits(got, one_by_one(loaded, part(tokens, 0, 70)).logits));
    CHECK(session.rewind(500) == 70);
    CHECK(test::outcome_of([&] { session.checkpoint(); }).status == DS4_E_ARGUMENT);
}

TEST(candidates_are_the_best_logits_in_order) {
    const std::vector<int32_t> tokens = tiny_tokens(40);
    TinyModel                  tiny;
    model::Session             session(tiny.open(), kRoomy);
    std::vector<float>         logits(2 * test::kTinyVocab);
    std::vector<float>         logit(10);
    std::vector<int32_t>       id(10);
    model::EvalRequest         request{};
    request.tokens = tokens;
    request.logits = logits.data();
    request.logits_rows = 2;
    request.candidate_logit = logit;
    request.candidate_id = id;

    session.eval(request);

    const float         *last = logits.data() + test::kTinyVocab;
    std::vector<int32_t> order(test::kTinyVocab);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return last[a] > last[b]; });
    for (size_t i = 0; i < id.size(); ++i) {
        CHECK(id[i] == order[i]);
        CHECK(logit[i] == last[order[i]]);
    }
}

TEST(a_request_that_makes_no_sense_changes_nothing) {
    const std::vector<int32_t> tokens = tiny_tokens(30);
    TinyModel                  tiny;
    model::Session             session(tiny.open(), {.context = 40, .prefill_chunk = 20, .checkpoint_count = 0});
    run(session, part(tokens, 0, 15), 15);
    const std::vector<float> before = state_of(session);
    std::vector<float>       values(64 * 64);
    std::vector<int32_t>     ids(65);
    const int32_t            unknown[] = {3, 64};
    const int32_t            negative[] = {-1};

    const auto refused = [&](const char *part_of_sentence, auto change) {
        model::EvalRequest request{};
        request.tokens = part(tokens, 0, 5);
        request.position = 15;
        change(request);
        const test::Outcome outcome = test::outcome_of([&] { session.eval(request); });
        CHECK(outcome.status == DS4_E_ARGUMENT);
        CHECK(outcome.says(part_of_sentence));
        CHECK(session.position() == 15);
    };
    refused("the session is at 15", [](auto &r) { r.position = 14; });
    refused("0 tokens", [](auto &r) { r.tokens = {}; });
    refused("21 tokens", [&](auto &r) { r.tokens = part(tokens, 0, 21); });
    refused("token 64 at position 16", [&](auto &r) { r.tokens = unknown; });
    refused("token -1 at position 15", [&](auto &r) { r.tokens = negative; });
    refused("hidden states were given", [&](auto &r) { r.hidden_in = values.data(); });
    refused("6 rows", [&](auto &r) {
        r.logits = values.data();
        r.logits_rows = 6;
    });
    refused("given together", [&](auto &r) { r.logits_rows = 1; });
    refused("65 candidates", [&](auto &r) {
        r.candidate_logit = std::span(values).first(65);
        r.candidate_id = ids;
    });
    CHECK(same_bits(state_of(session), before));

    run(session, part(tokens, 0, 20), 20);
    const test::Outcome full = test::outcome_of([&] { run(session, part(tokens, 0, 6), 6); });
    CHECK(full.status == DS4_E_ARGUMENT && full.says("context of 40 tokens is full"));
    run(session, part(tokens, 0, 5), 5);
    CHECK(session.position() == 40);
}

TEST(a_context_that_does_not_fit_is_refused_with_the_largest_that_does) {
    TinyModel  tiny;
    const auto loaded = tiny.open();
    const auto open = [&](uint64_t context, uint64_t chunk, uint32_t checkpoints) {
        return test::outcome_of([&] {
            model::Session(loaded, {.context = context, .prefill_chunk = chunk, .checkpoint_count = checkpoints});
        });
    };

    CHECK(open(0, 16, 0).status == DS4_E_ARGUMENT);
    CHECK(open(uint64_t{1} << 32, 16, 0).status == DS4_E_ARGUMENT);
    CHECK(open(100, 0, 0).status == DS4_E_ARGUMENT);
    CHECK(open(100, 4000000000u, 0).status == DS4_OK); /* as good as 100 */
    const test::Outcome chunk = open(2000000000u, 2000000000u, 0);
    CHECK(chunk.status == DS4_E_NO_MEMORY && chunk.says("free"));
    const test::Outcome checkpoints = open(100, 16, 4000000000u);
    CHECK(checkpoints.status == DS4_E_NO_MEMORY && checkpoints.says("checkpoints"));

    const test::Outcome context = open(2147483647u, 16, 0);
    CHECK(context.status == DS4_E_NO_MEMORY);
    const size_t number = context.sentence.find("the largest context that fits is ");
    CHECK(number != std::string::npos);
    if (number != std::string::npos) {
        const uint64_t fits = std::stoull(context.sentence.substr(number + 33));
        CHECK(fits > 1000 && fits < 2147483647u);
    }
}
