/* What a load says of its steps, of what is locked, and of files that change under it. */
#include <cstring>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>

#include "check.h"
#include "runtime/failure_test.h"
#include "runtime/host_device_test.h"
#include "runtime/temporary_file_test.h"
#include "runtime/weight_store.h"

using namespace ds4;
using namespace ds4::runtime;

namespace {

constexpr WeightPlan kResident{.placement = WeightPlacement::resident};
constexpr WeightPlan kMappedExperts{.placement = WeightPlacement::mapped_experts};
constexpr WeightPlan kCopiedExperts{.placement = WeightPlacement::mapped_experts, .pin_copies = true};
constexpr WeightPlan kStreamed{.placement = WeightPlacement::stream_experts};

struct Loading {
    std::vector<std::byte>   bytes = test::counting_bytes(50000);
    test::TemporaryFile      file{bytes};
    std::vector<WeightFile>  files = {{file.path(), 50000}};
    std::vector<WeightRange> ranges = {{0, 64, 5000, "a", WeightUse::kernels},
                                       {0, 8192, 9000, "b", WeightUse::routed_experts},
                                       {0, 20001, 777, "c", WeightUse::routed_experts}};
    test::HostDevice         device;
    Telemetry                telemetry;

    Loading() { device.reads_host = false; }
    WeightStore open(const WeightPlan &plan) { return {device, files, ranges, plan, telemetry}; }
    /* The step that a load names when it fails. */
    uint64_t step(const WeightPlan &plan) {
        telemetry.set(DS4_WORD_LOAD_STEP, DS4_STEP_OTHER);
        CHECK(test::outcome_of([&] { open(plan); }).status != DS4_OK);
        CHECK(device.lent_bytes == 0 && device.pinned_bytes == 0);
        return telemetry.get(DS4_WORD_LOAD_STEP);
    }
    /* Somebody writes to the file: its size is the same. */
    void touch() const {
        const timespec times[2] = {{0, UTIME_OMIT}, {12345, 0}};
        CHECK(::utimensat(AT_FDCWD, file.path().c_str(), times, 0) == 0);
    }
};

} // namespace

TEST("a load that fails names its step") {
    {
        Loading loading;
        loading.device.free_bytes = 100;
        CHECK(loading.step(kResident) == DS4_STEP_WEIGHTS);
    }
    {
        Loading loading;
        loading.device.sends_left = 0;
        CHECK(loading.step(kResident) == DS4_STEP_WEIGHTS);
    }
    {
        Loading loading;
        loading.device.rings_left = 0;
        CHECK(loading.step(kResident) == DS4_STEP_RING);
        CHECK(loading.step(kStreamed) == DS4_STEP_RING);
    }
    {
        Loading loading;
        loading.device.pins_left = 0;
        CHECK(loading.step(kMappedExperts) == DS4_STEP_MAP);
        CHECK(loading.step(kCopiedExperts) == DS4_STEP_PIN);
    }
}

TEST("a load that succeeds is about no step any more") {
    Loading           loading;
    const WeightStore store = loading.open(kMappedExperts);
    CHECK(loading.telemetry.get(DS4_WORD_LOAD_STEP) == DS4_STEP_OTHER);
}

TEST("weights need no ring when they come from the mapping") {
    for (WeightPlan plan : {kResident, kMappedExperts, kCopiedExperts, kStreamed}) {
        Loading loading;
        loading.device.rings_left = 0;
        plan.upload.from_mapping = true;
        plan.upload.compare = true;
        const WeightStore store = loading.open(plan);
        for (size_t i = 0; i < loading.ranges.size(); ++i) {
            const WeightRange &range = loading.ranges[i];
            CHECK(store.address(i) == nullptr ||
                  std::memcmp(store.address(i), loading.bytes.data() + range.offset, range.bytes) == 0);
        }
    }
}

TEST("pinned weights count as locked when a lock was asked for") {
    for (WeightPlan plan : {kMappedExperts, kCopiedExperts}) {
        Loading loading;
        CHECK(loading.open(plan).locked_bytes() == 0);
        plan.lock = true;
        CHECK(loading.open(plan).locked_bytes() == 9000 + 777);
    }
    Loading    loading;
    WeightPlan resident = kResident;
    resident.lock = true;
    CHECK(loading.open(resident).locked_bytes() == 0);
}

TEST("a file that is written to is noticed as long as something is still taken from it") {
    for (const WeightPlan &plan : {kMappedExperts, kStreamed}) {
        Loading           loading;
        const WeightStore store = loading.open(plan);
        store.check_files();
        loading.touch();
        const test::Outcome outcome = test::outcome_of([&] { store.check_files(); });
        CHECK(outcome.status == DS4_E_IO && outcome.says("it was written to while in use"));
    }
    Loading paged;
    paged.ranges[0].use = WeightUse::paged;
    paged.ranges.resize(1);
    const WeightStore pages = paged.open(kResident);
    paged.touch();
    CHECK(test::outcome_of([&] { pages.check_files(); }).status == DS4_E_IO);
}

TEST("a file of which everything was copied may be written to") {
    for (const WeightPlan &plan : {kResident, kCopiedExperts}) {
        Loading           loading;
        const WeightStore store = loading.open(plan);
        loading.touch();
        store.check_files();
    }
}

TEST("a file that is written to while it is loaded is refused") {
    class Meddler : public test::HostDevice {
    public:
        explicit Meddler(const Loading &loading) : loading_(loading) {}
        ssize_t read_file(int descriptor, void *to, size_t bytes, uint64_t offset) const override {
            loading_.touch();
            return HostDevice::read_file(descriptor, to, bytes, offset);
        }

    private:
        const Loading &loading_;
    };
    Loading loading;
    Meddler device(loading);
    device.reads_host = false;

    const test::Outcome outcome =
        test::outcome_of([&] { WeightStore(device, loading.files, loading.ranges, kResident, loading.telemetry); });

    CHECK(outcome.status == DS4_E_IO && outcome.says("it was written to while in use"));
}
