#include <algorithm>
#include <thread>

#include "backend/sim/simulated_machine_test.h"

using namespace ds4;
using namespace ds4::backend;
using namespace ds4::backend::sim::test;

namespace {

constexpr auto kOnItsWay = static_cast<char>(0xff);

/* A ring of two buffers and a place for what they bring. */
struct Upload {
    explicit Upload(const ds4_simulation &machine = small_machine()) : simulated(machine) {}

    void fill_and_send(size_t slot, char value, size_t to) {
        std::ranges::fill(ring->wait(slot), std::byte(value));
        ring->send(slot, place.get() + to, 4, 8);
    }
    char at(size_t index) const { return place.read()[index]; }

    Simulated                   simulated;
    Placed<char>                place{simulated.device(), 16};
    std::unique_ptr<UploadRing> ring = simulated.device().upload_ring(2, 100);
};

} // namespace

TEST("what is sent through a ring is not a number until somebody waits for it") {
    Upload upload;
    upload.fill_and_send(0, 5, 4);

    CHECK(upload.at(3) == 0 && upload.at(4) == kOnItsWay && upload.at(7) == kOnItsWay && upload.at(8) == 0);
    static_cast<void>(upload.ring->wait(0));
    CHECK(upload.at(4) == 5 && upload.at(7) == 5 && upload.at(8) == 0);
}

TEST("a buffer that is filled again too early brings the wrong bytes") {
    Upload                     upload;
    const std::span<std::byte> buffer = upload.ring->wait(0);
    upload.fill_and_send(0, 5, 0);
    std::ranges::fill(buffer, std::byte{6});

    upload.ring->finish();

    CHECK(upload.at(0) == 6);
}

TEST("a copy has arrived when it is asked for the second time") {
    Upload upload;
    CHECK(upload.ring->arrived(0) && upload.ring->arrived(1));

    for (int turn = 0; turn < 2; ++turn) {
        upload.fill_and_send(0, static_cast<char>(5 + turn), 0);
        CHECK(!upload.ring->arrived(0));
        CHECK(upload.at(0) == kOnItsWay);
        CHECK(upload.ring->arrived(0));
        CHECK(upload.at(0) == 5 + turn);
        CHECK(upload.ring->arrived(0));
    }
}

TEST("copies arrive in the order of sending, and those before with the one that is waited for") {
    Upload upload;
    upload.fill_and_send(0, 1, 0);
    upload.fill_and_send(1, 2, 2); /* over the end of the first */
    upload.fill_and_send(0, 3, 10);

    CHECK(upload.at(1) == 1); /* the third waited for its buffer */
    CHECK(upload.at(4) == kOnItsWay);
    static_cast<void>(upload.ring->wait(1));
    CHECK(upload.at(1) == 1 && upload.at(2) == 2 && upload.at(10) == kOnItsWay);
}

TEST("everything has arrived before the next op, at the end, and when the ring goes") {
    Upload upload;
    upload.fill_and_send(0, 1, 0);
    upload.ring->precede_ops();
    CHECK(upload.at(0) == 1 && upload.ring->arrived(0));

    upload.fill_and_send(1, 2, 0);
    upload.ring->finish();
    CHECK(upload.at(0) == 2);

    upload.ring->follow_ops();
    upload.fill_and_send(0, 3, 0);
    upload.ring.reset();
    CHECK(upload.at(0) == 3);
}

TEST("pinned memory is sent as it lies, other memory is not") {
    Upload                 upload;
    std::vector<std::byte> host(64, std::byte{7});
    const auto             pinned = upload.simulated.device().pin_memory(64, "a test");
    std::ranges::fill(pinned->bytes(), std::byte{8});
    {
        const auto mapped = upload.simulated.device().map_host(std::span(host).first(32));
        upload.ring->send_pinned(0, upload.place.get(), host.data() + 28, 4);
        upload.ring->send_pinned(0, upload.place.get() + 8, pinned->bytes().data(), 8);
        CHECK_FAILS(DS4_E_DEVICE, upload.ring->send_pinned(0, upload.place.get(), host.data() + 29, 4));
        upload.ring->finish();
    }
    CHECK(upload.at(3) == 7 && upload.at(4) == 0 && upload.at(15) == 8);
    CHECK_FAILS(DS4_E_DEVICE, upload.ring->send_pinned(0, upload.place.get(), host.data(), 4));
}

