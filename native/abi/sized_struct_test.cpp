#include "abi/sized_struct.h"

#include <array>
#include <cstring>

#include "abi/guard.h"
#include "check.h"
#include "runtime/failure_test.h"

using namespace ds4;
using namespace ds4::abi;

namespace {

/* A struct of a newer header: one field more. */
struct NewerArgs {
    ds4_session_args known;
    uint64_t         added;
};

} // namespace

TEST(a_caller_that_knows_more_fields_may_leave_them_zero) {
    NewerArgs newer{};
    newer.known.size = sizeof(newer);
    newer.known.context = 77;

    CHECK(read_struct(&newer.known, "args").context == 77);
    CHECK(read_struct(&newer.known, "args").size == sizeof(ds4_session_args));
    newer.added = 1;
    CHECK(test::outcome_of([&] { read_struct(&newer.known, "args"); }).says("too old to know"));
}

TEST(a_size_below_the_first_version_or_absurd_is_refused) {
    ds4_session_args args{};
    for (const uint32_t size : {0u, 4u, 23u, 5000u, 0xffffffffu}) {
        args.size = size;
        const test::Outcome outcome = test::outcome_of([&] { read_struct(&args, "ds4_session_args"); });
        CHECK(outcome.status == DS4_E_ARGUMENT);
        CHECK(outcome.says("ds4_session_args has size"));
    }
    CHECK(test::outcome_of([] { read_struct<ds4_session_args>(nullptr, "args"); }).says("NULL"));
}

TEST(arrays_of_structs_are_read_at_their_owners_stride) {
    std::array<NewerArgs, 3> newer{};
    for (size_t i = 0; i < newer.size(); ++i) {
        newer[i].known.size = sizeof(NewerArgs);
        newer[i].known.context = 10 + i;
    }

    const auto read = read_structs(&newer[0].known, 3, "args");
    CHECK(read.size() == 3 && read[0].context == 10 && read[1].context == 11 && read[2].context == 12);

    newer[1].known.size = 24;
    CHECK(test::outcome_of([&] { read_structs(&newer[0].known, 3, "args"); }).says("different sizes"));
    CHECK(read_structs<ds4_session_args>(nullptr, 0, "args").empty());
}

TEST(a_result_is_written_as_far_as_its_owner_knows_it) {
    struct {
        ds4_eval_result known;
        uint64_t        added = 7;
    } newer{};
    newer.known.size = sizeof(newer);
    ds4_eval_result filled{};
    filled.position = 5;

    write_struct(&newer.known, filled, "result");

    CHECK(newer.known.position == 5);
    CHECK(newer.known.size == sizeof(newer));
    CHECK(newer.added == 7);
}

TEST(a_sentence_is_cut_to_the_buffer_at_the_end_of_a_character) {
    std::array<char, 16> text{};
    ds4_error            error{sizeof(ds4_error), 8, text.data()};
    text[8] = 'x';

    CHECK(report(&error, DS4_E_IO, "short") == DS4_E_IO);
    CHECK(std::strcmp(text.data(), "short") == 0);
    report(&error, DS4_E_IO, "much too long");
    CHECK(std::strcmp(text.data(), "much to") == 0);
    report(&error, DS4_E_IO, "12345\xe2\x82\xac"); /* the last character would need one byte more */
    CHECK(std::strcmp(text.data(), "12345") == 0);
    CHECK(text[8] == 'x');
    error.capacity = 0;
    CHECK(report(&error, DS4_E_IO, "nowhere") == DS4_E_IO);
    CHECK(report(nullptr, DS4_E_BUSY, "nowhere") == DS4_E_BUSY);
}

TEST(whatever_is_thrown_becomes_a_status) {
    CHECK(guarded(nullptr, [] {}) == DS4_OK);
    CHECK(guarded(nullptr, [] { throw Failure(DS4_E_IO, "x"); }) == DS4_E_IO);
    CHECK(guarded(nullptr, [] { throw std::bad_alloc(); }) == DS4_E_NO_MEMORY);
    CHECK(guarded(nullptr, [] { throw std::exception(); }) == DS4_E_INTERNAL);
    CHECK(guarded(nullptr, [] { throw 3; }) == DS4_E_INTERNAL);
}
