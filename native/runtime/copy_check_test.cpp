#include "runtime/copy_check.h"

#include <atomic>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "runtime/failure_test.h"
#include "runtime/fetch_queue.h"
#include "runtime/fickle_source_test.h"
#include "runtime/host_device_test.h"
#include "runtime/temporary_file_test.h"
#include "runtime/upload.h"
#include "runtime/weight_store.h"

using namespace ds4;
using namespace ds4::runtime;

namespace {

/* One bit of what lies so far behind the start of its last allocation comes back wrong. */
class Forgetful : public test::HostDevice {
public:
    void copy_out(void *to, const void *from, size_t bytes) override {
        HostDevice::copy_out(to, from, bytes);
        const auto *const first = static_cast<const std::byte *>(from);
        const auto *const wrong = last_ + wrong_at;
        if (wrong >= first && wrong < first + bytes) {
            static_cast<std::byte *>(to)[wrong - first] ^= std::byte{1};
        }
    }
    backend::Allocation allocate(size_t bytes, std::string_view what) override {
        backend::Allocation memory = HostDevice::allocate(bytes, what);
        last_ = memory.as<std::byte>();
        return memory;
    }

    uint64_t wrong_at = 0;

private:
    const std::byte *last_ = nullptr;
};

/* A file whose first read brings a wrong byte. */
class Unsteady : public ByteSource {
public:
    ssize_t read_some(void *to, size_t wanted, uint64_t offset) const override {
        const size_t count = std::min<uint64_t>(wanted, bytes.size() - offset);
        std::memcpy(to, bytes.data() + offset, count);
        if (wrong_at >= offset && wrong_at - offset < count && wrong_reads > 0) {
            --wrong_reads;
            static_cast<std::byte *>(to)[wrong_at - offset] ^= std::byte{0x10};
        }
        return static_cast<ssize_t>(count);
    }
    const std::string &path() const override { return name; }

    std::vector<std::byte>   bytes = test::scrambled_bytes(300'000);
    std::string              name = "weights.gguf";
    uint64_t                 wrong_at = 234'567;
    mutable std::atomic<int> wrong_reads = 1;
};

struct Read {
    Unsteady            source;
    Telemetry           telemetry;
    FileReader          reader{source, nullptr, 1, telemetry};
    test::HostDevice    device;
    backend::Allocation memory = device.allocate(300'000, "a test");

    bool is_right(uint64_t offset) const {
        return std::memcmp(memory.as<std::byte>(), source.bytes.data() + offset, 300'000 - offset) == 0;
    }
};

} // namespace

TEST("a single wrong bit of a resident model is found when somebody looks, and named with its place in the file") {
    const uint64_t                 kBytes = 12'000'000; /* more than is compared at a time */
    const test::TemporaryFile      file(test::counting_bytes(kBytes));
    const std::vector<WeightFile>  files = {{file.path(), kBytes}};
    const std::vector<WeightRange> ranges = {{0, 100, 9'000'001, "large"}, {0, 9'000'200, 777, "small"}};
    const uint64_t                 second = 9'000'192; /* a multiple of 256 behind the first */
    const std::pair<uint64_t, std::string> cases[] = {{0, "large"},         {4u << 20, "large"}, {9'000'000, "large"},
                                                      {second, "small"},    {second + 776, "small"}};
    for (const auto &[at, name] : cases) {
        Forgetful device;
        Telemetry telemetry;
        device.wrong_at = at;
        WeightPlan plan{.placement = WeightPlacement::resident, .upload = {.threads = 2}};
        const uint64_t in_file = name == "large" ? 100 + at : 9'000'200 + at - second;

        const auto blind = test::outcome_of([&] { WeightStore(device, files, ranges, plan, telemetry); });
        plan.upload.compare = true;
        const auto outcome = test::outcome_of([&] { WeightStore(device, files, ranges, plan, telemetry); });

        CHECK(blind.status == DS4_OK);
        CHECK(outcome.status == DS4_E_DEVICE);
        CHECK(outcome.says("tensor " + name + " differs in memory for "));
        CHECK(outcome.says(file.path() + " at byte " + std::to_string(in_file) + " of the file"));
        CHECK(device.lent_bytes == 0);
    }
}

TEST("bytes that came wrong from the file once are found by the second read, in device memory and in the host's") {
    for (const bool to_host : {false, true}) {
        for (const bool from_mapping : {false, true}) {
            Read                           read;
            const std::vector<UploadPiece> pieces = {
                {&read.reader, 1000, 299'000, read.memory.as<std::byte>(), to_host, "blk.0.x"}};

            const auto outcome = test::outcome_of([&] {
                upload(read.device, pieces, {.threads = 3, .compare = true, .from_mapping = from_mapping}, read.telemetry);
            });

            CHECK(outcome.status == DS4_E_DEVICE);
            CHECK(outcome.says("tensor blk.0.x differs") && outcome.says("weights.gguf at byte 234567 of the file"));
            upload(read.device, pieces, {.threads = 3, .compare = true, .from_mapping = from_mapping}, read.telemetry);
            CHECK(read.is_right(1000));
        }
    }
}

TEST("what is fetched while ops run is compared too, and can be fetched again") {
    Read       read;
    FetchQueue queue(read.device, 2, 64u << 10, read.telemetry);
    queue.compare_copies();
    read.device.delivers_late = true;
    const Fetch zeros{nullptr, 0, 1000, read.memory.as<std::byte>() + 299'000};
    const Fetch part{&read.reader, 1000, 299'000, read.memory.as<std::byte>()};
    const std::vector<Fetch> fetches = {part, zeros};

    const auto outcome = test::outcome_of([&] { queue.wait(queue.submit(fetches)); });

    CHECK(outcome.status == DS4_E_DEVICE && outcome.says("weights.gguf at byte 234567 of the file"));
    queue.wait(queue.submit(fetches));
    CHECK(read.is_right(1000));
}

TEST("comparing can be cancelled") {
    Read read;
    read.telemetry.set(DS4_WORD_CANCEL, 1);
    CopyCheck check(read.device, read.telemetry);
    CHECK_FAILS(DS4_E_CANCELLED, check.compare("a test", {&read.reader, 0, 10, read.memory.as<std::byte>(), false}));
}
