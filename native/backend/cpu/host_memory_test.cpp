#include "backend/host_memory.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "check.h"

using namespace ds4::backend;

namespace {

constexpr uint64_t kGiB = 1ull << 30;

/* The files of a machine with 128 GiB of memory, 64 of them available. */
class FakeMachine {
public:
    explicit FakeMachine(const std::string &groups) {
        std::string pattern = (std::filesystem::temp_directory_path() / "ds4-host-memory-XXXXXX").string();
        CHECK(::mkdtemp(pattern.data()) != nullptr);
        root_ = pattern;
        const auto kib = [](uint64_t gibibytes) { return std::to_string(gibibytes * kGiB / 1024) + " kB\n"; };
        write("proc/meminfo", "MemTotal:       " + kib(128) + "MemAvailable:   " + kib(64) + "SwapTotal:   " + kib(8));
        write("proc/self/cgroup", groups);
    }
    ~FakeMachine() { std::filesystem::remove_all(root_); }
    FakeMachine(const FakeMachine &) = delete;
    FakeMachine &operator=(const FakeMachine &) = delete;

    void group(const std::string &path, const std::string &max, uint64_t used, uint64_t cache = 0) const {
        const std::string folder = "sys/fs/cgroup/" + path;
        write(folder + "/memory.max", max + "\n");
        write(folder + "/memory.current", std::to_string(used) + "\n");
        write(folder + "/memory.stat", "anon 1\ninactive_file " + std::to_string(cache) + "\nactive_file 2\n");
    }
    void old_group(const std::string &path, const std::string &limit, uint64_t used, uint64_t cache) const {
        const std::string folder = "sys/fs/cgroup/memory/" + path;
        write(folder + "/memory.limit_in_bytes", limit + "\n");
        write(folder + "/memory.usage_in_bytes", std::to_string(used) + "\n");
        write(folder + "/memory.stat", "inactive_file 7\ntotal_inactive_file " + std::to_string(cache) + "\n");
    }
    HostMemory memory() const { return read_host_memory(root_); }

private:
    void write(const std::string &path, const std::string &text) const {
        const std::filesystem::path whole = std::filesystem::path(root_) / path;
        std::filesystem::create_directories(whole.parent_path());
        std::ofstream(whole) << text;
    }

    std::string root_;
};

std::string bytes(uint64_t gibibytes) { return std::to_string(gibibytes * kGiB); }

} // namespace

TEST(host_memory_is_what_the_system_says_where_no_group_has_a_limit) {
    const FakeMachine machine("0::/user/shell\n");
    machine.group("user/shell", "max", 40 * kGiB);

    CHECK(machine.memory().total == 128 * kGiB);
    CHECK(machine.memory().available == 64 * kGiB);
    CHECK(machine.memory().swap == 8 * kGiB);
}

TEST(host_memory_is_cut_by_the_own_group_without_its_page_cache) {
    const FakeMachine machine("0::/user/shell\n");
    machine.group("user/shell", bytes(16), 6 * kGiB, 2 * kGiB);

    CHECK(machine.memory().total == 16 * kGiB);
    CHECK(machine.memory().available == 12 * kGiB);
}

TEST(host_memory_is_cut_by_every_group_around_the_own_one_and_by_no_other) {
    for (const std::string path : {"user/shell", "user", "."}) {
        const FakeMachine machine("0::/user/shell\n");
        machine.group("user/shell", bytes(32), kGiB);
        machine.group("user", bytes(24), 2 * kGiB);
        machine.group("user/other", bytes(1), 0);
        machine.group(path, bytes(9), kGiB);

        CHECK(machine.memory().total == 9 * kGiB);
        CHECK(machine.memory().available == 8 * kGiB);
    }
}

TEST(a_group_beyond_its_limit_leaves_no_host_memory) {
    const FakeMachine machine("0::/\n");
    machine.group(".", bytes(4), 5 * kGiB);

    CHECK(machine.memory().available == 0);
}

TEST(host_memory_is_cut_by_the_first_version_of_control_groups_too) {
    const FakeMachine machine("9:cpu:/elsewhere\n4:hugetlb,memory:/box/inner\n0::/\n");
    machine.old_group(".", "9223372036854771712", 90 * kGiB, 0);
    machine.old_group("box", bytes(20), 10 * kGiB, 3 * kGiB);
    machine.old_group("box/inner", bytes(30), kGiB, 0);
    machine.old_group("elsewhere", bytes(1), 0, 0);

    CHECK(machine.memory().available == 13 * kGiB);
}

TEST(a_group_out_of_sight_leaves_the_limit_of_the_top) {
    const FakeMachine machine("0::/../../other\n");
    machine.group(".", bytes(10), kGiB);
    machine.group("other", bytes(1), 0);

    CHECK(machine.memory().available == 9 * kGiB);
}
