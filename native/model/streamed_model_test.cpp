/* A whole model whose experts are read when they are needed, on a device whose memory the host cannot see. */
#include <vector>

#include "check.h"
#include "model/apart_device_test.h"
#include "model/tiny_model_test.h"
#include "runtime/failure_test.h"

using namespace ds4;
using test::run;
using test::same_bits;
using test::TinyModel;
using test::tiny_tokens;

namespace {

constexpr model::SessionOptions kRoomy{.context = 400, .prefill_chunk = 50, .checkpoint_count = 1};
constexpr uint64_t              kExpertBytes = 3 * 1280; /* gate, up, down of 32 x 32 values in Q8_0, rounded up */
constexpr uint64_t              kScoreLayers = 4;        /* of five layers */
constexpr uint64_t              kCopies = 1 + kScoreLayers; /* the result, and what those layers chose */

struct Streamed {
    TinyModel                     tiny;
    test::ApartDevice            *device = nullptr;
    std::shared_ptr<model::Model> loaded;

    explicit Streamed(uint64_t slots, uint64_t transit = 2) {
        loaded = tiny.open({.plan = {.placement = runtime::WeightPlacement::stream_experts},
                            .experts = {.slot_bytes = slots * kExpertBytes, .transit_bytes = transit * kExpertBytes},
                            .replace = [this](backend::Backend host) {
                                auto own = std::make_unique<test::ApartDevice>();
                                auto ops = std::make_unique<test::ApartOps>(*own, std::move(host.ops));
                                device = own.get();
                                return backend::Backend{.device = std::move(own), .ops = std::move(ops)};
                            }});
    }
    /* Evaluates a token for the best one after it; how often the host had to wait for a copy from the device. */
    uint64_t step(model::Session &session, int32_t token) {
        float              logit = 0;
        int32_t            best = 0;
        model::EvalRequest request{};
        request.tokens = {&token, 1};
        request.position = session.position();
        request.candidate_logit = {&logit, 1};
        request.candidate_id = {&best, 1};
        device->copies_in = 0;
        device->copies_out = 0;
        session.eval(request);
        return device->copies_out;
    }
    uint64_t count(size_t word) const { return tiny.telemetry->get(word); }
};

std::vector<runtime::ExpertId> all_experts(const TinyModel &tiny) {
    std::vector<runtime::ExpertId> ids;
    for (uint32_t layer = 0; layer < tiny.shape.layer_count; ++layer) {
        for (uint32_t expert = 0; expert < tiny.shape.expert_count; ++expert) {
            ids.push_back({layer, expert});
        }
    }
    return ids;
}

} // namespace

TEST("streamed, seeded and foreseen experts give the bits of a resident model") {
    const std::vector<int32_t> tokens = tiny_tokens(150);
    TinyModel                  tiny;
    model::Session             resident(tiny.open(), kRoomy);
    const std::vector<float>   want = run(resident, tokens, 50);
    for (const uint64_t slots : {0u, 5u, 10u, 40u}) {
        for (const size_t chunk : {1u, 7u, 50u}) {
            for (const bool seeds : {false, true}) {
                Streamed streamed(slots);
                if (seeds) {
                    CHECK((streamed.loaded->seed_experts(all_experts(streamed.tiny)) > 0) == (slots > 0));
                }
                model::Session session(streamed.loaded, kRoomy);
                CHECK(same_bits(run(session, tokens, chunk), want));
                CHECK(chunk < 50 || streamed.count(DS4_WORD_EXPERT_FORESEEN) == 0);
            }
        }
    }
}

TEST("a layer that routes by token id reads no choice back once its experts are there") {
    Streamed       streamed(40);
    model::Session session(streamed.loaded, kRoomy);
    CHECK(streamed.loaded->seed_experts(all_experts(streamed.tiny)) == 30);
    run(session, tiny_tokens(20), 20);
    streamed.step(session, 0);
    for (const int32_t token : tiny_tokens(40)) {
        CHECK(streamed.step(session, token) == kCopies);
        CHECK(streamed.device->copies_in == 0);
    }
    CHECK(streamed.count(DS4_WORD_EXPERT_MISSES) == 0);
}

TEST("a layer that routes by token id reads no choice back when its experts are on their way") {
    Streamed       streamed(40);
    model::Session session(streamed.loaded, kRoomy);
    CHECK(streamed.step(session, 0) == kCopies);
    CHECK(streamed.count(DS4_WORD_EXPERT_FORESEEN) == 2);
    CHECK(streamed.count(DS4_WORD_EXPERT_IN_FLIGHT_HITS) == 2);
    CHECK(streamed.count(DS4_WORD_EXPERT_MISSES) == 2 * kScoreLayers);
}

TEST("an expert of a layer outside the slice is not seeded") {
    Streamed                             streamed(40);
    const std::vector<runtime::ExpertId> wanted = {{5, 0}};
    const test::Outcome outcome = test::outcome_of([&] { streamed.loaded->seed_experts(wanted); });
    CHECK(outcome.status == DS4_E_ARGUMENT);
    CHECK(outcome.says("layers 0 to 4"));
}
