#include "runtime/upload.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <limits>
#include <vector>

#include "check.h"
#include "runtime/failure_test.h"
#include "runtime/host_device_test.h"
#include "runtime/temporary_file_test.h"

using namespace ds4;
using namespace ds4::runtime;

namespace {

constexpr uint64_t kChunk = 64u << 10; /* the least that a buffer is cut to */

/* A file in memory whose reads come in pieces, are interrupted, or fail. */
class Fickle : public ByteSource {
public:
    explicit Fickle(std::vector<std::byte> content) : bytes(std::move(content)) {}

    ssize_t read_some(void *to, size_t wanted, uint64_t offset) const override {
        const uint64_t number = ++reads;
        if (number == 20 && cancelled != nullptr) {
            cancelled->set(DS4_WORD_CANCEL, 1);
        }
        if (fails_at != 0 && number >= fails_at) {
            errno = EIO;
            return -1;
        }
        if (offset >= ends_at) {
            return 0;
        }
        if (number % 3 == 0) {
            errno = EINTR;
            return -1;
        }
        const size_t count = std::min<uint64_t>({wanted, most, ends_at - offset});
        std::memcpy(to, bytes.data() + offset, count);
        return static_cast<ssize_t>(count);
    }
    const std::string &path() const override { return name; }

    std::vector<std::byte>        bytes;
    std::string                   name = "weights.gguf";
    size_t                        most = 7777;
    uint64_t                      fails_at = 0;
    uint64_t                      ends_at = std::numeric_limits<uint64_t>::max();
    Telemetry                    *cancelled = nullptr; /* after some reads */
    mutable std::atomic<uint64_t> reads = 0;
};

/* A megabyte and a bit of two files, in five pieces. */
struct Load {
    Fickle                   first{test::counting_bytes(700000)};
    Fickle                   second{test::counting_bytes(400001)};
    Telemetry                telemetry;
    FileReader               first_reader{first, nullptr, 1, telemetry};
    FileReader               second_reader{second, nullptr, 1, telemetry};
    test::HostDevice         device;
    backend::Allocation      memory = device.allocate(1200000, "a test");
    std::vector<UploadPiece> pieces = {piece(first, 100, 1, 0), piece(first, 4000, 300000, 256), piece(first, 304000, 395999, 300288),
                                       piece(second, 0, 65536, 700160), piece(second, 65537, 330000, 800000)};

    UploadPiece piece(const Fickle &from, uint64_t offset, uint64_t bytes, uint64_t to) {
        return {&from == &first ? &first_reader : &second_reader, offset, bytes, memory.as<std::byte>() + to};
    }
    test::Outcome run(uint32_t threads) {
        return test::outcome_of([&] { upload(device, pieces, {threads, 2, kChunk}, telemetry); });
    }
    bool arrived() const {
        return std::all_of(pieces.begin(), pieces.end(), [this](const UploadPiece &piece) {
            const auto &from = (piece.source == &first_reader ? first : second).bytes;
            return std::memcmp(piece.to, from.data() + piece.offset, piece.bytes) == 0;
        });
    }
    uint64_t bytes() const {
        uint64_t sum = 0;
        for (const UploadPiece &piece : pieces) {
            sum += piece.bytes;
        }
        return sum;
    }
};

} // namespace

TEST(every_byte_arrives_from_reads_that_come_short_or_are_interrupted) {
    for (const uint32_t threads : {0u, 1u, 2u, 5u, 40u}) {
        Load load;

        CHECK(load.run(threads).status == DS4_OK);
        CHECK(load.arrived());
        CHECK(load.device.finished);
        CHECK(load.telemetry.get(DS4_WORD_BYTES_DONE) == load.bytes());
    }
}

TEST(the_pinned_buffers_are_cut_so_that_every_thread_has_two) {
    Load load;
    CHECK(test::outcome_of([&] { upload(load.device, load.pieces, {3, 4, 1u << 20}, load.telemetry); }).status == DS4_OK);
    CHECK(load.device.ring_slots == 6);
    CHECK(load.device.ring_bytes <= 4u << 20);

    CHECK(test::outcome_of([&] { upload(load.device, load.pieces, {2, 10, kChunk}, load.telemetry); }).status == DS4_OK);
    CHECK(load.device.ring_slots == 10);
    CHECK(load.device.ring_bytes == 10 * kChunk);

    const uint64_t most = std::numeric_limits<uint64_t>::max();
    CHECK(test::outcome_of([&] { upload(load.device, load.pieces, {2, 4, most}, load.telemetry); }).status == DS4_E_NO_MEMORY);
    CHECK(test::outcome_of([&] { upload(load.device, {}, {}, load.telemetry); }).status == DS4_OK);
}

TEST(a_read_that_fails_ends_the_upload_whichever_it_is) {
    for (const uint32_t threads : {1u, 4u}) {
        for (const uint64_t number : {1u, 2u, 30u, 90u}) {
            Load load;
            load.first.fails_at = number;

            const test::Outcome outcome = load.run(threads);

            CHECK(outcome.status == DS4_E_IO);
            CHECK(outcome.says("weights.gguf"));
            CHECK(load.telemetry.get(DS4_WORD_BYTES_DONE) < load.bytes());
        }
    }
}

TEST(a_file_that_ends_early_ends_the_upload) {
    Load load;
    load.second.ends_at = 300000;

    const test::Outcome outcome = load.run(3);

    CHECK(outcome.status == DS4_E_IO);
    CHECK(outcome.says("the file ended"));
}

TEST(a_copy_that_fails_ends_the_upload) {
    for (const uint64_t good : {0u, 1u, 9u}) {
        Load load;
        load.device.sends_left = good;

        CHECK(load.run(3).status == DS4_E_DEVICE);
    }
}

TEST(an_upload_stops_when_it_is_cancelled) {
    Load before;
    before.telemetry.set(DS4_WORD_CANCEL, 1);
    CHECK(before.run(3).status == DS4_E_CANCELLED);
    CHECK(before.first.reads == 0);

    for (const uint32_t threads : {1u, 3u}) {
        Load during;
        during.first.cancelled = &during.telemetry;

        CHECK(during.run(threads).status == DS4_E_CANCELLED);
        CHECK(during.telemetry.get(DS4_WORD_BYTES_DONE) > 0);
        CHECK(during.telemetry.get(DS4_WORD_BYTES_DONE) < during.bytes());
    }
}
