#include "runtime/weight_store.h"

#include <cstring>
#include <limits>
#include <vector>

#include <unistd.h>

#include "check.h"
#include "runtime/failure_test.h"
#include "runtime/host_device_test.h"
#include "runtime/temporary_file_test.h"

using namespace ds4;
using namespace ds4::runtime;

namespace {

constexpr WeightPlan kMapped{.source = WeightSource::mmap};
constexpr WeightPlan kRead{.source = WeightSource::read};

bool holds(const WeightStore &store, std::span<const WeightRange> ranges, const std::vector<std::byte> &bytes) {
    for (size_t i = 0; i < ranges.size(); ++i) {
        if (std::memcmp(store.address(i), bytes.data() + ranges[i].offset, ranges[i].bytes) != 0) {
            return false;
        }
    }
    return true;
}

/* Three ranges, in no order, the second at a byte that no kernel could read numbers from. */
std::vector<WeightRange> three_ranges() { return {{0, 40000, 9000, "c"}, {0, 12345, 777, "b"}, {0, 64, 5000, "a"}}; }

} // namespace

TEST(mapped_and_read_weights_are_the_same_bytes) {
    const std::vector<std::byte>   bytes = test::counting_bytes(50000);
    const test::TemporaryFile      file(bytes);
    const std::vector<WeightFile>  files = {{file.path(), bytes.size()}};
    const std::vector<WeightRange> ranges = three_ranges();
    test::HostDevice               device;
    Telemetry                      telemetry;

    const WeightStore mapped(device, files, ranges, kMapped, telemetry);
    const WeightStore read(device, files, ranges, kRead, telemetry);

    CHECK(holds(mapped, ranges, bytes));
    CHECK(holds(read, ranges, bytes));
    CHECK(mapped.weight_bytes() == 9000 + 777 + 5000);
    CHECK(read.weight_bytes() == mapped.weight_bytes());
    CHECK(read.mapped_bytes() == 0);
    CHECK(telemetry.get(DS4_WORD_BYTES_DONE) == read.weight_bytes());
    CHECK(telemetry.get(DS4_WORD_BYTES_TOTAL) == read.weight_bytes());
}

TEST(a_range_at_an_odd_byte_is_copied_to_an_aligned_address) {
    const std::vector<std::byte>   bytes = test::counting_bytes(50000);
    const test::TemporaryFile      file(bytes);
    const std::vector<WeightFile>  files = {{file.path(), bytes.size()}};
    const std::vector<WeightRange> ranges = three_ranges();
    test::HostDevice               device;
    Telemetry                      telemetry;

    const WeightStore store(device, files, ranges, kMapped, telemetry);

    CHECK(store.mapped_bytes() == 9000 + 5000);
    for (size_t i = 0; i < ranges.size(); ++i) {
        CHECK(reinterpret_cast<uintptr_t>(store.address(i)) % 4 == 0);
    }
}

TEST(only_files_with_needed_ranges_are_opened) {
    const std::vector<std::byte>   bytes = test::counting_bytes(1000);
    const test::TemporaryFile      file(bytes);
    const std::vector<WeightFile>  files = {{"/nonexistent/first-half.gguf", 4096}, {file.path(), bytes.size()}};
    const std::vector<WeightRange> ranges = {{1, 32, 96, "blk.7.attn_norm.weight"}};
    test::HostDevice               device;
    Telemetry                      telemetry;

    const WeightStore store(device, files, ranges, kMapped, telemetry);

    CHECK(holds(store, ranges, bytes));
}

TEST(a_range_outside_its_file_is_refused_also_when_its_end_wraps) {
    const test::TemporaryFile     file(test::counting_bytes(1000));
    const std::vector<WeightFile> files = {{file.path(), 1000}};
    test::HostDevice              device;
    Telemetry                     telemetry;
    const uint64_t                top = std::numeric_limits<uint64_t>::max();
    const std::vector<WeightRange> bad = {{0, 1000, 1, "x"},     {0, 900, 101, "x"}, {0, uint64_t{1} << 40, 8, "x"},
                                          {0, top - 31, 64, "x"}, {0, 32, top - 8, "x"}, {1, 0, 1, "x"}};
    for (const WeightRange &range : bad) {
        const test::Outcome outcome =
            test::outcome_of([&] { WeightStore(device, files, {&range, 1}, kMapped, telemetry); });

        CHECK(outcome.status == DS4_E_ARGUMENT);
        CHECK(outcome.says("tensor x"));
    }
}

