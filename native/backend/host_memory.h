/* How much memory the host has, for whoever must not take more: the system ends a process for it much later. */
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

namespace ds4::backend {

/* Bytes; 0 where the system does not say. */
struct HostMemory {
    uint64_t total = 0;
    uint64_t available = 0;
    uint64_t swap = 0;
};

/* What one version of control groups calls its files. src/cli/host-memory.ts reads the same ones. */
struct GroupFiles {
    std::string_view mount;
    std::string_view controller; /* in /proc/self/cgroup; empty: the version with one tree for all controllers */
    std::string_view limit;
    std::string_view used;
    std::string_view cache; /* key in memory.stat */
};

inline constexpr GroupFiles kGroupVersions[] = {
    {"/sys/fs/cgroup", "", "memory.max", "memory.current", "inactive_file "},
    {"/sys/fs/cgroup/memory", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "},
};

/* The number behind `key` in a file of "key number" lines. */
inline std::optional<uint64_t> read_number(const std::string &path, std::string_view key) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        if (!line.starts_with(key)) {
            continue;
        }
        const size_t at = line.find_first_not_of(" \t", key.size());
        uint64_t     value = 0;
        if (at != std::string::npos && std::from_chars(line.data() + at, line.data() + line.size(), value).ec == std::errc()) {
            return value;
        }
    }
    return std::nullopt;
}

/* Whether a list such as "cpu,memory" names a controller. */
inline bool names_controller(std::string_view list, std::string_view controller) {
    for (size_t from = 0; from <= list.size();) {
        const size_t end = std::min(list.find(',', from), list.size());
        if (list.substr(from, end - from) == controller) {
            return true;
        }
        from = end + 1;
    }
    return false;
}

/* The path of the own group, from lines "number:controllers:path"; empty for the top, and for a group outside of what this
 * process sees of the tree, of which only the top can be read. */
inline std::string own_group(const std::string &path, std::string_view controller) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        const size_t first = line.find(':');
        const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
        if (second == std::string::npos ||
            !names_controller(std::string_view(line).substr(first + 1, second - first - 1), controller)) {
            continue;
        }
        std::string group = line.substr(second + 1);
        group.erase(group.find_last_not_of('/') + 1);
        return group.starts_with('/') && !group.starts_with("/..") ? group : "";
    }
    return "";
}

/* Cuts to what a group has, when it has a limit. Its page cache counts as free: the kernel drops it first. */
inline void cut_to_group(HostMemory &memory, const std::string &folder, const GroupFiles &files) {
    const auto file = [&](std::string_view name) { return folder + "/" + std::string(name); };
    const std::optional<uint64_t> limit = read_number(file(files.limit), "");
    const std::optional<uint64_t> used = read_number(file(files.used), "");
    if (limit && used) {
        const uint64_t cache = read_number(file("memory.stat"), files.cache).value_or(0);
        const uint64_t taken = *used - std::min(*used, cache);
        memory.total = std::min(memory.total, *limit);
        memory.available = std::min(memory.available, *limit - std::min(*limit, taken));
    }
}

/* What the machine has, cut to the limits of the process's control group and of all those that it lies in. `root`: where the
 * file system of the machine begins. */
inline HostMemory read_host_memory(const std::string &root = "") {
    const auto kibibytes = [&](std::string_view key) { return read_number(root + "/proc/meminfo", key).value_or(0) * 1024; };
    HostMemory memory{kibibytes("MemTotal:"), kibibytes("MemAvailable:"), kibibytes("SwapTotal:")};
    for (const GroupFiles &files : kGroupVersions) {
        const std::string top = root + std::string(files.mount);
        std::string       group = own_group(root + "/proc/self/cgroup", files.controller);
        for (; !group.empty(); group.erase(group.rfind('/'))) {
            cut_to_group(memory, top + group, files);
        }
        cut_to_group(memory, top, files);
    }
    return memory;
}

} // namespace ds4::backend
