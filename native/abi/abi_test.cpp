/* The library as a caller sees it: C structs in, status and sentence out. */
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "include/ds4.h"
#include "model/tiny_model_test.h"

using namespace ds4;
using test::TinyModel;
using test::tiny_tokens;

namespace {

struct ErrorText {
    std::array<char, 512> text{};
    ds4_error             error{sizeof(ds4_error), 512, text.data()};

    bool says(const char *part) const { return std::strstr(text.data(), part) != nullptr; }
};

/* The arguments of ds4_model_open for a tiny model, open to changes. */
struct Arguments {
    TinyModel             tiny;
    ErrorText             failure;
    ds4_telemetry        *telemetry = nullptr;
    std::array<const char *, 1> paths{};
    std::array<uint64_t, 1>     path_bytes{};
    ds4_load_plan         plan = TinyModel::plan({});
    ds4_model_args        args{};

    Arguments() {
        CHECK(ds4_telemetry_open(&telemetry, &failure.error) == DS4_OK);
        plan.thread_count = 2;
        paths = {tiny.path().c_str()};
        path_bytes = {tiny.bytes.size()};
        args.size = sizeof(args);
        args.path_count = 1;
        args.tensor_count = static_cast<uint32_t>(tiny.tensors.size());
        args.paths = paths.data();
        args.path_bytes = path_bytes.data();
        args.tensors = tiny.tensors.data();
        args.shape = &tiny.shape;
        args.plan = &plan;
        args.telemetry = telemetry;
    }
    ~Arguments() { ds4_telemetry_close(telemetry); }

    ds4_model *open() {
        ds4_model *model = nullptr;
        CHECK(ds4_model_open(&args, &model, &failure.error) == DS4_OK);
        return model;
    }
    ds4_status fails() {
        ds4_model       *model = nullptr;
        const ds4_status status = ds4_model_open(&args, &model, &failure.error);
        CHECK(model == nullptr);
        ds4_model_close(model);
        return status;
    }
};

ds4_session *open_session(ds4_model *model, uint64_t context = 100) {
    ErrorText        failure;
    ds4_session     *session = nullptr;
    ds4_session_args args{};
    args.size = sizeof(args);
    args.context = context;
    args.prefill_chunk = 32;
    args.checkpoint_count = 1;
    CHECK(ds4_session_open(model, &args, &session, &failure.error) == DS4_OK);
    return session;
}

ds4_status evaluate(ds4_session *session, std::span<const int32_t> tokens, uint64_t position, int32_t *best,
                    ErrorText &failure) {
    float         logit = 0.0f;
    ds4_eval_args args{};
    args.size = sizeof(args);
    args.tokens = tokens.data();
    args.token_count = static_cast<uint32_t>(tokens.size());
    args.position = position;
    args.candidate_count = 1;
    args.candidate_logit = &logit;
    args.candidate_id = best;
    ds4_eval_result result{};
    result.size = sizeof(result);
    const ds4_status status = ds4_eval(session, &args, &result, &failure.error);
    CHECK(status != DS4_OK || result.position == position + tokens.size());
    CHECK(status != DS4_OK || result.candidate_count == 1);
    return status;
}

} // namespace

TEST(a_model_opens_evaluates_rewinds_and_closes) {
    Arguments                  arguments;
    ErrorText                  failure;
    ds4_model                 *model = arguments.open();
    ds4_session               *session = open_session(model);
    const std::vector<int32_t> tokens = tiny_tokens(32);
    int32_t                    first = -1;
    int32_t                    again = -2;
    uint64_t                   reached = 99;

    CHECK(evaluate(session, tokens, 0, &first, failure) == DS4_OK);
    CHECK(ds4_checkpoint(session, &failure.error) == DS4_OK);
    CHECK(evaluate(session, tokens, 32, &again, failure) == DS4_OK);
    CHECK(ds4_rewind(session, 40, &reached, &failure.error) == DS4_OK && reached == 40);
    CHECK(ds4_rewind(session, 0, &reached, &failure.error) == DS4_OK && reached == 0);
    CHECK(evaluate(session, tokens, 0, &again, failure) == DS4_OK);
    CHECK(first == again);

    const uint64_t *words = ds4_telemetry_words(arguments.telemetry);
    CHECK(words[DS4_WORD_TOKENS_DONE] == 96);
    CHECK(words[DS4_WORD_EVALS] == 3);
    CHECK(words[DS4_WORD_BYTES_DONE] == words[DS4_WORD_BYTES_TOTAL]);
    CHECK(words[DS4_WORD_PHASE] == DS4_PHASE_IDLE);
    ds4_session_close(session);
    ds4_model_close(model);
}