TEST(warming_counts_every_byte_and_stops_when_cancelled) {
    const std::vector<std::byte>   bytes = test::counting_bytes(50000);
    const test::TemporaryFile      file(bytes);
    const std::vector<WeightFile>  files = {{file.path(), bytes.size()}};
    const std::vector<WeightRange> ranges = {{0, 0, 20000, "a"}, {0, 20000, 30000, "b"}};
    test::HostDevice               device;
    Telemetry                      telemetry;
    const WeightStore              store(device, files, ranges, kMapped, telemetry);

    store.warm(telemetry);
    CHECK(telemetry.get(DS4_WORD_BYTES_DONE) == 50000);

    telemetry.set(DS4_WORD_CANCEL, 1);
    CHECK(test::outcome_of([&] { store.warm(telemetry); }).status == DS4_E_CANCELLED);
    const auto read = [&] { WeightStore(device, files, ranges, kRead, telemetry); };
    CHECK(test::outcome_of(read).status == DS4_E_CANCELLED);
    CHECK(device.lent_bytes == 0);
}

TEST(a_weight_file_that_shrinks_is_refused_before_it_is_read) {
    const std::vector<std::byte>   bytes = test::counting_bytes(50000);
    const test::TemporaryFile      file(bytes);
    const std::vector<WeightFile>  files = {{file.path(), bytes.size()}};
    const std::vector<WeightRange> ranges = {{0, 0, 50000, "a"}};
    test::HostDevice               device;
    Telemetry                      telemetry;
    const WeightStore              store(device, files, ranges, kMapped, telemetry);
    CHECK(::truncate(file.path().c_str(), 4096) == 0);

    CHECK(test::outcome_of([&] { store.check_files(); }).status == DS4_E_IO);
    CHECK(test::outcome_of([&] { store.warm(telemetry); }).status == DS4_E_IO);
}

TEST(reading_a_weight_file_that_was_cut_names_it_and_the_offset) {
    const std::vector<std::byte>   bytes = test::counting_bytes(50000);
    const test::TemporaryFile      file(bytes);
    const std::vector<WeightFile>  files = {{file.path(), bytes.size()}};
    const std::vector<WeightRange> ranges = {{0, 64, 4000, "a"}, {0, 40000, 10000, "b"}};
    test::HostDevice               device;
    Telemetry                      telemetry;
    const WeightStore              store(device, files, ranges, kMapped, telemetry);
    std::vector<std::byte>         got(10000);
    store.read(1, got);
    CHECK(std::memcmp(got.data(), bytes.data() + 40000, got.size()) == 0);
    CHECK(::truncate(file.path().c_str(), 4096) == 0);

    const test::Outcome outcome = test::outcome_of([&] { store.read(1, got); });

    CHECK(outcome.status == DS4_E_IO);
    CHECK(outcome.says("cannot read " + file.path() + " at offset 4"));
    CHECK(outcome.says("cut from 50000 to 4096 bytes"));
    CHECK(test::outcome_of([&] { store.check_files(); }).says("at offset 4"));
}

TEST(weights_that_do_not_fit_are_refused_and_nothing_stays_taken) {
    const std::vector<std::byte>   bytes = test::counting_bytes(50000);
    const test::TemporaryFile      file(bytes);
    const std::vector<WeightFile>  files = {{file.path(), bytes.size()}};
    const std::vector<WeightRange> ranges = {{0, 0, 50000, "a"}};
    test::HostDevice               device;
    device.free_bytes = 49999;
    Telemetry telemetry;

    const auto read = [&] { WeightStore(device, files, ranges, kRead, telemetry); };

    CHECK(test::outcome_of(read).status == DS4_E_NO_MEMORY);
    CHECK(device.lent_bytes == 0);
}

namespace {

constexpr WeightPlan kResident{.placement = WeightPlacement::resident, .upload = {.threads = 2, .compare = true}};
constexpr WeightPlan kMappedExperts{.placement = WeightPlacement::mapped_experts, .upload = {.compare = true}};

/* Dense, experts, experts in the same page, something for the host, experts of an odd byte, and experts far away. */
std::vector<WeightRange> mixed_ranges() {
    return {{0, 64, 5000, "a", WeightUse::kernels},         {0, 9000, 700, "b", WeightUse::routed_experts},
            {0, 9800, 300, "c", WeightUse::routed_experts}, {0, 20000, 128, "d", WeightUse::host},
            {0, 12345, 777, "e", WeightUse::routed_experts}, {0, 40000, 9000, "f", WeightUse::routed_experts}};
}

} // namespace

