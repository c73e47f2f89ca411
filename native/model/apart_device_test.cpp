/* The same numbers on a device whose memory the host cannot see, whatever is where and however steps are run. */
#include "model/apart_device_test.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "check.h"
#include "model/tiny_model_test.h"
#include "model/watched_ops_test.h"
#include "runtime/failure_test.h"

using namespace ds4;
using runtime::WeightPlacement;
using test::run;
using test::same_bits;
using test::TinyModel;
using test::tiny_tokens;

namespace {

constexpr model::SessionOptions kRoomy{.context = 400, .prefill_chunk = 50, .checkpoint_count = 1};

/* A tiny model on such a device. */
struct Apart {
    TinyModel          tiny;
    test::ApartDevice *device = nullptr; /* of the model that was opened last */
    test::ApartOps    *ops = nullptr;

    test::OpenOptions options(WeightPlacement placement) {
        return {.plan = {.placement = placement, .upload = {.threads = 3, .compare = true}},
                .replace = [this](backend::Backend host) {
                    auto own = std::make_unique<test::ApartDevice>();
                    auto arithmetic = std::make_unique<test::ApartOps>(*own, std::move(host.ops));
                    own->free_bytes = free_bytes;
                    device = own.get();
                    ops = arithmetic.get();
                    return backend::Backend{.device = std::move(own), .ops = std::move(arithmetic)};
                }};
    }
    std::shared_ptr<model::Model> open(WeightPlacement placement = WeightPlacement::resident) {
        return tiny.open(options(placement));
    }

    uint64_t free_bytes = uint64_t{1} << 32;
};

std::vector<float> on_the_host(std::span<const int32_t> tokens) {
    TinyModel      tiny;
    model::Session session(tiny.open(), kRoomy);
    return run(session, tokens, 50);
}

std::vector<int32_t> best_of(model::Session &session, int32_t token, size_t count) {
    std::vector<float>   logit(count);
    std::vector<int32_t> id(count);
    model::EvalRequest   request{};
    request.tokens = {&token, 1};
    request.position = session.position();
    request.candidate_logit = logit;
    request.candidate_id = id;
    session.eval(request);
    return id;
}

} // namespace

TEST(resident_and_mapped_experts_give_the_same_bits_as_the_host_in_chunks_and_one_by_one) {
    const std::vector<int32_t> tokens = tiny_tokens(150);
    const std::vector<float>   want = on_the_host(tokens);
    for (const WeightPlacement placement : {WeightPlacement::resident, WeightPlacement::mapped_experts}) {
        for (const size_t chunk : {1, 7, 50}) {
            Apart          apart;
            model::Session session(apart.open(placement), kRoomy);

            CHECK(same_bits(run(session, tokens, chunk), want));
            CHECK(apart.ops->replays == (chunk == 1 ? 150 - 4 : 0)); /* with and without indexer: two to learn each */
            CHECK(apart.ops->matrices_arranged > 40);
        }
    }
}

TEST(experts_stay_in_the_file_when_they_are_to_be_mapped) {
    Apart      apart;
    const auto resident = apart.open(WeightPlacement::resident);
    CHECK(apart.device->pinned_bytes == 0);
    CHECK(resident->store().mapped_bytes() == 0);
    CHECK(resident->store().device_bytes() == resident->store().weight_bytes());

    const auto     mapped = apart.open(WeightPlacement::mapped_experts);
    const uint64_t experts = 5 * 6 * 3 * (32 * 34); /* layers, experts, matrices of 32 blocks */
    CHECK(mapped->store().mapped_bytes() == experts);
    CHECK(mapped->store().device_bytes() == mapped->store().weight_bytes() - experts);
    CHECK(apart.device->pinned_bytes >= experts);
}

TEST(a_device_that_cannot_read_the_hosts_memory_must_be_told_where_weights_go) {
    Apart               apart;
    test::OpenOptions   options = apart.options(WeightPlacement::automatic);
    const model::Shape  shape = model::Shape::checked(apart.tiny.shape);
    backend::Backend    backend = options.replace(backend::open_backend({.threads = 1}));
    const runtime::WeightFile file{apart.tiny.path(), apart.tiny.bytes.size()};
    const model::WeightSources sources{.files = {&file, 1}, .tensors = apart.tiny.tensors, .plan = options.plan, .warm = false};

    const test::Outcome outcome = test::outcome_of([&] {
        model::Weights(backend, shape, {0, 4, true, true}, sources, *apart.tiny.telemetry);
    });

    CHECK(outcome.status == DS4_E_ARGUMENT);
    CHECK(outcome.says("resident"));
}

