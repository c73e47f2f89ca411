#include "runtime/expert_store.h"

#include <algorithm>
#include <vector>

#include "check.h"
#include "runtime/failure_test.h"
#include "runtime/stored_experts_test.h"

using namespace ds4;
using namespace ds4::runtime;
using namespace ds4::test;

namespace {

constexpr UploadOptions kUpload{.threads = 2, .slots = 4, .slot_bytes = 64u << 10};
/* Of layers 0, 2 and 3, which have experts of the same size. */
const std::vector<ExpertId> kWanted = {{3, 7}, {0, 11}, {2, 0}, {0, 3}, {3, 1}, {2, 5}};

ExpertPlan plan(uint64_t slots, uint64_t host, ReplacementPolicy policy = ReplacementPolicy::lru) {
    return {slots, kUsed * kUnit, host, policy};
}

/* Slots of the class of the smaller layers come first: so many bytes give `count` of them. */
uint64_t bytes_for_small_slots(size_t count) {
    const uint64_t small = 768 + 768 + 1024;
    const uint64_t all = 3 * small + kUnit;
    return (count * small * all + 3 * small - 1) / (3 * small);
}

std::vector<ExpertId> kept(const ExpertStore &store) {
    std::vector<ExpertId> ids;
    for (const ExpertUse &use : store.uses()) {
        if (use.is_kept) {
            ids.push_back(use.id);
        }
    }
    return ids;
}

bool same(const std::vector<ExpertId> &one, std::span<const ExpertId> other) {
    return std::ranges::equal(one, other,
                              [](const ExpertId &a, const ExpertId &b) { return a.layer == b.layer && a.expert == b.expert; });
}

/* The layer chooses these. */
void use(Stored &stored, size_t layer, const std::vector<int32_t> &ids) {
    stored.store.begin_step();
    stored.store.begin_run(layer, ids, 1);
    stored.store.complete_run();
    stored.store.end_run();
    stored.store.end_step({}, 1);
}

} // namespace

TEST(seeded_experts_are_right_and_hit_at_once) {
    Stored stored(plan(kEnough, 0));
    CHECK(stored.store.seed(kWanted, kUpload) == kWanted.size());
    CHECK(stored.count(DS4_WORD_EXPERT_SEEDED) == kWanted.size());
    CHECK(stored.count(DS4_WORD_EXPERT_SLOTS_USED) == kWanted.size());
    CHECK(stored.count(DS4_WORD_BYTES_DONE) == stored.count(DS4_WORD_BYTES_TOTAL));
    for (const ExpertId &id : kWanted) {
        CHECK(stored.finds(id));
    }
    const uint64_t reads = stored.count(DS4_WORD_FILE_READS);
    use(stored, 0, {11, 3, 11});
    CHECK(stored.count(DS4_WORD_EXPERT_DEVICE_HITS) == 2);
    CHECK(stored.count(DS4_WORD_EXPERT_MISSES) == 0);
    CHECK(stored.count(DS4_WORD_FILE_READS) == reads);
}

TEST(the_first_of_the_list_get_the_slots_the_next_host_memory_and_the_rest_nothing) {
    for (const ReplacementPolicy policy : {ReplacementPolicy::lru, ReplacementPolicy::lfru}) {
        Stored stored(plan(bytes_for_small_slots(2), 3 * kUnit, policy));
        CHECK(stored.store.seed(kWanted, kUpload) == 5);
        CHECK(stored.count(DS4_WORD_EXPERT_SLOTS_USED) == 2);
        CHECK(stored.count(DS4_WORD_EXPERT_HOST_USED) == 3);
        CHECK(stored.count(DS4_WORD_EXPERT_HOST_ADMISSIONS) == 3);
        CHECK(stored.count(DS4_WORD_EXPERT_HOST_ADMITTED_BYTES) <= 3 * kUnit);
        CHECK(same(kept(stored.store), std::span(kWanted).first(5)));
        CHECK(stored.finds(kWanted[4]));
        CHECK(!stored.finds(kWanted[5]));
        use(stored, 3, {7, 1, 7});
        CHECK(stored.count(DS4_WORD_EXPERT_DEVICE_HITS) == 1);
        CHECK(stored.count(DS4_WORD_EXPERT_HOST_HITS) == 1);
    }
}