TEST(resident_weights_are_copied_to_aligned_addresses_of_the_device) {
    const std::vector<std::byte>   bytes = test::counting_bytes(50000);
    const test::TemporaryFile      file(bytes);
    const std::vector<WeightFile>  files = {{file.path(), bytes.size()}};
    const std::vector<WeightRange> ranges = three_ranges();
    test::HostDevice               device;
    device.reads_host = false;
    Telemetry telemetry;
    {
        const WeightStore store(device, files, ranges, kResident, telemetry);

        CHECK(holds(store, ranges, bytes));
        CHECK(store.mapped_bytes() == 0 && store.device_bytes() == store.weight_bytes());
        CHECK(telemetry.get(DS4_WORD_BYTES_DONE) == store.weight_bytes());
        CHECK(device.pinned_bytes == 0);
        for (size_t i = 0; i < ranges.size(); ++i) {
            CHECK((store.address(i) - store.address(2)) % 256 == 0);
            CHECK(store.owned_by_device(i));
        }
    }
    CHECK(device.lent_bytes == 0);
}

TEST(mapped_experts_are_pinned_page_by_page_and_the_rest_is_copied) {
    const std::vector<std::byte>   bytes = test::counting_bytes(50000);
    const test::TemporaryFile      file(bytes);
    const std::vector<WeightFile>  files = {{file.path(), bytes.size()}};
    const std::vector<WeightRange> ranges = mixed_ranges();
    test::HostDevice               device;
    device.reads_host = false;
    Telemetry telemetry;
    {
        const WeightStore      store(device, files, ranges, kMappedExperts, telemetry);
        std::vector<std::byte> host(128);
        store.read(3, host);

        CHECK(std::equal(host.begin(), host.end(), bytes.begin() + 20000));
        CHECK(store.address(3) == nullptr);
        for (const size_t i : {0u, 1u, 2u, 4u, 5u}) {
            CHECK(std::memcmp(store.address(i), bytes.data() + ranges[i].offset, ranges[i].bytes) == 0);
            CHECK(store.owned_by_device(i) == (i == 0));
            CHECK((store.pinned_address(i) != nullptr) == (i != 0));
        }
        CHECK(store.mapped_bytes() == 700 + 300 + 9000);
        CHECK(store.device_bytes() == 5000 + 128);
        /* Pages 2, and 9 to 11; what lies at an odd byte cannot be used where it is. */
        CHECK(device.pinned_bytes == 4096 + 3 * 4096 + 777);
    }
    CHECK(device.lent_bytes == 0 && device.pinned_bytes == 0);
}

TEST(experts_that_are_streamed_stay_in_the_file) {
    const std::vector<std::byte>   bytes = test::counting_bytes(50000);
    const test::TemporaryFile      file(bytes);
    const std::vector<WeightFile>  files = {{file.path(), bytes.size()}};
    const std::vector<WeightRange> ranges = mixed_ranges();
    for (const bool reads_host : {false, true}) {
        test::HostDevice device;
        device.reads_host = reads_host;
        Telemetry         telemetry;
        const WeightStore store(device, files, ranges, {.placement = WeightPlacement::stream_experts}, telemetry);
        for (size_t i = 0; i < ranges.size(); ++i) {
            if (ranges[i].use == WeightUse::routed_experts) {
                std::vector<std::byte> read(20000);
                CHECK(store.address(i) == nullptr);
                CHECK(std::ranges::equal(store.source(i).read(read, store.offset(i), ranges[i].bytes),
                                         std::span(bytes).subspan(ranges[i].offset, ranges[i].bytes)));
            }
        }
        CHECK(store.device_bytes() == (reads_host ? 0u : 5000u + 128u));
        CHECK(device.pinned_bytes == 0);
    }
}

TEST(copies_take_the_place_of_mappings_that_are_not_to_be_pinned) {
    const std::vector<std::byte>   bytes = test::counting_bytes(50000);
    const test::TemporaryFile      file(bytes);
    const std::vector<WeightFile>  files = {{file.path(), bytes.size()}};
    const std::vector<WeightRange> ranges = mixed_ranges();
    test::HostDevice               device;
    device.reads_host = false;
    Telemetry telemetry;
    {
        const WeightPlan  plan{.placement = WeightPlacement::mapped_experts, .pin_copies = true};
        const WeightStore store(device, files, ranges, plan, telemetry);
        for (const size_t i : {1u, 2u, 4u, 5u}) {
            CHECK(std::memcmp(store.address(i), bytes.data() + ranges[i].offset, ranges[i].bytes) == 0);
            CHECK(std::memcmp(store.pinned_address(i), bytes.data() + ranges[i].offset, ranges[i].bytes) == 0);
        }
        CHECK(store.mapped_bytes() == 0);
        CHECK(device.pinned_bytes == 700 + 300 + 9000 + 777);
    }
    CHECK(device.lent_bytes == 0 && device.pinned_bytes == 0);
}

