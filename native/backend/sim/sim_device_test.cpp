#include <algorithm>
#include <cerrno>
#include <string>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/sim/simulated_machine_test.h"
#include "runtime/failure_test.h"

using namespace ds4;
using namespace ds4::backend;
using namespace ds4::backend::sim::test;

namespace {

constexpr size_t kKibibyte = 1024;

/* Whether a process that does this comes to its end. */
template <typename Body> bool survives(Body &&body) {
    const pid_t child = ::fork();
    if (child == 0) {
        const int silence = ::open("/dev/null", O_WRONLY);
        ::dup2(silence, STDERR_FILENO); /* sanitizers have much to say about this */
        body();
        ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

} // namespace

TEST("the simulated device is what the simulation says") {
    ds4_simulation machine = small_machine();
    machine.used_bytes = 300 * kKibibyte;
    const Simulated  simulated(machine);
    const Allocation some = simulated.device().allocate(100 * kKibibyte, "a test");

    const DeviceInfo info = simulated.device().info();

    CHECK(device_count() == 1);
    CHECK(info.kind == DeviceKind::discrete);
    CHECK(info.name == "simulated discrete GPU" && info.arch == "sim" && info.core_count > 0);
    CHECK(info.total_bytes == 1024 * kKibibyte && info.free_bytes == 624 * kKibibyte);
    CHECK(!simulated.device().reads_host_memory());
    CHECK(open_device(0)->info().free_bytes == info.free_bytes); /* the same card */
    CHECK_FAILS(DS4_E_DEVICE, open_device(1));
    CHECK_FAILS(DS4_E_DEVICE, open_backend({.device = 1}));
}

TEST("a machine with several devices has as many cards of one kind, each with memory of its own") {
    ds4_simulation machine = small_machine();
    machine.device_count = 3;
    const Simulated simulated(machine);

    const auto       second = open_device(1);
    const Allocation some = second->allocate(100 * kKibibyte, "a test");

    CHECK(device_count() == 3);
    CHECK(second->info().free_bytes == 924 * kKibibyte);
    CHECK(open_device(1)->info().free_bytes == 924 * kKibibyte);
    CHECK(simulated.device().info().free_bytes == 1024 * kKibibyte);
    CHECK(open_device(2)->info().free_bytes == 1024 * kKibibyte);
    CHECK(open_device(2)->info().name == open_device(0)->info().name);
    CHECK_FAILS(DS4_E_DEVICE, open_device(3));
}

TEST("on an integrated device pinned memory is taken from the one memory there is") {
    const Simulated simulated(small_machine(DS4_DEVICE_INTEGRATED));
    Device         &device = simulated.device();
    const std::vector<std::byte> host(100 * kKibibyte);

    const auto       pinned = device.pin_memory(200 * kKibibyte, "a test");
    const auto       mapped = device.map_host(host);
    const Allocation own = device.allocate(300 * kKibibyte, "a test");

    CHECK(device.info().kind == DeviceKind::integrated && device.info().name == "simulated integrated GPU");
    CHECK(device.info().free_bytes == 424 * kKibibyte);
    CHECK(simulated.word(DS4_WORD_SIM_PINNED_BYTES) == 300 * kKibibyte);
    CHECK_FAILS(DS4_E_NO_MEMORY, device.pin_memory(425 * kKibibyte, "a test"));
    CHECK_FAILS(DS4_E_NO_MEMORY, device.upload_ring(5, 85 * kKibibyte + 1));
    CHECK(device.info().free_bytes == 424 * kKibibyte);
}

TEST("on a discrete device pinned memory takes nothing of its own") {
    const Simulated simulated;
    const auto      pinned = simulated.device().pin_memory(2048 * kKibibyte, "a test");

    CHECK(simulated.device().info().free_bytes == 1024 * kKibibyte);
    CHECK(std::ranges::all_of(pinned->bytes(), [](std::byte byte) { return byte == std::byte{}; }));
    CHECK(reinterpret_cast<uintptr_t>(pinned->bytes().data()) % 4096 == 0);
}

TEST("device memory is zero, goes through copies unchanged and is refused with need and free when there is too little") {
    const Simulated           simulated;
    Device                   &device = simulated.device();
    const std::vector<int>    values = {1, 2, 3, 4};
    const Placed<int>         first(device, values);
    const Allocation          second = device.allocate(16, "a test");
    std::vector<int>          got(4, 9);

    device.copy_out(got.data(), second.as<int>(), 16);
    CHECK(got == std::vector<int>(4, 0));
    device.copy_within(second.as<int>(), first.get() + 1, 12);
    device.copy_out(got.data(), second.as<int>(), 16);
    CHECK(got == std::vector<int>({2, 3, 4, 0}));
    CHECK(reinterpret_cast<uintptr_t>(second.as<int>()) % 64 == 0);
    CHECK(device.allocate(0, "nothing").as<char>() == nullptr);

    const auto outcome = ds4::test::outcome_of([&] { device.allocate(2048 * kKibibyte, "the KV cache"); });
    CHECK(outcome.status == DS4_E_NO_MEMORY);
    CHECK(outcome.says("cannot allocate GPU memory for the KV cache: needs 2.0 MiB, 1.0 MiB of 1.0 MiB free"));
}

TEST("the host cannot touch device memory, nor an address under which the device knows the host's") {
    const Simulated              simulated;
    const Allocation             own = simulated.device().allocate(64, "a test");
    const std::vector<std::byte> host(64);
    const auto                   mapped = simulated.device().map_host(host);
    volatile std::byte          *to = own.as<std::byte>();
    const volatile std::byte    *from = mapped->device_address();

    CHECK(survives([] {}));
    CHECK(!survives([&] { *to = std::byte{1}; }));
    CHECK(!survives([&] { static_cast<void>(std::byte{*from}); }));
}

TEST("a mapping keeps the alignment of the memory it is of") {
    const Simulated              simulated;
    const std::vector<std::byte> host(100);
    const auto                   mapped = simulated.device().map_host(std::span(host).subspan(4));

    CHECK((reinterpret_cast<uintptr_t>(mapped->device_address()) - reinterpret_cast<uintptr_t>(host.data() + 4)) % 4096 == 0);
}

TEST("a copy from or to what is not device memory fails") {
    const Simulated simulated;
    Device         &device = simulated.device();
    Placed<char>    memory(device, 100);
    const auto      pinned = device.pin_memory(100, "a test");
    char            host[200] = {};
    char           *freed = nullptr;
    {
        const Placed<char> gone(device, 100);
        freed = gone.get();
    }

    CHECK_FAILS(DS4_E_DEVICE, device.copy_in(memory.get() + 1, host, 100));
    CHECK_FAILS(DS4_E_DEVICE, device.copy_out(host, memory.get(), 101));
    CHECK_FAILS(DS4_E_DEVICE, device.copy_in(host, memory.get(), 1));
    CHECK_FAILS(DS4_E_DEVICE, device.copy_in(memory.get(), memory.get(), 1));
    CHECK_FAILS(DS4_E_DEVICE, device.copy_out(memory.get(), memory.get(), 1));
    CHECK_FAILS(DS4_E_DEVICE, device.copy_within(memory.get(), host, 1));
    CHECK_FAILS(DS4_E_DEVICE, device.copy_in(const_cast<std::byte *>(pinned->device_address()), host, 1));
    CHECK_FAILS(DS4_E_DEVICE, device.copy_out(host, freed, 1));
    CHECK_FAILS(DS4_E_DEVICE, device.map_host({reinterpret_cast<std::byte *>(memory.get()), 10}));
    device.copy_in(nullptr, nullptr, 0);
}

TEST("an address that was given back is not given out again") {
    const Simulated simulated;
    char           *before = nullptr;
    for (int i = 0; i < 100; ++i) {
        const Allocation now = simulated.device().allocate(4096, "a test");
        CHECK(now.as<char>() != before);
        before = now.as<char>();
    }
}

TEST("the ledger says what crossed the link, what it took and what is alive") {
    const Simulated        simulated;
    Device                &device = simulated.device();
    const std::vector<char> host(3000);
    {
        const Placed<char> first(device, std::vector<char>(1000));
        const auto         pinned = device.pin_memory(500, "a test");
        {
            const Placed<char> second(device, std::vector<char>(200));
            device.copy_within(second.get(), first.get(), 100);
            CHECK(simulated.word(DS4_WORD_SIM_ALLOCATIONS) == 2);
            CHECK(simulated.word(DS4_WORD_SIM_ALLOCATED_BYTES) == 1200);
        }
        static_cast<void>(first.read());
        CHECK(simulated.word(DS4_WORD_SIM_ALLOCATIONS) == 1);
        CHECK(simulated.word(DS4_WORD_SIM_ALLOCATED_BYTES) == 1000);
        CHECK(simulated.word(DS4_WORD_SIM_PINNED_BYTES) == 500);
    }
    CHECK(simulated.word(DS4_WORD_SIM_TO_DEVICE_BYTES) == 1200);
    CHECK(simulated.word(DS4_WORD_SIM_FROM_DEVICE_BYTES) == 1000);
    CHECK(simulated.word(DS4_WORD_SIM_NS) == 1200 + 1000 + 3 * 10);
    CHECK(simulated.word(DS4_WORD_SIM_PEAK_BYTES) == 1200);
    CHECK(simulated.word(DS4_WORD_SIM_CALLS) == 2 + 1 + 3 + 1); /* allocations, pin, copies between, copy within */
    CHECK(simulated.word(DS4_WORD_SIM_ALLOCATIONS) == 0);
    CHECK(simulated.word(DS4_WORD_SIM_ALLOCATED_BYTES) == 0);
    CHECK(simulated.word(DS4_WORD_SIM_PINNED_BYTES) == 0);
}

TEST("a device that is opened anew begins its sums anew, but not what is alive") {
    Simulated          simulated;
    const Placed<char> alive(simulated.device(), std::vector<char>(1000));

    const Backend another = open_backend({.threads = 1, .words = simulated.words.data()});

    CHECK(simulated.word(DS4_WORD_SIM_TO_DEVICE_BYTES) == 0 && simulated.word(DS4_WORD_SIM_NS) == 0);
    CHECK(simulated.word(DS4_WORD_SIM_ALLOCATED_BYTES) == 1000 && simulated.word(DS4_WORD_SIM_PEAK_BYTES) == 1000);
}

TEST("bytes from a file are counted as they come") {
    const Simulated simulated;
    const int       file = ::open(ds4::test::fixture_path("math.json").c_str(), O_RDONLY | O_CLOEXEC);
    char            bytes[64] = {};

    CHECK(simulated.device().read_file(file, bytes, sizeof bytes, 0) == 64);
    CHECK(bytes[0] == '{');
    CHECK(simulated.device().read_file(file, bytes, sizeof bytes, uint64_t{1} << 40) == 0);
    CHECK(simulated.word(DS4_WORD_SIM_DISK_BYTES) == 64);
    CHECK(simulated.word(DS4_WORD_SIM_NS) == 100 + 64 * 4);
    ::close(file);
}

TEST("each call fails as its kind does, and holds nothing afterwards") {
    char host[16] = {};
    {
        const Simulated simulated(failing(DS4_SIM_CALL_ALLOCATE, 2, 1));
        Device         &device = simulated.device();
        const Allocation first = device.allocate(10, "a test");
        CHECK_FAILS(DS4_E_NO_MEMORY, device.allocate(10, "a test"));
        CHECK(simulated.word(DS4_WORD_SIM_ALLOCATED_BYTES) == 10 && device.info().free_bytes == 1024 * kKibibyte - 10);
        CHECK(device.allocate(10, "a test").bytes() == 10);
    }
    {
        const Simulated  simulated(failing(DS4_SIM_CALL_COPY, 2));
        const Allocation memory = simulated.device().allocate(16, "a test");
        simulated.device().copy_in(memory.as<void>(), host, 16);
        CHECK_FAILS(DS4_E_DEVICE, simulated.device().copy_in(memory.as<void>(), host, 16));
        CHECK_FAILS(DS4_E_DEVICE, simulated.device().copy_out(host, memory.as<void>(), 16));
        CHECK_FAILS(DS4_E_DEVICE, simulated.device().copy_within(memory.as<void>(), memory.as<char>() + 8, 8));
        CHECK(simulated.word(DS4_WORD_SIM_TO_DEVICE_BYTES) == 16 && simulated.word(DS4_WORD_SIM_FROM_DEVICE_BYTES) == 0);
    }
    {
        const Simulated simulated(failing(DS4_SIM_CALL_PIN));
        CHECK_FAILS(DS4_E_NO_MEMORY, simulated.device().pin_memory(10, "a test"));
        CHECK_FAILS(DS4_E_NO_MEMORY, simulated.device().upload_ring(2, 4096));
        CHECK(simulated.device().map_host(std::as_bytes(std::span(host)))->device_address() != nullptr);
        CHECK(simulated.word(DS4_WORD_SIM_PINNED_BYTES) == 0);
    }
    {
        const Simulated simulated(failing(DS4_SIM_CALL_MAP));
        CHECK_FAILS(DS4_E_DEVICE, simulated.device().map_host(std::as_bytes(std::span(host))));
        CHECK(simulated.device().pin_memory(10, "a test")->bytes().size() == 10);
    }
    {
        const Simulated simulated(failing(DS4_SIM_CALL_READ, 1, 1));
        const int       file = ::open(ds4::test::fixture_path("math.json").c_str(), O_RDONLY | O_CLOEXEC);
        errno = 0;
        CHECK(simulated.device().read_file(file, host, 16, 0) == -1 && errno == EIO);
        CHECK(simulated.device().read_file(file, host, 16, 0) == 16);
        ::close(file);
    }
    {
        const Simulated   simulated(failing(DS4_SIM_CALL_DIRECT, 1, 1));
        const std::string path = ds4::test::fixture_path("math.json");
        const int         file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
        const int         direct = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
        alignas(4096) static std::byte block[4096];
        CHECK(simulated.device().read_file(file, block, sizeof block, 0) > 0);
        errno = 0;
        CHECK(simulated.device().read_file(direct, block, sizeof block, 0) == -1 && errno == EINVAL);
        ::close(direct);
        ::close(file);
    }
    {
        const Simulated simulated(failing(DS4_SIM_CALL_MEMORY_INFO, 2, 1));
        CHECK(simulated.device().info().free_bytes == 1024 * kKibibyte);
        CHECK(simulated.device().info().free_bytes == 0 && simulated.device().info().total_bytes == 1024 * kKibibyte);
    }
    {
        const Simulated simulated(failing(DS4_SIM_CALL_WAIT, 2));
        simulated.ops().pace();
        CHECK_FAILS(DS4_E_DEVICE, simulated.ops().pace());
    }
}

TEST("uses are counted from the first again with each simulation, for devices that are open too") {
    const Simulated simulated(failing(DS4_SIM_CALL_ALLOCATE, 2, 2));
    const auto      fails = [&] {
        return ds4::test::outcome_of([&] { simulated.device().allocate(1, "a test"); }).status == DS4_E_NO_MEMORY;
    };

    CHECK(!fails() && fails() && fails() && !fails());
    simulate(failing(DS4_SIM_CALL_ALLOCATE, 2, 2));
    CHECK(!fails() && fails() && fails() && !fails());
    simulate(small_machine());
    CHECK(!fails() && !fails());
}

TEST("a machine that cannot be is refused, and the one before stays") {
    const Simulated simulated;
    const auto      refused = [](auto change) {
        ds4_simulation machine = small_machine();
        machine.vram_bytes = 77;
        change(machine);
        CHECK_FAILS(DS4_E_ARGUMENT, simulate(machine));
    };

    refused([](ds4_simulation &machine) { machine.kind = DS4_DEVICE_HOST; });
    refused([](ds4_simulation &machine) { machine.kind = DS4_DEVICE_SIMULATED; });
    refused([](ds4_simulation &machine) { machine.used_bytes = 78; });
    refused([](ds4_simulation &machine) { machine.vram_bytes = 0; });
    refused([](ds4_simulation &machine) { machine.device_count = DS4_SIM_MOST_DEVICES + 1; });
    refused([](ds4_simulation &machine) { machine.fail_call = DS4_SIM_CALL_COUNT; });
    refused([](ds4_simulation &machine) { machine.fail_call = DS4_SIM_CALL_COPY; });
    CHECK(open_device(0)->info().total_bytes == 1024 * kKibibyte);
}

TEST("ds4_simulate takes the description and says what is wrong with it") {
    const Simulated simulated;
    char            text[200] = {};
    ds4_error       error{.size = sizeof(ds4_error), .capacity = sizeof text, .text = text};
    ds4_simulation  machine = small_machine(DS4_DEVICE_INTEGRATED);

    CHECK(ds4_simulate(&machine, &error) == DS4_OK);
    CHECK(open_device(0)->info().kind == DeviceKind::integrated);
    machine.device_count = 2;
    CHECK(ds4_simulate(&machine, &error) == DS4_OK && device_count() == 2);
    machine.size = 72; /* an older caller knows of one device */
    CHECK(ds4_simulate(&machine, &error) == DS4_OK && device_count() == 1);
    machine.size = sizeof(machine);
    machine.kind = 9;
    CHECK(ds4_simulate(&machine, &error) == DS4_E_ARGUMENT);
    CHECK(std::string(text).find("kind 9") != std::string::npos);
    machine.size = 4;
    CHECK(ds4_simulate(&machine, &error) == DS4_E_ARGUMENT);
    CHECK(ds4_simulate(nullptr, &error) == DS4_E_ARGUMENT);
}