TEST(weights_that_do_not_fit_the_device_are_refused_with_need_and_free) {
    Apart apart;
    apart.free_bytes = 60000;
    const test::Outcome outcome = test::outcome_of([&] { apart.open(); });

    CHECK(outcome.status == DS4_E_NO_MEMORY);
    CHECK(outcome.says("need") && outcome.says("58.59 KiB free"));
}

TEST(a_token_costs_one_copy_in_neither_direction_but_for_its_result) {
    Apart          apart;
    model::Session session(apart.open(), kRoomy);
    best_of(session, 3, 10);
    apart.device->copies_in = 0;
    apart.device->copies_out = 0;

    for (int32_t token = 0; token < 40; ++token) {
        best_of(session, token, 10);
    }

    CHECK(apart.device->copies_in == 0);
    CHECK(apart.device->copies_out == 40);
}

TEST(steps_that_ask_for_different_things_are_not_taken_for_one_another) {
    const std::vector<int32_t> tokens = tiny_tokens(120);
    Apart                      apart;
    TinyModel                  tiny;
    model::Session             there(apart.open(), kRoomy);
    model::Session             here(tiny.open(), kRoomy);
    for (size_t i = 0; i < tokens.size(); ++i) {
        const size_t count = i % 7 == 0 ? 5 : i % 3 == 0 ? 0 : 20;
        CHECK(best_of(there, tokens[i], count) == best_of(here, tokens[i], count));
    }
    CHECK(apart.ops->replays > 100);
}

TEST(what_was_recorded_of_a_closed_session_is_never_run_again) {
    const std::vector<int32_t> tokens = tiny_tokens(60);
    const std::vector<float>   want = on_the_host(tokens);
    Apart                      apart;
    const auto                 loaded = apart.open();
    for (int i = 0; i < 3; ++i) {
        model::Session session(loaded, kRoomy);
        CHECK(same_bits(run(session, tokens, 1), want));
    }
}

TEST(hidden_states_pass_between_devices) {
    const std::vector<int32_t> tokens = tiny_tokens(90);
    const std::vector<float>   want = on_the_host(tokens);
    Apart                      apart;
    test::OpenOptions          options = apart.options(WeightPlacement::resident);
    options.last = 1;
    model::Session lower(apart.tiny.open(options), kRoomy);
    options.first = 2;
    options.last = 4;
    model::Session     upper(apart.tiny.open(options), kRoomy);
    std::vector<float> got(tokens.size() * test::kTinyVocab);
    std::vector<float> hidden(30 * 4 * 32);
    for (size_t done = 0; done < tokens.size();) {
        const size_t       count = done < 60 ? 30 : 1;
        model::EvalRequest request{};
        request.tokens = std::span(tokens).subspan(done, count);
        request.position = done;
        request.hidden_out = hidden.data();
        lower.eval(request);
        request.hidden_out = nullptr;
        request.hidden_in = hidden.data();
        request.logits = got.data() + done * test::kTinyVocab;
        request.logits_rows = static_cast<int64_t>(count);
        upper.eval(request);
        done += count;
    }

    CHECK(same_bits(got, want));
}

TEST(a_bad_hidden_state_is_told_once_and_does_not_taint_what_follows) {
    Apart             apart;
    test::OpenOptions options = apart.options(WeightPlacement::resident);
    options.first = 2;
    options.last = 3;
    model::Session           session(apart.tiny.open(options), kRoomy);
    const int32_t            token = 5;
    std::vector<float>       hidden(4 * 32, 0.5f);
    const auto               evaluate = [&](float first) {
        hidden[0] = first;
        model::EvalRequest request{};
        request.tokens = {&token, 1};
        request.position = session.position();
        request.hidden_in = hidden.data();
        return test::outcome_of([&] { session.eval(request); });
    };

    for (int i = 0; i < 4; ++i) {
        const test::Outcome bad = evaluate(std::nanf(""));
        CHECK(bad.status == DS4_E_NON_FINITE && bad.says("first seen after layer 2"));
        CHECK(evaluate(0.5f).status == DS4_OK);
    }
}

