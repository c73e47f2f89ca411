/* How much memory the host has, for whoever must not take more: the system ends a process for it much later. */
#pragma once

#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>

namespace ds4::backend {

/* Bytes; 0 where the system does not say. */
struct HostMemory {
    uint64_t total = 0;
    uint64_t available = 0;
    uint64_t swap = 0;
};

struct CloseFile {
    void operator()(FILE *file) const { std::fclose(file); }
};

/* The number behind `key` in a file of "key number" lines, or 0. */
inline uint64_t read_number(const char *path, const char *key) {
    const std::unique_ptr<FILE, CloseFile> file(std::fopen(path, "re"));
    char                                   line[256];
    const size_t                           length = std::strlen(key);
    while (file != nullptr && std::fgets(line, sizeof line, file.get()) != nullptr) {
        uint64_t value = 0;
        if (std::strncmp(line, key, length) == 0 && std::sscanf(line + length, "%" SCNu64, &value) == 1) {
            return value;
        }
    }
    return 0;
}

/* What the machine has, cut to the limit of the process's control group. */
inline HostMemory read_host_memory() {
    HostMemory memory;
    memory.total = read_number("/proc/meminfo", "MemTotal:") * 1024;
    memory.available = read_number("/proc/meminfo", "MemAvailable:") * 1024;
    memory.swap = read_number("/proc/meminfo", "SwapTotal:") * 1024;

    const uint64_t limit = read_number("/sys/fs/cgroup/memory.max", "");
    if (limit != 0 && limit < memory.total) {
        const uint64_t used = read_number("/sys/fs/cgroup/memory.current", "");
        const uint64_t cache = read_number("/sys/fs/cgroup/memory.stat", "inactive_file ");
        const uint64_t taken = used - std::min(used, cache);
        memory.total = limit;
        memory.available = std::min(memory.available, limit - std::min(limit, taken));
    }
    return memory;
}

} // namespace ds4::backend