TEST(a_model_says_what_it_runs_on_and_a_session_what_it_takes) {
    Arguments arguments;
    ErrorText failure;
    arguments.plan.instruction_set = DS4_ISA_PLAIN;
    ds4_model        *model = arguments.open();
    ds4_session      *session = open_session(model);
    ds4_model_info    info{};
    ds4_session_sizes sizes{};
    info.size = sizeof(info);
    sizes.size = sizeof(sizes);

    CHECK(ds4_model_describe(model, &info, &failure.error) == DS4_OK);
    CHECK(ds4_session_measure(session, &sizes, &failure.error) == DS4_OK);

    CHECK(info.thread_count == 2);
    CHECK(info.instruction_set == DS4_ISA_PLAIN);
    CHECK(info.weight_bytes > 100000 && info.mapped_bytes == info.weight_bytes);
    CHECK(info.device_bytes == 0);
    CHECK(sizes.scratch_bytes == 0);
    CHECK(sizes.kv_bytes > 10000 && sizes.workspace_bytes > 10000 && sizes.checkpoint_bytes > 1000);
    ds4_session_close(session);
    ds4_model_close(model);
}

TEST(a_caller_who_knows_the_first_version_of_the_plan_gets_what_it_meant) {
    Arguments  arguments;
    const auto first = std::make_unique<std::array<std::byte, 48>>(); /* and not a byte more */
    arguments.plan.size = 48;
    std::memcpy(first->data(), &arguments.plan, 48);
    arguments.args.plan = reinterpret_cast<const ds4_load_plan *>(first->data());

    ds4_model_close(arguments.open());
}

TEST(the_host_can_copy_weights_through_the_ring_too) {
    const std::vector<int32_t> tokens = tiny_tokens(32);
    int32_t                    want = -1;
    for (const uint32_t placement : {DS4_PLACE_AUTO, DS4_PLACE_RESIDENT, DS4_PLACE_MAPPED_EXPERTS}) {
        Arguments arguments;
        ErrorText failure;
        arguments.plan.placement = placement;
        arguments.plan.upload_threads = 2;
        arguments.plan.check_tensors = 1;
        ds4_model   *model = arguments.open();
        ds4_session *session = open_session(model);
        int32_t      best = -2;

        CHECK(evaluate(session, tokens, 0, &best, failure) == DS4_OK);

        want = placement == DS4_PLACE_AUTO ? best : want;
        CHECK(best == want);
        ds4_session_close(session);
        ds4_model_close(model);
    }
}

TEST(a_model_closed_before_its_session_lives_until_that_is_closed) {
    ErrorText    failure;
    ds4_session *session = nullptr;
    int32_t      best = -1;
    {
        Arguments  arguments; /* and so does the telemetry block */
        ds4_model *model = arguments.open();
        session = open_session(model);
        ds4_model_close(model);
    }

    CHECK(evaluate(session, tiny_tokens(5), 0, &best, failure) == DS4_OK);
    CHECK(best >= 0);
    ds4_session_close(session);
}

TEST(closing_nothing_is_allowed) {
    ds4_model_close(nullptr);
    ds4_session_close(nullptr);
    ds4_telemetry_close(nullptr);
    ds4_lock_release(nullptr);
    CHECK(ds4_telemetry_words(nullptr) == nullptr);
}

