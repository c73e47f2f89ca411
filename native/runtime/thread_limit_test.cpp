/* A system that starts no more threads: what only goes faster with threads goes on with those there are, what cannot do without
 * says so, and nothing stays behind. */
#include "thread_limit.h"

#include <cstring>
#include <vector>

#include "check.h"
#include "runtime/engine_thread.h"
#include "runtime/failure_test.h"
#include "runtime/fetch_queue.h"
#include "runtime/fickle_source_test.h"
#include "runtime/host_device_test.h"
#include "runtime/stored_experts_test.h"
#include "runtime/upload.h"

using namespace ds4;
using namespace ds4::runtime;

namespace {

constexpr uint64_t kBytes = 500000;

/* A file, and memory that it goes into. */
struct Weights {
    test::FickleSource  source{test::scrambled_bytes(kBytes)};
    Telemetry           telemetry;
    FileReader          reader{source, nullptr, 1, telemetry};
    test::HostDevice    device;
    backend::Allocation memory = device.allocate(kBytes, "a test");

    bool have_arrived() const { return std::memcmp(memory.as<std::byte>(), source.bytes.data(), kBytes) == 0; }
};

} // namespace

TEST("missing weights are read by as many readers as could be started, or by whoever waits for them") {
    for (const size_t started : {0u, 1u, 2u}) {
        Weights                 weights;
        const test::ThreadLimit limit(started);
        FetchQueue              queue(weights.device, 3, 64u << 10, weights.telemetry);
        CHECK(limit.refused() == 1);

        std::vector<FetchQueue::Ticket> tickets;
        for (uint64_t offset = 0; offset < kBytes; offset += 125000) {
            const Fetch part{&weights.reader, offset, 125000, weights.memory.as<std::byte>() + offset};
            tickets.push_back(queue.submit(std::span(&part, 1), offset == 0 ? Urgency::now : Urgency::ahead));
        }
        for (const FetchQueue::Ticket ticket : tickets) {
            queue.wait(ticket);
            CHECK(queue.is_done(ticket));
        }
        CHECK(weights.have_arrived());
    }
}

TEST("a read that fails without readers is heard of by whoever waits for it") {
    Weights                 weights;
    const test::ThreadLimit limit(0);
    FetchQueue              queue(weights.device, 3, 64u << 10, weights.telemetry);
    weights.source.fails_at = 1;
    const Fetch             part{&weights.reader, 0, kBytes, weights.memory.as<std::byte>()};

    const auto outcome = test::outcome_of([&] { queue.wait(queue.submit(std::span(&part, 1))); });

    CHECK(outcome.status == DS4_E_IO && outcome.says("weights.gguf"));
    weights.source.fails_at = std::numeric_limits<uint64_t>::max();
    queue.wait(queue.submit(std::span(&part, 1)));
    CHECK(weights.have_arrived());
}

TEST("experts are streamed rightly without a single reader") {
    const test::ThreadLimit limit(0);
    for (const uint64_t host : {uint64_t{0}, 4 * test::kUnit}) {
        test::Stored stored({6 * test::kUnit, 24 * test::kUnit, host, ReplacementPolicy::lru});
        stored.known_layers = 2;
        for (const size_t tokens : {1u, 40u, 1u, 5u, 1u, 1u, 1u}) {
            CHECK(stored.evaluate(tokens));
        }
        CHECK(stored.adds_up());
    }
    CHECK(limit.refused() > 0);
}

TEST("weights are uploaded by as many threads as could be started") {
    for (const size_t started : {0u, 2u}) {
        Weights                        weights;
        const std::vector<UploadPiece> pieces = {{&weights.reader, 0, kBytes, weights.memory.as<std::byte>()}};
        {
            const test::ThreadLimit limit(started);
            upload(weights.device, pieces, {.threads = 5, .slots = 2, .slot_bytes = 64u << 10}, weights.telemetry);
            CHECK(limit.refused() == 1);
        }
        CHECK(weights.have_arrived() && weights.device.finished);
    }
}

TEST("an upload that fails without threads leaves nothing on its way") {
    Weights                        weights;
    const std::vector<UploadPiece> pieces = {{&weights.reader, 0, kBytes, weights.memory.as<std::byte>()}};
    const test::ThreadLimit        limit(0);
    weights.source.fails_at = 3;

    const auto outcome = test::outcome_of(
        [&] { upload(weights.device, pieces, {.threads = 5, .slots = 2, .slot_bytes = 64u << 10}, weights.telemetry); });

    CHECK(outcome.status == DS4_E_IO && outcome.says("weights.gguf"));
    CHECK(weights.telemetry.get(DS4_WORD_BYTES_DONE) < kBytes);
}

TEST("an engine without its thread says that the system has none left") {
    const test::ThreadLimit limit(0);

    const auto outcome = test::outcome_of([] { const EngineThread thread; });

    CHECK(outcome.status == DS4_E_NO_MEMORY && outcome.says("cannot start the engine thread: "));
    CHECK(limit.refused() == 1);
}