TEST(the_last_seed_is_given_up_first) {
    for (const ReplacementPolicy policy : {ReplacementPolicy::lru, ReplacementPolicy::lfru}) {
        Stored stored(plan(bytes_for_small_slots(4), 0, policy));
        CHECK(stored.store.seed(kWanted, kUpload) == 4);
        use(stored, 2, {9, 9, 9});
        CHECK(stored.count(DS4_WORD_EXPERT_EVICTIONS) == 1);
        CHECK(!stored.finds(kWanted[3]));
        CHECK(stored.finds(kWanted[0]) && stored.finds(kWanted[1]) && stored.finds(kWanted[2]));
    }
}

TEST(seeding_evicts_nobody_and_reads_nothing_twice) {
    Stored stored(plan(bytes_for_small_slots(4), 0));
    use(stored, 0, {1, 2, 3});
    const std::vector<ExpertId> wanted = {{0, 2}, {3, 7}, {3, 7}, {2, 4}};
    CHECK(stored.store.seed(wanted, kUpload) == 1); /* 2 is there, the second 7 is the first, and no slot is left for 4 */
    CHECK(stored.count(DS4_WORD_EXPERT_EVICTIONS) == 0);
    for (const uint32_t expert : {1u, 2u, 3u}) {
        CHECK(stored.finds({0, expert}));
    }
    CHECK(stored.finds({3, 7}) && !stored.finds({2, 4}));
    CHECK(stored.store.seed(wanted, kUpload) == 0);
}

TEST(without_places_of_their_own_no_experts_are_seeded) {
    Stored stored(plan(0, 0));
    CHECK(stored.store.seed(kWanted, kUpload) == 0);
    CHECK(stored.count(DS4_WORD_FILE_READS) == 0);
    CHECK(stored.evaluate(1));
}

TEST(an_expert_that_does_not_exist_cannot_be_seeded) {
    Stored stored(plan(kEnough, 0));
    for (const ExpertId &id : {ExpertId{kLayers, 0}, ExpertId{0, kExperts}, ExpertId{~0u, ~0u}}) {
        const std::vector<ExpertId> wanted = {{0, 0}, id};
        const Outcome outcome = outcome_of([&] { stored.store.seed(wanted, kUpload); });
        CHECK(outcome.status == DS4_E_ARGUMENT);
        CHECK(outcome.says("there is no expert"));
    }
    CHECK(stored.count(DS4_WORD_FILE_READS) == 0);
}

TEST(a_read_that_fails_while_seeding_leaves_what_had_arrived_and_a_store_that_works) {
    for (uint64_t fails = 1; fails < 19; fails += 3) {
        Stored stored(plan(kEnough, 2 * kUnit));
        stored.source.fails_at = fails;
        const Outcome outcome = outcome_of([&] { stored.store.seed(kWanted, kUpload); });
        CHECK(outcome.status == DS4_E_IO);
        CHECK(outcome.says("weights.gguf"));
        for (const ExpertId &id : kept(stored.store)) {
            CHECK(stored.finds(id));
        }
        CHECK(kept(stored.store).size() < kWanted.size());
        stored.source.fails_at = ~uint64_t{0};
        CHECK(stored.evaluate(1));
        CHECK(stored.store.seed(kWanted, kUpload) <= kWanted.size());
        for (const ExpertId &id : kWanted) {
            CHECK(stored.finds(id));
        }
    }
}

TEST(seeding_stops_when_it_is_cancelled) {
    for (const Start start : {Start::in_file, Start::in_host_memory}) {
        Stored stored(plan(kEnough, 0), start);
        stored.telemetry.set(DS4_WORD_CANCEL, 1);
        CHECK(outcome_of([&] { stored.store.seed(kWanted, kUpload); }).status == DS4_E_CANCELLED);
        CHECK(stored.count(DS4_WORD_EXPERT_SLOTS_USED) == 0);
        stored.telemetry.set(DS4_WORD_CANCEL, 0);
        CHECK(stored.evaluate(1));
    }
}

