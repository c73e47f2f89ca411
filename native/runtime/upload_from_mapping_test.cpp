/* Uploads that need no pinned memory. */
#include <cstring>
#include <vector>

#include <unistd.h>

#include "check.h"
#include "runtime/failure_test.h"
#include "runtime/host_device_test.h"
#include "runtime/temporary_file_test.h"
#include "runtime/upload.h"

using namespace ds4;
using namespace ds4::runtime;

namespace {

constexpr uint64_t kBytes = 300000;

/* A file in three pieces, the second at an odd byte, the last one larger than the least window. No ring can be had. */
struct Load {
    std::vector<std::byte>   bytes = test::counting_bytes(kBytes);
    test::TemporaryFile      file{bytes};
    Telemetry                telemetry;
    test::HostDevice         device;
    WeightFileReader         reader{file.path(), kBytes, false, device, telemetry};
    std::vector<std::byte>   memory{kBytes};
    std::vector<UploadPiece> pieces = {piece(0, 5000), piece(12345, 777), piece(65536, 234464)};

    Load() {
        device.reads_host = false;
        device.rings_left = 0;
    }
    UploadPiece piece(uint64_t offset, uint64_t size) {
        return {&reader.reader(), offset, size, memory.data() + offset};
    }
    test::Outcome run() {
        const UploadOptions options{.slot_bytes = 1, .forget_pages = true, .from_mapping = true};
        return test::outcome_of([&] { upload(device, pieces, options, telemetry); });
    }
    bool has_arrived(const UploadPiece &piece) const {
        return std::memcmp(piece.to, bytes.data() + piece.offset, piece.bytes) == 0;
    }
};

} // namespace

TEST("an upload from the mapping brings every byte, without a ring and without a read") {
    Load load;

    CHECK(load.run().status == DS4_OK);

    for (const UploadPiece &piece : load.pieces) {
        CHECK(load.has_arrived(piece));
    }
    CHECK(load.telemetry.get(DS4_WORD_BYTES_DONE) == 5000 + 777 + 234464);
    CHECK(load.telemetry.get(DS4_WORD_UPLOAD_BYTES) == 5000 + 777 + 234464);
    CHECK(load.telemetry.get(DS4_WORD_UPLOADS) >= load.pieces.size());
    CHECK(load.telemetry.get(DS4_WORD_FILE_READS) == 0);
    CHECK(load.device.sends == 0);
}

TEST("an upload from the mapping also fills memory of the host") {
    Load load;
    load.pieces[1].to_host = true;

    CHECK(load.run().status == DS4_OK);

    CHECK(load.has_arrived(load.pieces[1]));
    CHECK(load.telemetry.get(DS4_WORD_UPLOAD_BYTES) == 5000 + 234464);
}

TEST("an upload from the mapping of a file that was cut names the file and the offset") {
    Load load;
    CHECK(::truncate(load.file.path().c_str(), 131072) == 0);

    const test::Outcome outcome = load.run();

    CHECK(outcome.status == DS4_E_IO);
    CHECK(outcome.says(load.file.path()) && outcome.says("131072"));
}

TEST("an upload from the mapping can be cancelled") {
    Load load;
    load.telemetry.set(DS4_WORD_CANCEL, 1);

    CHECK(load.run().status == DS4_E_CANCELLED);
}
