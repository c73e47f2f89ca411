#include "runtime/expert_store.h"

#include <cstring>
#include <vector>

#include "check.h"
#include "runtime/failure_test.h"
#include "runtime/fickle_source_test.h"
#include "runtime/host_device_test.h"

using namespace ds4;
using namespace ds4::runtime;

namespace {

constexpr size_t kLayers = 4;
constexpr size_t kExperts = 12;
constexpr size_t kUsed = 3;
/* Gate, up, down of an expert; the layers have two sizes. */
constexpr uint64_t kSmall[3] = {700, 700, 900};
constexpr uint64_t kLarge[3] = {1400, 1400, 1900};
constexpr uint64_t kUnit = 1536 + 1536 + 2048; /* of the larger, as it lies in a place */

struct Random {
    uint64_t state = 42;
    uint64_t below(uint64_t most) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return (state >> 33) % most;
    }
};

enum class Start { in_file, in_host_memory };

struct Stored {
    test::FickleSource       source{test::scrambled_bytes(kLayers * kExperts * 4800 + 1000)};
    Telemetry                telemetry;
    FileReader               reader{source, nullptr, 1, telemetry};
    test::HostDevice         device;
    FetchQueue               queue{device, 3, 4096, telemetry};
    std::vector<ExpertLayer> layers;
    ExpertStore              store;
    Random                   random;

    explicit Stored(const ExpertPlan &plan, Start start = Start::in_file)
        : layers(make_layers(start)), store(device, &queue, layers, kExperts, kUsed, plan, telemetry) {}

    std::vector<ExpertLayer> make_layers(Start start) {
        std::vector<ExpertLayer> made;
        uint64_t                 offset = 17;
        for (size_t layer = 0; layer < kLayers; ++layer) {
            ExpertLayer &matrices = made.emplace_back();
            for (size_t part = 0; part < 3; ++part) {
                const uint64_t         bytes = layer == 1 ? kLarge[part] : kSmall[part];
                const std::byte *const here = start == Start::in_file ? nullptr : source.bytes.data() + offset;
                matrices[part] = {&reader, offset, bytes, here, here};
                offset += kExperts * bytes + 3;
            }
        }
        return made;
    }

    bool is_right(const backend::ExpertAddress &address, size_t layer, int32_t expert) const {
        const std::byte *const parts[3] = {address.gate, address.up, address.down};
        bool                   right = true;
        for (size_t part = 0; part < 3; ++part) {
            const ExpertMatrix &matrix = layers[layer][part];
            const uint64_t      offset = matrix.offset + static_cast<uint64_t>(expert) * matrix.bytes;
            right = right && parts[part] != nullptr &&
                    std::memcmp(parts[part], source.bytes.data() + offset, matrix.bytes) == 0;
        }
        return right;
    }

    /* Distinct experts, some of them more often than others. */
    std::vector<int32_t> choose(size_t tokens) {
        std::vector<int32_t> ids;
        for (size_t token = 0; token < tokens; ++token) {
            std::vector<int32_t> chosen;
            while (chosen.size() < kUsed) {
                const auto expert = static_cast<int32_t>(random.below(2) == 0 ? random.below(4) : random.below(kExperts));
                if (std::ranges::find(chosen, expert) == chosen.end()) {
                    chosen.push_back(expert);
                }
            }
            ids.insert(ids.end(), chosen.begin(), chosen.end());
        }
        return ids;
    }

    /* One evaluation; returns whether every run found right bytes for all that it needed. */
    bool evaluate(size_t tokens) {
        bool                 right = true;
        std::vector<int32_t> all;
        store.begin_step();
        for (size_t layer = 0; layer < kLayers; ++layer) {
            const std::vector<int32_t> ids = choose(tokens);
            all.insert(all.end(), ids.begin(), ids.end());
            for (size_t first = 0; first < tokens && store.streams();) {
                const auto rest = std::span(ids).subspan(first * kUsed);
                const auto run = store.begin_run(layer, rest, tokens);
                for (const int32_t expert : rest.first(run.tokens * kUsed)) {
                    const backend::ExpertAddress *here = run.present == nullptr ? nullptr : run.present + expert;
                    right = right && (here == nullptr || here->gate == nullptr || is_right(*here, layer, expert));
                }
                store.complete_run();
                for (const int32_t expert : rest.first(run.tokens * kUsed)) {
                    right = right && is_right(store.table(layer)[expert], layer, expert);
                }
                store.end_run();
                first += run.tokens;
            }
            for (const int32_t expert : ids) {
                right = right && (store.streams() || is_right(store.table(layer)[expert], layer, expert));
            }
        }
        store.end_step(all, tokens);
        return right;
    }

    uint64_t count(size_t word) const { return telemetry.get(word); }
    bool     adds_up() const {
        return count(DS4_WORD_EXPERT_LOOKUPS) == count(DS4_WORD_EXPERT_DEVICE_HITS) + count(DS4_WORD_EXPERT_HOST_HITS) +
                                                     count(DS4_WORD_EXPERT_IN_FLIGHT_HITS) + count(DS4_WORD_EXPERT_MISSES);
    }
};

constexpr uint64_t kEnough = 1000 * kUnit;

} // namespace

TEST(streamed_experts_are_right_whatever_the_capacities) {
    for (const uint64_t slots : {uint64_t{0}, 1 * kUnit, 6 * kUnit, 20 * kUnit, kEnough}) {
        for (const uint64_t host : {uint64_t{0}, 4 * kUnit, kEnough}) {
            for (const uint64_t transit : {kUsed * kUnit, 7 * kUnit, 24 * kUnit}) {
                for (const ReplacementPolicy policy : {ReplacementPolicy::lru, ReplacementPolicy::lfru}) {
                    Stored stored({slots, transit, host, policy});
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
    const test::Outcome outcome =
        test::outcome_of([] { Stored stored({0, (kUsed - 1) * kUnit, 0, ReplacementPolicy::lru}); });
    CHECK(outcome.status == DS4_E_ARGUMENT);
    CHECK(outcome.says("3 experts of one token"));
}

TEST(a_failed_read_fails_the_step_and_harms_nothing_else) {
    for (const uint64_t slots : {uint64_t{0}, 8 * kUnit}) {
        for (const size_t tokens : {1u, 30u}) {
            Stored stored({slots, 2 * kExperts * kUnit, 3 * kUnit, ReplacementPolicy::lru});
            CHECK(stored.evaluate(2));
            for (uint64_t later = 1; later < 40; later += 3) {
                stored.source.fails_at = stored.source.reads + later;
                stored.source.fails_until = stored.source.fails_at + 30;
                const test::Outcome outcome = test::outcome_of([&] { CHECK(stored.evaluate(tokens)); });
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
    test::HostDevice device;
    ExpertPlaces     places(1000, ReplacementPolicy::lru);
    device.pins_left = 0;
    places.take_pinned_memory(device, 10);
    CHECK(places.count() == 0);

    ExpertPlaces slots(1u << 20, ReplacementPolicy::lru);
    device.free_bytes = 5u << 20; /* of one allocation */
    slots.take_device_memory(device, 12);
    CHECK(slots.count() == 12); /* in slabs of half and half again */
}