TEST(null_where_something_is_needed_is_an_argument_error) {
    Arguments  arguments;
    ErrorText  failure;
    ds4_model *model = nullptr;
    ds4_error *error = &failure.error;
    uint64_t   number = 0;

    CHECK(ds4_telemetry_open(nullptr, error) == DS4_E_ARGUMENT);
    CHECK(ds4_model_open(nullptr, &model, error) == DS4_E_ARGUMENT && model == nullptr);
    CHECK(ds4_model_open(&arguments.args, nullptr, error) == DS4_E_ARGUMENT);
    CHECK(ds4_model_describe(nullptr, nullptr, error) == DS4_E_ARGUMENT);
    CHECK(ds4_session_open(nullptr, nullptr, nullptr, error) == DS4_E_ARGUMENT);
    CHECK(ds4_session_measure(nullptr, nullptr, error) == DS4_E_ARGUMENT);
    CHECK(ds4_eval(nullptr, nullptr, nullptr, error) == DS4_E_ARGUMENT);
    CHECK(ds4_checkpoint(nullptr, error) == DS4_E_ARGUMENT);
    CHECK(ds4_rewind(nullptr, 0, &number, error) == DS4_E_ARGUMENT);
    CHECK(ds4_devices(nullptr, 1, nullptr, error) == DS4_E_ARGUMENT);
    CHECK(ds4_lock_acquire(nullptr, nullptr, nullptr, error) == DS4_E_ARGUMENT);
    CHECK(ds4_model_open(nullptr, &model, nullptr) == DS4_E_ARGUMENT); /* no place for a sentence is fine */

    for (auto change : {+[](ds4_model_args &args) { args.paths = nullptr; },
                        +[](ds4_model_args &args) { args.path_bytes = nullptr; },
                        +[](ds4_model_args &args) { args.tensors = nullptr; },
                        +[](ds4_model_args &args) { args.shape = nullptr; },
                        +[](ds4_model_args &args) { args.plan = nullptr; },
                        +[](ds4_model_args &args) { args.telemetry = nullptr; }}) {
        Arguments broken;
        change(broken.args);
        CHECK(broken.fails() == DS4_E_ARGUMENT);
        CHECK(broken.failure.says("NULL"));
    }
}

TEST(choices_this_library_does_not_know_are_refused) {
    for (auto change :
         {+[](ds4_load_plan &plan) { plan.arithmetic = 2; }, +[](ds4_load_plan &plan) { plan.source = 3; },
          +[](ds4_load_plan &plan) { plan.warm = 2; }, +[](ds4_load_plan &plan) { plan.instruction_set = 4; },
          +[](ds4_load_plan &plan) { plan.placement = 4; }, +[](ds4_load_plan &plan) { plan.check_tensors = 2; },
          +[](ds4_load_plan &plan) { plan.upload_threads = 257; }, +[](ds4_load_plan &plan) { plan.upload_slots = 4097; },
          +[](ds4_load_plan &plan) { plan.lock_weights = 2; }, +[](ds4_load_plan &plan) { plan.expert_policy = 2; },
          +[](ds4_load_plan &plan) { plan.pin_copies = 2; }, +[](ds4_load_plan &plan) { plan.drop_read_pages = 2; },
          +[](ds4_load_plan &plan) { plan.read_threads = 257; }, +[](ds4_load_plan &plan) { plan.page_slots = 4097; }}) {
        Arguments arguments;
        change(arguments.plan);
        CHECK(arguments.fails() == DS4_E_ARGUMENT);
    }
    Arguments nowhere;
    nowhere.plan.device = 1000;
    const ds4_status status = nowhere.fails();
    CHECK(status == DS4_E_DEVICE || status == DS4_E_ARGUMENT);
}

TEST(a_cancelled_load_leaves_nothing_behind) {
    Arguments arguments;
    arguments.plan.source = DS4_SOURCE_READ;
    ds4_telemetry_words(arguments.telemetry)[DS4_WORD_CANCEL] = 1;

    CHECK(arguments.fails() == DS4_E_CANCELLED);
    ds4_telemetry_words(arguments.telemetry)[DS4_WORD_CANCEL] = 0;
    ds4_model_close(arguments.open());
}

TEST(another_thread_may_read_telemetry_and_cancel) {
    Arguments    arguments;
    ErrorText    failure;
    ds4_model   *model = arguments.open();
    ds4_session *session = open_session(model, 32 * 2000);
    uint64_t    *words = ds4_telemetry_words(arguments.telemetry);
    std::thread  other([&] {
        while (__atomic_load_n(&words[DS4_WORD_TOKENS_DONE], __ATOMIC_RELAXED) < 64) {
            std::this_thread::yield();
        }
        __atomic_store_n(&words[DS4_WORD_CANCEL], 1, __ATOMIC_RELAXED);
    });
    const std::vector<int32_t> tokens = tiny_tokens(32);
    ds4_status                 status = DS4_OK;
    uint64_t                   position = 0;
    int32_t                    best = 0;
    while (status == DS4_OK && position < 32 * 2000) {
        status = evaluate(session, tokens, position, &best, failure);
        position += status == DS4_OK ? 32 : 0;
    }
    other.join();

    CHECK(status == DS4_E_CANCELLED);
    CHECK(position >= 64);
    ds4_session_close(session);
    ds4_model_close(model);
}