TEST(slots_beside_experts_in_host_memory_take_the_seeds_first_and_then_some_of_every_layer) {
    Stored stored(plan(bytes_for_small_slots(9), 0), Start::in_host_memory);
    CHECK(stored.store.seed(kWanted, kUpload) == kWanted.size());
    CHECK(stored.count(DS4_WORD_EXPERT_SLOTS_USED) == stored.count(DS4_WORD_EXPERT_SLOTS));
    const std::vector<ExpertId> present = kept(stored.store);
    for (const ExpertId &id : kWanted) {
        CHECK(std::ranges::any_of(present, [&](const ExpertId &other) {
            return other.layer == id.layer && other.expert == id.expert;
        }));
    }
    CHECK(present.size() > kWanted.size());
    for (const ExpertId &id : present) {
        CHECK(stored.finds(id));
    }
    CHECK(stored.evaluate(1));
    CHECK(stored.adds_up());
}

TEST(a_slot_that_could_not_be_filled_stays_empty) {
    Stored stored(plan(kEnough, 0), Start::in_host_memory);
    stored.device.sends_left = 3;
    CHECK(outcome_of([&] { stored.store.seed(kWanted, kUpload); }).status == DS4_E_DEVICE);
    CHECK(kept(stored.store).empty());
    CHECK(stored.finds(kWanted[0])); /* where it always was */
    stored.device.sends_left = ~uint64_t{0};
    CHECK(stored.store.seed(kWanted, kUpload) == kWanted.size());
}

TEST(uses_are_counted_once_for_each_evaluation_and_add_up_to_the_lookups) {
    for (const Start start : {Start::in_file, Start::in_host_memory}) {
        Stored stored(plan(bytes_for_small_slots(5), 4 * kUnit), start);
        for (const size_t tokens : {1u, 30u, 1u, 1u, 4u, 1u}) {
            CHECK(stored.evaluate(tokens));
        }
        uint64_t sum = 0;
        bool     may_be_kept = true;
        uint64_t last = ~uint64_t{0};
        for (const ExpertUse &use : stored.store.uses()) {
            sum += use.uses;
            CHECK(may_be_kept || !use.is_kept); /* those that have places come first */
            if (!use.is_kept) {
                CHECK(use.uses > 0 && use.uses <= last);
                last = use.uses;
            }
            may_be_kept = use.is_kept;
        }
        CHECK(sum == stored.count(DS4_WORD_EXPERT_LOOKUPS));
    }
}

TEST(what_was_used_last_is_listed_first) {
    Stored stored(plan(kEnough, 0));
    CHECK(stored.store.seed(kWanted, kUpload) == kWanted.size());
    use(stored, 2, {5, 5, 5});
    const std::vector<ExpertId> now = {{2, 5}, {3, 7}, {0, 11}, {2, 0}, {0, 3}, {3, 1}};
    CHECK(same(kept(stored.store), now));
    CHECK(stored.store.uses().front().uses == 1);
    CHECK(stored.store.uses().back().uses == 0);
}

TEST(a_store_that_is_seeded_with_what_another_kept_keeps_the_same_in_the_same_order) {
    for (const ReplacementPolicy policy : {ReplacementPolicy::lru, ReplacementPolicy::lfru}) {
        const ExpertPlan room = plan(bytes_for_small_slots(6), 5 * kUnit, policy);
        Stored           first(room);
        for (int step = 0; step < 40; ++step) {
            CHECK(first.evaluate(1));
        }
        for (int asked = 0; asked < 2; ++asked) {
            first.store.begin_step(); /* promotions that are on their way arrive */
        }
        Stored second(room);
        const std::vector<ExpertId> saved = kept(first.store);
        CHECK(second.store.seed(saved, kUpload) == saved.size());
        CHECK(same(kept(second.store), saved));
        CHECK(second.evaluate(1));
    }
}
