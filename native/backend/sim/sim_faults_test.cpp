/* Drives that bring too little, the wrong bytes or nothing, drives that take their time, and a card that is gone. */
#include <cerrno>
#include <chrono>
#include <string>

#include <fcntl.h>
#include <unistd.h>

#include "backend/sim/simulated_machine_test.h"
#include "runtime/failure_test.h"

using namespace ds4;
using namespace ds4::backend;
using namespace ds4::backend::sim::test;

namespace {

/* A file of the fixtures, read through a simulated drive. */
class Drive {
public:
    explicit Drive(const ds4_simulation &machine)
        : simulated(machine), file_(::open(ds4::test::fixture_path("math.json").c_str(), O_RDONLY | O_CLOEXEC)),
          content_(ds4::test::read_fixture("math.json")) {}
    ~Drive() { ::close(file_); }
    Drive(const Drive &) = delete;
    Drive &operator=(const Drive &) = delete;

    ssize_t read(uint64_t offset, size_t bytes) {
        got_.assign(bytes, 0);
        return simulated.device().read_file(file_, got_.data(), bytes, offset);
    }
    /* How many of the bytes that were read last are not the file's. */
    size_t wrong(uint64_t offset, size_t bytes) const {
        size_t count = 0;
        for (size_t i = 0; i < bytes; ++i) {
            count += got_[i] != static_cast<char>(content_[offset + i]) ? 1 : 0;
        }
        return count;
    }

    Simulated simulated;

private:
    int                    file_;
    std::vector<std::byte> content_;
    std::vector<char>      got_;
};

ds4_simulation slow(uint32_t microseconds) {
    ds4_simulation machine = small_machine();
    machine.read_wait_us = microseconds;
    return machine;
}

} // namespace

TEST("a short read brings half of what was asked for, and at least a byte") {
    Drive drive(failing(DS4_SIM_CALL_SHORT, 2, 2));

    CHECK(drive.read(10, 64) == 64);
    CHECK(drive.read(10, 64) == 32 && drive.wrong(10, 32) == 0);
    CHECK(drive.read(10, 1) == 1);
    CHECK(drive.read(10, 64) == 64);
    CHECK(drive.simulated.word(DS4_WORD_SIM_DISK_BYTES) == 64 + 32 + 1 + 64);
}

TEST("a bad place of a file fails the reads that cover it, as often as it was told to") {
    Drive drive(failing(DS4_SIM_CALL_READ_AT, 100, 2));

    CHECK(drive.read(0, 100) == 100 && drive.read(101, 50) == 50);
    for (const uint64_t offset : {100u, 37u}) {
        errno = 0;
        CHECK(drive.read(offset, 64) == -1 && errno == EIO);
    }
    CHECK(drive.read(100, 64) == 64 && drive.wrong(100, 64) == 0);

    simulate(failing(DS4_SIM_CALL_READ_AT, 0));
    for (int turn = 0; turn < 5; ++turn) {
        CHECK(drive.read(0, 1) == -1 && drive.read(1, 1) == 1);
    }
}

TEST("a wrong byte is the only one that differs from the file's") {
    Drive drive(failing(DS4_SIM_CALL_WRONG_AT, 100, 1));

    CHECK(drive.read(40, 60) == 60 && drive.wrong(40, 60) == 0);
    CHECK(drive.read(40, 64) == 64 && drive.wrong(40, 60) == 0 && drive.wrong(40, 64) == 1);
    CHECK(drive.read(40, 64) == 64 && drive.wrong(40, 64) == 0);
}

TEST("a slow drive takes its time by the clock, and not in the ledger") {
    Drive      drive(slow(30'000));
    const auto start = std::chrono::steady_clock::now();

    CHECK(drive.read(0, 64) == 64);

    CHECK(std::chrono::steady_clock::now() - start >= std::chrono::milliseconds(30));
    CHECK(drive.simulated.word(DS4_WORD_SIM_NS) == 100 + 64 * 4);
}

TEST("a card that is lost does nothing any more, and gives back what it had") {
    Drive         drive(failing(DS4_SIM_CALL_LOST, 4));
    Device       &device = drive.simulated.device();
    char          host[16] = {};
    const auto    refused = [](auto &&call) {
        const auto outcome = ds4::test::outcome_of(call);
        CHECK(outcome.status == DS4_E_DEVICE && outcome.says("the simulated GPU is lost"));
    };
    {
        const Placed<float> place(device, 16); /* two calls */
        const auto          ring = device.upload_ring(1, 64);
        const auto          embed = [&] {
            const Matrix table{.type = quant::Type::f32,
                               .rows = 1,
                               .columns = 4,
                               .row_bytes = 16,
                               .data = reinterpret_cast<const std::byte *>(place.get())};
            const int32_t token = 0;
            drive.simulated.ops().embed({std::span(&token, 1), &table, 1, place.get() + 4});
        };
        embed();

        refused([&] { device.copy_out(host, place.get(), 16); });
        refused([&] { device.copy_out(host, place.get(), 16); });
        refused([&] { device.copy_within(place.get(), place.get() + 4, 16); });
        refused([&] { static_cast<void>(device.allocate(16, "a test")); });
        refused([&] { static_cast<void>(device.pin_memory(16, "a test")); });
        refused([&] { static_cast<void>(device.map_host(std::as_bytes(std::span(host)))); });
        refused([&] { static_cast<void>(device.upload_ring(1, 64)); });
        refused([&] { ring->send(0, place.get(), 16); });
        refused([&] { static_cast<void>(ring->wait(0)); });
        refused([&] { ring->finish(); });
        refused([&] { drive.simulated.ops().pace(); });
        refused(embed);
        CHECK(device.info().free_bytes == 0);
        CHECK(drive.read(0, 64) == 64); /* the drive is not the card's */
    }
    CHECK(drive.simulated.word(DS4_WORD_SIM_ALLOCATIONS) == 0);
    CHECK(drive.simulated.word(DS4_WORD_SIM_PINNED_BYTES) == 0);
    simulate(small_machine());
    device.copy_in(device.allocate(16, "a test").as<void>(), host, 16);
}
