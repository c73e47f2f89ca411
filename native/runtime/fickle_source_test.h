/* For tests: a file in memory whose reads come in pieces, are interrupted, or fail. */
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "runtime/file.h"

namespace ds4::test {

class FickleSource : public runtime::ByteSource {
public:
    explicit FickleSource(std::vector<std::byte> content) : bytes(std::move(content)) {}

    ssize_t read_some(void *to, size_t wanted, uint64_t offset) const override {
        const uint64_t number = ++reads;
        if (number >= fails_at && number < fails_until) {
            errno = error;
            return -1;
        }
        if (number % 7 == 3) {
            errno = EINTR;
            return -1;
        }
        const uint64_t end = std::min<uint64_t>(ends_at, bytes.size());
        if (offset >= end) {
            return 0;
        }
        const size_t count = std::min<uint64_t>({wanted, most, end - offset});
        std::memcpy(to, bytes.data() + offset, count);
        return static_cast<ssize_t>(count);
    }
    const std::string &path() const override { return name; }

    std::vector<std::byte>        bytes;
    std::string                   name = "weights.gguf";
    size_t                        most = std::numeric_limits<size_t>::max();
    int                           error = EIO;
    uint64_t                      fails_at = std::numeric_limits<uint64_t>::max();
    uint64_t                      fails_until = std::numeric_limits<uint64_t>::max();
    uint64_t                      ends_at = std::numeric_limits<uint64_t>::max();
    mutable std::atomic<uint64_t> reads = 0;
};

/* Bytes without any pattern that a wrong offset could repeat. */
inline std::vector<std::byte> scrambled_bytes(size_t count) {
    std::vector<std::byte> bytes(count);
    uint64_t               state = 88172645463325252u;
    for (std::byte &byte : bytes) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        byte = static_cast<std::byte>(state >> 32);
    }
    return bytes;
}

} // namespace ds4::test
