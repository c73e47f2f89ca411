#include "runtime/expert_store.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "check.h"
#include "runtime/failure_test.h"
#include "runtime/stored_experts_test.h"

using namespace ds4;
using namespace ds4::runtime;
using namespace ds4::test;

namespace {

using Ids = std::vector<int32_t>;

/* Runs of one layer whose choice nobody read back. */
bool run_layer(Stored &stored, size_t layer, const Ids &ids) {
    bool right = stored.store.has_all(layer, ids);
    stored.store.begin_run(layer, ids, 1);
    stored.store.complete_run();
    for (const int32_t expert : ids) {
        right = right && stored.is_right(stored.store.table(layer)[expert], layer, expert);
    }
    stored.store.end_run();
    return right;
}

/* A step of one token that goes through two layers, both foreseen. */
bool step(Stored &stored, const Ids &first, const Ids &second) {
    stored.store.begin_step();
    stored.store.foresee(std::vector<Ids>{first, second}, 1);
    const bool right = run_layer(stored, 0, first) && run_layer(stored, 1, second);
    stored.store.end_step({}, 1);
    return right;
}

} // namespace

TEST(what_is_foreseen_is_on_its_way_before_its_layer_and_counts_as_a_hit) {
    Stored stored({kEnough, kUsed * kUnit, 0, ReplacementPolicy::lru});
    CHECK(step(stored, {1, 2, 3}, {4, 5, 6}));
    CHECK(stored.count(DS4_WORD_EXPERT_FORESEEN) == 6);
    CHECK(stored.count(DS4_WORD_EXPERT_IN_FLIGHT_HITS) == 6);
    CHECK(stored.count(DS4_WORD_EXPERT_MISSES) == 0);

    const uint64_t reads = stored.count(DS4_WORD_FILE_READS);
    CHECK(step(stored, {3, 2, 1}, {4, 5, 6}));
    CHECK(stored.count(DS4_WORD_EXPERT_DEVICE_HITS) == 6);
    CHECK(stored.count(DS4_WORD_FILE_READS) == reads);
    CHECK(stored.adds_up());
}

TEST(what_was_foreseen_needs_no_change_of_the_table_when_its_layer_comes) {
    Stored stored({kEnough, kUsed * kUnit, 0, ReplacementPolicy::lru});
    const std::vector<Ids> ids = {{1, 2, 3}};
    stored.store.begin_step();
    stored.store.foresee(ids, 1);
    const backend::ExpertAddress before = stored.store.table(0)[2];
    CHECK(before.gate != nullptr);
    CHECK(run_layer(stored, 0, ids[0]));
    CHECK(stored.store.table(0)[2].gate == before.gate);
    stored.store.end_step({}, 1);
}

