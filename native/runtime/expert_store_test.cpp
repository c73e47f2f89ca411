#include "runtime/expert_store.h"

#include <vector>

#include "check.h"
#include "runtime/failure_test.h"
#include "runtime/stored_experts_test.h"

using namespace ds4;
using namespace ds4::runtime;
using namespace ds4::test;

TEST(streamed_experts_are_right_whatever_the_capacities) {
    for (const uint64_t slots : {uint64_t{0}, 1 * kUnit, 6 * kUnit, 20 * kUnit, kEnough}) {
        for (const uint64_t host : {uint64_t{0}, 4 * kUnit, kEnough}) {
            for (const uint64_t transit : {kUsed * kUnit, 7 * kUnit, 24 * kUnit}) {
                for (size_t kind = 0; kind < 8; ++kind) {
                    Stored stored({slots, transit, host, kind < 4 ? ReplacementPolicy::lru : ReplacementPolicy::lfru});
                    stored.known_layers = kind % 4;
                    for (const size_t tokens : {1u, 1u, 5u, 1u, 40u, 1u, 1u, 9u, 1u}) {
                        CHECK(stored.evaluate(tokens));
                    }
                    for (int step = 0; step < 30; ++step) {
                        CHECK(stored.evaluate(1));
                    }
                    CHECK(stored.adds_up());
                }
            }
        }
    }
}

TEST(with_room_for_all_nothing_is_read_twice) {
    Stored stored({kEnough, kUsed * kUnit, 0, ReplacementPolicy::lru});
    for (int step = 0; step < 200; ++step) {
        CHECK(stored.evaluate(1));
    }
    const uint64_t read = stored.count(DS4_WORD_FILE_READ_BYTES);
    CHECK(stored.count(DS4_WORD_EXPERT_EVICTIONS) == 0);
    CHECK(stored.evaluate(1));
    CHECK(stored.count(DS4_WORD_FILE_READ_BYTES) == read);
}

TEST(a_batch_evicts_nothing) {
    Stored stored({6 * kUnit, 24 * kUnit, 0, ReplacementPolicy::lru});
    for (int step = 0; step < 20; ++step) {
        CHECK(stored.evaluate(1));
    }
    const uint64_t before = stored.count(DS4_WORD_EXPERT_EVICTIONS);
    CHECK(before > 0);
    CHECK(stored.count(DS4_WORD_EXPERT_EVICTED_BYTES) > before * (kSmall[0] + kSmall[1] + kSmall[2]));
    CHECK(stored.count(DS4_WORD_EXPERT_EVICTED_BYTES) <= before * kUnit);
    CHECK(stored.evaluate(60));
    CHECK(stored.count(DS4_WORD_EXPERT_EVICTIONS) == before);
    CHECK(stored.count(DS4_WORD_EXPERT_TRANSIT) > 0);
}

TEST(a_batch_that_is_cut_looks_up_each_expert_once_and_keeps_what_its_next_run_needs) {
    Stored stored({0, 8 * kUnit, 0, ReplacementPolicy::lru}); /* of twelve experts */
    const uint64_t tokens = 60;
    CHECK(stored.evaluate(tokens));
    CHECK(stored.count(DS4_WORD_EXPERT_LOOKUPS) <= kLayers * kExperts);
    CHECK(stored.adds_up());
    /* Giving up everything after each run would read far more than this. */
    CHECK(stored.count(DS4_WORD_EXPERT_TRANSIT) < kLayers * tokens * kUsed / 2);
}

TEST(a_long_batch_reads_the_next_layer_ahead) {
    Stored stored({0, 2 * kExperts * kUnit, 0, ReplacementPolicy::lru});
    CHECK(stored.evaluate(60));
    CHECK(stored.count(DS4_WORD_LAYER_LOADS) == kLayers - 1);
    CHECK(stored.count(DS4_WORD_LAYER_LOAD_BYTES) > 0);
    CHECK(stored.count(DS4_WORD_LAYER_LOAD_BYTES) <= stored.count(DS4_WORD_FILE_READ_BYTES));
    CHECK(stored.count(DS4_WORD_EXPERT_IN_FLIGHT_HITS) > 0);
    CHECK(stored.adds_up());
}