TEST(devices_are_listed_as_far_as_there_is_room) {
    ErrorText                      failure;
    uint32_t                       count = 0;
    std::array<ds4_device_info, 2> devices{};
    devices[0].size = sizeof(ds4_device_info);
    devices[1].size = sizeof(ds4_device_info);

    CHECK(ds4_devices(nullptr, 0, &count, &failure.error) == DS4_OK);
    CHECK(count == 1);
    CHECK(ds4_devices(devices.data(), 2, &count, &failure.error) == DS4_OK);
    CHECK(devices[0].kind == DS4_DEVICE_HOST);
    CHECK(devices[0].core_count > 0 && devices[0].total_bytes > 0);
    CHECK(devices[0].size == sizeof(ds4_device_info));
    CHECK(devices[1].core_count == 0);
    devices[0].size = 8;
    CHECK(ds4_devices(devices.data(), 1, &count, &failure.error) == DS4_E_ARGUMENT);
}

TEST(the_lock_of_the_abi_says_who_holds_it) {
    const test::TemporaryFile file({});
    ErrorText                 failure;
    ds4_lock                 *lock = nullptr;
    ds4_lock                 *second = nullptr;
    uint64_t                  holder = 0;

    CHECK(ds4_lock_acquire(file.path().c_str(), &lock, &holder, &failure.error) == DS4_OK);
    CHECK(ds4_lock_acquire(file.path().c_str(), &second, &holder, &failure.error) == DS4_E_BUSY);
    CHECK(second == nullptr);
    CHECK(holder == static_cast<uint64_t>(::getpid()));
    ds4_lock_release(lock);
    CHECK(ds4_lock_acquire(file.path().c_str(), &second, &holder, &failure.error) == DS4_OK);
    ds4_lock_release(second);
}

TEST(experts_can_be_seeded_and_listed) {
    Arguments arguments;
    ErrorText failure;
    arguments.plan.placement = DS4_PLACE_STREAM_EXPERTS;
    arguments.plan.expert_slot_bytes = 100 << 10;
    arguments.plan.expert_transit_bytes = 100 << 10;
    ds4_model *model = arguments.open();
    const auto expert_of = [](uint32_t layer, uint32_t expert) {
        return ds4_expert{sizeof(ds4_expert), layer, expert, 0, 0};
    };
    const std::array<ds4_expert, 3> wanted = {expert_of(4, 1), expert_of(0, 5), expert_of(2, 2)};
    uint32_t                        seeded = 99;
    uint32_t                        count = 99;

    CHECK(ds4_seed_experts(model, wanted.data(), 3, &seeded, &failure.error) == DS4_OK && seeded == 3);
    CHECK(ds4_list_experts(model, nullptr, 0, &count, &failure.error) == DS4_OK && count == 3);
    std::array<ds4_expert, 2> listed = {expert_of(9, 9), expert_of(9, 9)};
    CHECK(ds4_list_experts(model, listed.data(), 2, &count, &failure.error) == DS4_OK && count == 3);
    for (size_t i = 0; i < listed.size(); ++i) {
        CHECK(listed[i].layer == wanted[i].layer && listed[i].expert == wanted[i].expert);
        CHECK(listed[i].is_kept == 1 && listed[i].uses == 0);
    }
    const uint64_t *words = ds4_telemetry_words(arguments.telemetry);
    CHECK(words[DS4_WORD_EXPERT_SEEDED] == 3);
    CHECK(words[DS4_WORD_PHASE] == DS4_PHASE_IDLE);

    const ds4_expert nowhere = expert_of(0, 6);
    CHECK(ds4_seed_experts(model, &nowhere, 1, &seeded, &failure.error) == DS4_E_ARGUMENT && seeded == 0);
    CHECK(failure.says("no expert 6"));
    CHECK(ds4_seed_experts(model, nullptr, 1, &seeded, &failure.error) == DS4_E_ARGUMENT);
    CHECK(ds4_seed_experts(model, nullptr, 0, &seeded, &failure.error) == DS4_OK && seeded == 0);
    CHECK(ds4_list_experts(model, listed.data(), 2, nullptr, &failure.error) == DS4_E_ARGUMENT);
    CHECK(ds4_list_experts(nullptr, listed.data(), 2, &count, &failure.error) == DS4_E_ARGUMENT);
    ds4_model_close(model);
}
