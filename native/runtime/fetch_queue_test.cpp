#include "runtime/fetch_queue.h"

#include <cstring>
#include <vector>

#include "check.h"
#include "runtime/failure_test.h"
#include "runtime/fickle_source_test.h"
#include "runtime/host_device_test.h"

using namespace ds4;
using namespace ds4::runtime;

namespace {

constexpr uint64_t kBytes = 500000;

struct Queued {
    test::FickleSource  source{test::scrambled_bytes(kBytes)};
    Telemetry           telemetry;
    FileReader          reader{source, nullptr, 1, telemetry};
    test::HostDevice    device;
    backend::Allocation memory = device.allocate(kBytes, "a test");
    FetchQueue          queue;

    explicit Queued(uint32_t threads) : queue(device, threads, 64u << 10, telemetry) {}

    Fetch fetch(uint64_t offset, uint64_t bytes, bool to_host = false) {
        return {&reader, offset, bytes, memory.as<std::byte>() + offset, to_host};
    }
    bool arrived(uint64_t offset, uint64_t bytes) const {
        return std::memcmp(memory.as<std::byte>() + offset, source.bytes.data() + offset, bytes) == 0;
    }
};

} // namespace

TEST(what_was_fetched_is_there_when_the_ticket_was_waited_for) {
    for (const uint32_t threads : {1u, 3u, 16u}) {
        Queued queued(threads);
        queued.source.most = 5000;
        const std::vector<Fetch> first = {queued.fetch(0, 200000), queued.fetch(200001, 1)};
        const std::vector<Fetch> second = {queued.fetch(200003, 100000, true), queued.fetch(300100, 199900)};

        const FetchQueue::Ticket ahead = queued.queue.submit(first, Urgency::ahead);
        const FetchQueue::Ticket now = queued.queue.submit(second);
        queued.queue.wait(now);
        CHECK(queued.arrived(200003, 100000));
        CHECK(queued.arrived(300100, 199900));
        queued.queue.wait(ahead);
        CHECK(queued.arrived(0, 200000));
        CHECK(queued.arrived(200001, 1));
        CHECK(queued.telemetry.get(DS4_WORD_FILE_READ_BYTES) == 499901);
    }
}

TEST(zeros_can_be_fetched_too) {
    Queued queued(2);
    std::memset(queued.memory.as<void>(), 255, kBytes);
    const std::vector<Fetch> zeros = {{nullptr, 0, 300000, queued.memory.as<std::byte>() + 100}};
    queued.queue.wait(queued.queue.submit(zeros));
    const auto *got = queued.memory.as<uint8_t>();
    CHECK(got[99] == 255 && got[100] == 0 && got[300099] == 0 && got[300100] == 255);
}

TEST(an_empty_ticket_is_done_at_once) {
    Queued                   queued(2);
    const FetchQueue::Ticket ticket = queued.queue.submit({});
    CHECK(queued.queue.is_done(ticket));
    queued.queue.wait(ticket);
}

TEST(a_thousand_requests_end_in_any_order_and_each_has_its_own_bytes) {
    Queued                          queued(7);
    std::vector<FetchQueue::Ticket> tickets;
    queued.source.most = 333;
    for (uint64_t i = 0; i < 1000; ++i) {
        const std::vector<Fetch> one = {queued.fetch(i * 499, 1 + i * 37 % 499)};
        tickets.push_back(queued.queue.submit(one, i % 3 == 0 ? Urgency::ahead : Urgency::now));
    }
    for (uint64_t turn = 0; turn < 1000; ++turn) {
        const uint64_t i = turn * 619 % 1000;
        queued.queue.wait(tickets[i]);
        CHECK(queued.arrived(i * 499, 1 + i * 37 % 499));
    }
}

TEST(a_failed_read_belongs_to_its_ticket_alone) {
    Queued queued(1);
    queued.source.ends_at = 300000;
    const std::vector<Fetch> good = {queued.fetch(0, 100000)};
    const std::vector<Fetch> bad = {queued.fetch(250000, 100000), queued.fetch(100000, 1000)};
    const auto               first = queued.queue.submit(good);
    const auto               second = queued.queue.submit(bad);
    const auto               third = queued.queue.submit(std::vector<Fetch>{queued.fetch(200000, 1000)});

    const test::Outcome outcome = test::outcome_of([&] { queued.queue.wait(second); });

    CHECK(outcome.status == DS4_E_IO);
    CHECK(outcome.says("weights.gguf"));
    queued.queue.wait(first);
    queued.queue.wait(third);
    CHECK(queued.arrived(0, 100000));
    CHECK(queued.arrived(200000, 1000));
}

TEST(a_device_that_fails_ends_the_ticket) {
    Queued queued(2);
    queued.device.sends_left = 1;
    const auto ticket = queued.queue.submit(std::vector<Fetch>{queued.fetch(0, kBytes)});
    CHECK(test::outcome_of([&] { queued.queue.wait(ticket); }).status == DS4_E_DEVICE);
}

TEST(a_set_cancel_word_ends_what_is_on_its_way) {
    Queued queued(2);
    queued.telemetry.set(DS4_WORD_CANCEL, 1);
    const auto ticket = queued.queue.submit(std::vector<Fetch>{queued.fetch(0, kBytes)});
    CHECK(test::outcome_of([&] { queued.queue.wait(ticket); }).status == DS4_E_CANCELLED);
    CHECK(queued.source.reads == 0);
    queued.telemetry.set(DS4_WORD_CANCEL, 0);
    queued.queue.wait(queued.queue.submit(std::vector<Fetch>{queued.fetch(0, kBytes)}));
    CHECK(queued.arrived(0, kBytes));
}

TEST(a_queue_that_is_closed_early_reads_no_more_than_it_has_begun) {
    test::FickleSource  source(test::scrambled_bytes(kBytes));
    Telemetry           telemetry;
    const FileReader    reader(source, nullptr, 1, telemetry);
    test::HostDevice    device;
    backend::Allocation memory = device.allocate(kBytes, "a test");
    {
        FetchQueue queue(device, 2, 64u << 10, telemetry);
        for (int i = 0; i < 100; ++i) {
            queue.submit(std::vector<Fetch>{{&reader, 0, kBytes, memory.as<std::byte>()}});
        }
    }
    CHECK(source.reads < 100 * 8);
}