TEST(beyond_a_limit_of_device_memory_weights_are_read_where_the_host_has_them) {
    const std::vector<std::byte>  bytes = test::counting_bytes(50000);
    const test::TemporaryFile     file(bytes);
    const std::vector<WeightFile> files = {{file.path(), bytes.size()}};
    std::vector<WeightRange>      ranges = {{0, 0, 4000, "rows", WeightUse::rows},
                                            {0, 8192, 3000, "first"},
                                            {0, 16384, 3000, "second"},
                                            {0, 24576, 1000, "third"}};
    test::HostDevice device;
    device.reads_host = false;
    Telemetry telemetry;

    const WeightPlan  plan{.placement = WeightPlacement::resident, .most_device_bytes = 4096};
    const WeightStore store(device, files, ranges, plan, telemetry);

    CHECK(!store.owned_by_device(0) && store.owned_by_device(1) && !store.owned_by_device(2) && store.owned_by_device(3));
    CHECK(store.device_bytes() == 4000);
    for (size_t i = 0; i < ranges.size(); ++i) {
        CHECK(std::memcmp(store.address(i), bytes.data() + ranges[i].offset, ranges[i].bytes) == 0);
    }
}

TEST(what_the_host_holds_can_be_locked) {
    const std::vector<std::byte>   bytes = test::counting_bytes(50000);
    const test::TemporaryFile      file(bytes);
    const std::vector<WeightFile>  files = {{file.path(), bytes.size()}};
    const std::vector<WeightRange> ranges = three_ranges();
    test::HostDevice               device;
    Telemetry                      telemetry;
    for (const WeightSource source : {WeightSource::mmap, WeightSource::read, WeightSource::direct}) {
        const WeightStore store(device, files, ranges, {.source = source, .lock = true}, telemetry);
        CHECK(holds(store, ranges, bytes));
        /* All of it, or nothing where the system has a limit. */
        CHECK(store.locked_bytes() == 0 || store.locked_bytes() >= store.weight_bytes());
    }
}

TEST(a_device_apart_is_refused_weights_that_stay_with_the_host) {
    const test::TemporaryFile      file(test::counting_bytes(50000));
    const std::vector<WeightFile>  files = {{file.path(), 50000}};
    const std::vector<WeightRange> ranges = three_ranges();
    test::HostDevice               device;
    device.reads_host = false;
    Telemetry telemetry;

    CHECK(test::outcome_of([&] { WeightStore(device, files, ranges, kMapped, telemetry); }).status == DS4_E_ARGUMENT);
}

TEST(placing_weights_on_a_device_may_fail_anywhere_and_leaves_nothing) {
    const test::TemporaryFile      file(test::counting_bytes(50000));
    const std::vector<WeightFile>  files = {{file.path(), 50000}};
    const std::vector<WeightRange> ranges = mixed_ranges();
    test::HostDevice               device;
    Telemetry                      telemetry;
    const auto                     place = [&](const WeightPlan &plan) {
        const test::Outcome outcome = test::outcome_of([&] { WeightStore(device, files, ranges, plan, telemetry); });
        CHECK(device.lent_bytes == 0 && device.pinned_bytes == 0);
        return outcome;
    };

    device.free_bytes = 6000;
    const test::Outcome full = place(kResident);
    CHECK(full.status == DS4_E_NO_MEMORY && full.says("they need 16.25 KiB, 5.86 KiB free"));
    device.free_bytes = 1u << 20;
    device.sends_left = 1;
    CHECK(place(kResident).status == DS4_E_DEVICE);
    device.sends_left = 100;
    device.pins_left = 1;
    CHECK(place(kMappedExperts).status == DS4_E_DEVICE);
    telemetry.set(DS4_WORD_CANCEL, 1);
    CHECK(place(kResident).status == DS4_E_CANCELLED);
    CHECK(place(kMappedExperts).status == DS4_E_CANCELLED);
}