TEST(values_can_be_watched_on_a_device_apart) {
    const std::vector<int32_t> tokens = tiny_tokens(50);
    const auto                 watch = [&](std::shared_ptr<model::Model> loaded) {
        model::Session         session(std::move(loaded), kRoomy);
        std::vector<std::byte> buffer(4 << 20);
        model::EvalRequest     request{};
        request.tokens = tokens;
        request.tap_mask = 127;
        request.tap = buffer;
        buffer.resize(session.eval(request));
        return buffer;
    };
    TinyModel tiny;
    Apart     apart;

    CHECK(watch(apart.open()) == watch(tiny.open()));
}

TEST(checkpoints_are_kept_on_the_device) {
    const std::vector<int32_t> tokens = tiny_tokens(200);
    const std::vector<int32_t> others = tiny_tokens(40, 8);
    Apart                      apart;
    model::Session session(apart.open(), {.context = 400, .prefill_chunk = 16, .checkpoint_count = 1});
    run(session, std::span(tokens).first(71), 16);
    session.checkpoint();
    run(session, std::span(tokens).subspan(71), 1);

    CHECK(session.rewind(150) == 71);
    const std::vector<float> got = run(session, others, 1);

    std::vector<int32_t> line(tokens.begin(), tokens.begin() + 71);
    line.insert(line.end(), others.begin(), others.end());
    const std::vector<float> want = on_the_host(line);
    CHECK(same_bits(got, std::span(want).last(got.size())));
}

TEST(an_op_that_fails_leaves_no_half_recorded_step) {
    const std::vector<int32_t>        tokens = tiny_tokens(12);
    std::vector<std::vector<int32_t>> want;
    {
        TinyModel      tiny;
        model::Session session(tiny.open(), kRoomy);
        for (const int32_t token : tokens) {
            want.push_back(best_of(session, token, 3));
        }
    }
    Apart             apart;
    size_t            calls = 0;
    size_t            at = 0;
    test::OpenOptions options = apart.options(WeightPlacement::resident);
    options.wrap = [&](std::unique_ptr<backend::Ops> real) {
        return std::make_unique<test::WatchedOps>(std::move(real), [&] {
            if (++calls == at) {
                throw Failure(DS4_E_DEVICE, "the op failed");
            }
        });
    };
    const auto loaded = apart.tiny.open(options);
    for (const size_t failing : {0, 1}) { /* the step that runs plainly, the one that is recorded */
        for (const size_t number : {1, 2, 17, 40, 60}) {
            model::Session session(loaded, kRoomy);
            for (size_t i = 0; i < tokens.size(); ++i) {
                calls = 0;
                at = i == failing ? number : 0;
                if (i == failing) {
                    CHECK(test::outcome_of([&] { best_of(session, tokens[i], 3); }).status == DS4_E_DEVICE);
                    CHECK(session.position() == i);
                    at = 0;
                }
                CHECK(best_of(session, tokens[i], 3) == want[i]);
            }
        }
    }
    CHECK(apart.ops->replays >= 90);
}

TEST(ops_are_told_the_most_that_a_session_will_ask) {
    Apart          apart;
    model::Session session(apart.open(), kRoomy);

    CHECK(apart.ops->prepared.tokens == 50);
    CHECK(apart.ops->prepared.row_capacity == 100);
    CHECK(apart.ops->prepared.widest_input == 128 && apart.ops->prepared.widest_output == 128);
    CHECK(apart.ops->prepared.candidates == 64);
    CHECK(session.scratch_bytes() == 10000);
}

TEST(closing_everything_gives_the_device_its_memory_back) {
    auto device = std::make_unique<test::ApartDevice>();
    {
        TinyModel                  tiny;
        const runtime::WeightFile  file{tiny.path(), tiny.bytes.size()};
        const model::WeightSources sources{.files = {&file, 1},
                                           .tensors = tiny.tensors,
                                           .plan = {.placement = WeightPlacement::mapped_experts},
                                           .warm = false};
        backend::Backend host = backend::open_backend({.threads = 1});
        backend::Backend backend{.device = std::move(device), .ops = nullptr};
        auto            &apart = static_cast<test::ApartDevice &>(*backend.device);
        backend.ops = std::make_unique<test::ApartOps>(apart, std::move(host.ops));
        {
            const model::Weights weights(backend, model::Shape::checked(tiny.shape), {0, 4, true, true}, sources, *tiny.telemetry);
            CHECK(apart.lent_bytes > 0 && apart.pinned_bytes > 0);
        }
        CHECK(apart.lent_bytes == 0 && apart.pinned_bytes == 0);
    }
}