TEST(an_expert_in_host_memory_that_is_used_again_gets_a_slot) {
    Stored stored({kEnough / 500, kUsed * kUnit, 0, ReplacementPolicy::lru}, Start::in_host_memory);
    for (int step = 0; step < 100; ++step) {
        CHECK(stored.evaluate(1));
    }
    CHECK(stored.count(DS4_WORD_EXPERT_PROMOTIONS) > 0);
    CHECK(stored.count(DS4_WORD_EXPERT_DEVICE_HITS) > 0);
    CHECK(stored.count(DS4_WORD_BUS_READ_BYTES) > 0);
    CHECK(stored.count(DS4_WORD_FILE_READS) == 0);
    CHECK(stored.adds_up());
}

TEST(slots_that_were_filled_beforehand_hit_at_once) {
    Stored stored({kEnough, 0, 0, ReplacementPolicy::lru}, Start::in_host_memory);
    stored.store.fill_slots({.threads = 2, .slots = 4, .slot_bytes = 64u << 10});
    CHECK(stored.evaluate(1));
    CHECK(stored.count(DS4_WORD_EXPERT_HOST_HITS) == 0);
    CHECK(stored.count(DS4_WORD_EXPERT_SLOTS_USED) == kLayers * kExperts);
}

TEST(with_all_in_host_memory_and_no_slots_everything_crosses_the_bus) {
    Stored stored({}, Start::in_host_memory);
    CHECK(stored.evaluate(1));
    CHECK(stored.count(DS4_WORD_EXPERT_HOST_HITS) == kLayers * kUsed);
    CHECK(stored.count(DS4_WORD_EXPERT_DEVICE_HITS) == 0);
}

TEST(less_memory_than_one_tokens_experts_is_refused) {
    const Outcome outcome =
        outcome_of([] { Stored stored({0, (kUsed - 1) * kUnit, 0, ReplacementPolicy::lru}); });
    CHECK(outcome.status == DS4_E_ARGUMENT);
    CHECK(outcome.says("3 experts of one token"));
}

TEST(a_failed_read_fails_the_step_and_harms_nothing_else) {
    for (const uint64_t slots : {uint64_t{0}, 8 * kUnit}) {
        for (const size_t tokens : {1u, 30u}) {
            Stored stored({slots, 2 * kExperts * kUnit, 3 * kUnit, ReplacementPolicy::lru});
            stored.known_layers = 2;
            CHECK(stored.evaluate(2));
            for (uint64_t later = 1; later < 40; later += 3) {
                stored.source.fails_at = stored.source.reads + later;
                stored.source.fails_until = stored.source.fails_at + 30;
                const Outcome outcome = outcome_of([&] { CHECK(stored.evaluate(tokens)); });
                CHECK(outcome.status == DS4_OK || outcome.status == DS4_E_IO);
                stored.source.fails_at = stored.source.fails_until = ~uint64_t{0};
                CHECK(stored.evaluate(1));
            }
        }
    }
}

TEST(a_step_that_is_left_in_the_middle_of_a_run_is_cleaned_up) {
    Stored stored({4 * kUnit, 2 * kExperts * kUnit, 0, ReplacementPolicy::lru});
    CHECK(stored.evaluate(1));
    for (const size_t tokens : {1u, 50u}) {
        stored.store.begin_step();
        stored.store.begin_run(2, stored.choose(tokens), tokens);
        /* An op throws here. */
        CHECK(stored.evaluate(tokens));
        CHECK(stored.evaluate(1));
    }
}

TEST(places_that_cannot_be_had_make_the_cache_smaller) {
    HostDevice device;
    ExpertPlaces     places(1000, ReplacementPolicy::lru);
    device.pins_left = 0;
    places.take_pinned_memory(device, 10);
    CHECK(places.count() == 0);

    ExpertPlaces slots(1u << 20, ReplacementPolicy::lru);
    device.free_bytes = 5u << 20; /* of one allocation */
    slots.take_device_memory(device, 12);
    CHECK(slots.count() == 12); /* in slabs of half and half again */
}