TEST(what_was_foreseen_counts_as_here_only_when_it_has_arrived) {
    /* Two slots for three experts: two are foreseen, and the third is read when its layer comes. */
    Stored stored({8600, kUsed * kUnit, 0, ReplacementPolicy::lru});
    CHECK(stored.count(DS4_WORD_EXPERT_SLOTS) == 2);
    const Ids              ids = {1, 2, 3};
    const std::vector<Ids> known = {ids};
    stored.store.begin_step();
    stored.store.foresee(known, 1);
    CHECK(stored.count(DS4_WORD_EXPERT_FORESEEN) == 2);
    /* Both were read and sent, but nobody has waited for them. */
    while (stored.device.sends < 2 * 3) {
        std::this_thread::yield();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const ExpertStore::Run run = stored.store.begin_run(0, ids, 1);
    CHECK(run.present != nullptr);
    size_t here = 0;
    for (const int32_t expert : ids) {
        if (run.present[expert].gate != nullptr) {
            CHECK(stored.is_right(run.present[expert], 0, expert));
            ++here;
        }
    }
    CHECK(here == 2);
    stored.store.complete_run();
    for (const int32_t expert : ids) {
        CHECK(stored.is_right(stored.store.table(0)[expert], 0, expert));
    }
    stored.store.end_run();
    stored.store.end_step({}, 1);
}

TEST(foresight_never_evicts_what_the_last_token_used_but_what_is_older) {
    /* Room for the experts of two layers of one token, and for no third. */
    Stored stored({2 * kUsed * kUnit, kUsed * kUnit, 0, ReplacementPolicy::lru});
    while (stored.count(DS4_WORD_EXPERT_SLOTS_USED) < stored.count(DS4_WORD_EXPERT_SLOTS)) {
        CHECK(stored.evaluate(1));
    }
    stored.store.begin_step();
    const Ids used = {0, 1, 2};
    stored.store.begin_run(0, used, 1);
    stored.store.complete_run();
    stored.store.end_run();
    stored.store.end_step({}, 1);
    CHECK(stored.store.has_all(0, used));

    /* As many as it likes: those three stay. */
    for (int round = 0; round < 3; ++round) {
        stored.store.begin_step();
        const int32_t          first = 9 - 3 * round;
        const std::vector<Ids> next = {{first, first + 1, first + 2}, {first, first + 1, first + 2}};
        stored.store.foresee(next, 1);
        CHECK(stored.store.has_all(0, used));
        /* The step fails before it used anything: the last token is still the same one, though the order says otherwise. */
    }
    CHECK(stored.count(DS4_WORD_EXPERT_FORESEEN) > 0);
}

TEST(layers_that_are_foreseen_together_take_nothing_from_each_other) {
    Stored stored({3 * kUsed * kUnit, kUsed * kUnit, 0, ReplacementPolicy::lru});
    CHECK(step(stored, {0, 1, 2}, {0, 1, 2}));
    for (int32_t round = 0; round < 20; ++round) {
        const int32_t first = round * 3 % 9;
        stored.store.begin_step();
        const std::vector<Ids> ids = {{first, first + 1, first + 2}, {first, first + 1, first + 2}};
        stored.store.foresee(ids, 1);
        const bool both = stored.store.has_all(0, ids[0]) && stored.store.has_all(1, ids[1]);
        CHECK(!both || (run_layer(stored, 0, ids[0]) && run_layer(stored, 1, ids[1])));
        stored.store.end_step({}, 1);
    }
    CHECK(stored.adds_up());
}

TEST(without_a_cache_the_first_layer_is_foreseen_through_transit) {
    Stored stored({0, kUsed * kUnit, 0, ReplacementPolicy::lru});
    stored.known_layers = 2;
    for (int round = 0; round < 5; ++round) {
        CHECK(stored.evaluate(1));
    }
    CHECK(stored.count(DS4_WORD_EXPERT_FORESEEN) == 5 * kUsed);
    CHECK(stored.count(DS4_WORD_EXPERT_TRANSIT) == 5 * kLayers * kUsed);
    CHECK(stored.adds_up());
}

TEST(a_long_batch_foresees_nothing) {
    Stored stored({kEnough, 2 * kExperts * kUnit, 0, ReplacementPolicy::lru});
    stored.known_layers = 2;
    CHECK(stored.evaluate(60));
    CHECK(stored.count(DS4_WORD_EXPERT_FORESEEN) == 0);
}

TEST(a_foreseen_read_that_fails_fails_the_step_at_its_layer_and_is_asked_for_again) {
    Stored stored({kEnough, kUsed * kUnit, 0, ReplacementPolicy::lru});
    const std::vector<Ids> ids = {{1, 2, 3}, {4, 5, 6}};
    stored.source.fails_at = 1;
    stored.store.begin_step();
    stored.store.foresee(ids, 1);
    const Outcome outcome = outcome_of([&] { run_layer(stored, 0, ids[0]); });
    CHECK(outcome.status == DS4_E_IO);
    CHECK(outcome.says("weights.gguf"));

    stored.source.fails_at = ~uint64_t{0};
    CHECK(step(stored, ids[0], ids[1]));
    CHECK(stored.evaluate(1));
}