TEST("a place that is no device memory, or gone when the copy arrives, is found out") {
    Upload     upload;
    const auto pinned = upload.simulated.device().pin_memory(64, "a test");
    char       host[4];

    CHECK_FAILS(DS4_E_DEVICE, upload.ring->send(0, host, 4));
    CHECK_FAILS(DS4_E_DEVICE, upload.ring->send(0, upload.place.get() + 13, 4));
    CHECK_FAILS(DS4_E_DEVICE, upload.ring->send(0, const_cast<std::byte *>(pinned->device_address()), 4));
    CHECK_FAILS(DS4_E_DEVICE, upload.ring->send(0, upload.place.get(), 4, 97));
    CHECK_FAILS(DS4_E_DEVICE, upload.ring->send(2, upload.place.get(), 4));
    {
        const Placed<char> short_lived(upload.simulated.device(), 4);
        upload.ring->send(0, short_lived.get(), 4);
    }
    upload.fill_and_send(1, 9, 0);
    CHECK_FAILS(DS4_E_DEVICE, upload.ring->wait(0));
    static_cast<void>(upload.ring->wait(1));
    CHECK(upload.at(0) == 9);
}

TEST("a ring is entered into the ledger with its buffers and what it sends") {
    Upload         upload;
    const uint64_t before = upload.simulated.word(DS4_WORD_SIM_NS);
    CHECK(upload.simulated.word(DS4_WORD_SIM_PINNED_BYTES) == 2 * 4096);
    CHECK(upload.ring->wait(1).size() == 100);
    CHECK(reinterpret_cast<uintptr_t>(upload.ring->wait(1).data()) % 4096 == 0);

    upload.fill_and_send(0, 1, 0);

    CHECK(upload.simulated.word(DS4_WORD_SIM_TO_DEVICE_BYTES) == 16 + 4); /* 16: the place was cleared */
    CHECK(upload.simulated.word(DS4_WORD_SIM_NS) - before == 10 + 4);
    upload.ring.reset();
    CHECK(upload.simulated.word(DS4_WORD_SIM_PINNED_BYTES) == 0);
}

TEST("sending and waiting fail when they are told to, and what failed did not happen") {
    Upload sending(failing(DS4_SIM_CALL_SEND, 2));
    sending.fill_and_send(0, 1, 0);
    CHECK_FAILS(DS4_E_DEVICE, sending.fill_and_send(1, 2, 8));
    CHECK(sending.at(8) == 0);

    Upload waiting(failing(DS4_SIM_CALL_WAIT, 2, 3));
    waiting.fill_and_send(0, 1, 0);
    CHECK_FAILS(DS4_E_DEVICE, waiting.ring->wait(0));
    CHECK_FAILS(DS4_E_DEVICE, waiting.ring->arrived(0));
    CHECK_FAILS(DS4_E_DEVICE, waiting.ring->finish());
    CHECK(waiting.at(0) == kOnItsWay);
    waiting.ring->finish();
    CHECK(waiting.at(0) == 1);
}

TEST("threads that share a ring bring every byte and leave the ledger right") {
    const Simulated       simulated;
    constexpr size_t      kThreads = 4, kTurns = 50;
    const Placed<char>    place(simulated.device(), kThreads * kTurns);
    const auto            ring = simulated.device().upload_ring(kThreads, 1);
    {
        std::vector<std::jthread> threads;
        for (size_t thread = 0; thread < kThreads; ++thread) {
            threads.emplace_back([&, thread] {
                for (size_t turn = 0; turn < kTurns; ++turn) {
                    ring->wait(thread)[0] = std::byte(turn);
                    ring->send(thread, place.get() + thread * kTurns + turn, 1);
                }
            });
        }
    }
    ring->finish();

    const std::vector<char> got = place.read();
    for (size_t i = 0; i < got.size(); ++i) {
        CHECK(got[i] == static_cast<char>(i % kTurns));
    }
    CHECK(simulated.word(DS4_WORD_SIM_TO_DEVICE_BYTES) == 2 * kThreads * kTurns);
}
