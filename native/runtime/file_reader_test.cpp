#include "runtime/file_reader.h"

#include <cerrno>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "check.h"
#include "runtime/failure_test.h"
#include "runtime/fickle_source_test.h"
#include "runtime/host_device_test.h"
#include "runtime/temporary_file_test.h"

using namespace ds4;
using namespace ds4::runtime;

namespace {

constexpr uint64_t kBlock = 512;

/* Takes whole blocks only, as a file that is opened past the page cache. */
class BlockSource : public test::FickleSource {
public:
    using FickleSource::FickleSource;

    ssize_t read_some(void *to, size_t wanted, uint64_t offset) const override {
        const bool aligned = offset % kBlock == 0 && wanted % kBlock == 0 && reinterpret_cast<uintptr_t>(to) % kBlock == 0;
        if (!aligned) {
            errno = EINVAL;
            return -1;
        }
        return FickleSource::read_some(to, wanted, offset);
    }
};

struct Files {
    std::vector<std::byte> bytes = test::scrambled_bytes(10000); /* no whole number of blocks */
    test::FickleSource     buffered{bytes};
    BlockSource            direct{bytes};
    Telemetry              telemetry;
    FileReader             reader{buffered, &direct, kBlock, telemetry};

    struct Free {
        void operator()(std::byte *memory) const { ::operator delete(memory, std::align_val_t(4096)); }
    };
    std::unique_ptr<std::byte, Free> buffer{static_cast<std::byte *>(::operator new(16384, std::align_val_t(4096)))};

    bool reads_right(uint64_t offset, uint64_t count) {
        const std::span<std::byte> part = reader.read({buffer.get(), 16384}, offset, count);
        return part.size() == count && std::memcmp(part.data(), bytes.data() + offset, count) == 0;
    }
};

} // namespace

TEST(direct_reads_take_whole_blocks_and_find_every_part_in_them) {
    Files files;
    for (const uint64_t offset : {0u, 1u, 511u, 512u, 513u, 5000u, 9983u}) {
        for (const uint64_t count : {1u, 17u, 511u, 512u, 1025u}) {
            if (offset + count <= files.bytes.size()) {
                CHECK(files.reads_right(offset, count));
            }
        }
    }
    CHECK(files.reads_right(9000, 1000)); /* the last block has no end */
    CHECK(files.buffered.reads == 0);
    CHECK(files.telemetry.get(DS4_WORD_FILE_DIRECT_BYTES) == files.telemetry.get(DS4_WORD_FILE_READ_BYTES));
}

TEST(a_buffer_has_room_for_the_blocks_around_a_part) {
    Files files;
    CHECK(files.reader.room_in(files.reader.buffer_bytes(1000)) == 1000);
    const FileReader plain(files.buffered, nullptr, 1, files.telemetry);
    CHECK(plain.buffer_bytes(1000) == 1000);
}

TEST(where_direct_reads_are_refused_the_page_cache_is_used_from_then_on) {
    Files files;
    files.direct.error = EINVAL;
    files.direct.fails_at = 1;

    CHECK(files.reads_right(100, 1000));
    CHECK(files.reads_right(3000, 1000));

    CHECK(files.direct.reads == 1);
    CHECK(files.telemetry.get(DS4_WORD_FILE_DIRECT_REFUSED) == 1);
    CHECK(files.telemetry.get(DS4_WORD_FILE_DIRECT_BYTES) == 0);
    CHECK(files.telemetry.get(DS4_WORD_FILE_READ_BYTES) == 2000);
}

TEST(a_disk_that_fails_once_is_asked_once_more) {
    Files files;
    files.direct.fails_at = 1;
    files.direct.fails_until = 2;

    CHECK(files.reads_right(100, 1000));
    CHECK(files.telemetry.get(DS4_WORD_FILE_DIRECT_REFUSED) == 0);
    CHECK(files.telemetry.get(DS4_WORD_FILE_RETRIES) == 1);
    CHECK(files.telemetry.get(DS4_WORD_FILE_ERRORS) == 0);
    CHECK(files.reads_right(100, 1000));
    CHECK(files.telemetry.get(DS4_WORD_FILE_DIRECT_BYTES) == 1000);
}

TEST(a_disk_that_goes_on_failing_ends_the_read_with_file_and_offset) {
    Files files;
    files.direct.fails_at = 1;
    files.buffered.fails_at = 1;

    const test::Outcome outcome = test::outcome_of([&] { files.reads_right(4321, 100); });

    CHECK(outcome.status == DS4_E_IO);
    CHECK(files.telemetry.get(DS4_WORD_FILE_ERRORS) == 1);
    CHECK(outcome.says("weights.gguf"));
    CHECK(outcome.says("4321"));
    CHECK(files.buffered.reads == 2);
}

TEST(a_file_that_ends_early_ends_the_read_whichever_way_it_is_read) {
    Files files;
    files.direct.ends_at = 2000;
    files.buffered.ends_at = 2000;

    CHECK(files.reads_right(1000, 1000));
    const test::Outcome outcome = test::outcome_of([&] { files.reads_right(1500, 1000); });

    CHECK(outcome.status == DS4_E_IO);
    CHECK(outcome.says("the file ended"));
}

TEST(short_and_interrupted_reads_are_gone_on_with) {
    Files files;
    files.direct.most = 2 * kBlock;
    files.buffered.most = 77;

    CHECK(files.reads_right(300, 4000));
    files.direct.most = 700; /* comes short inside a block: the rest goes through the page cache */
    CHECK(files.reads_right(300, 4000));
    CHECK(files.telemetry.get(DS4_WORD_FILE_SHORT_READS) > 0);
}

TEST(a_real_file_reads_the_same_both_ways) {
    const std::vector<std::byte> bytes = test::scrambled_bytes(300001);
    const test::TemporaryFile    file(bytes);
    test::HostDevice             device;
    Telemetry                    telemetry;
    Files                        memory; /* for its buffer */
    for (const bool direct : {false, true}) {
        const WeightFileReader opened(file.path(), bytes.size(), direct, device, telemetry);
        for (const uint64_t offset : {0u, 4097u, 123456u, 292001u}) {
            const std::span<std::byte> part = opened.reader().read({memory.buffer.get(), 16384}, offset, 8000);
            CHECK(std::memcmp(part.data(), bytes.data() + offset, part.size()) == 0);
        }
    }
}
