/* For tests: a file in memory whose reads begin only when they are let go, as on a drive that takes its time. */
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "runtime/file.h"

namespace ds4::test {

class HeldSource : public runtime::ByteSource {
public:
    explicit HeldSource(std::vector<std::byte> content) : bytes(std::move(content)) {}
    ~HeldSource() override { let_go(); }

    void hold() { held_ = true; }
    void let_go() {
        held_ = false;
        held_.notify_all();
    }

    ssize_t read_some(void *to, size_t wanted, uint64_t offset) const override {
        held_.wait(true);
        const size_t count = std::min<uint64_t>(wanted, bytes.size() - std::min<uint64_t>(offset, bytes.size()));
        std::memcpy(to, bytes.data() + offset, count);
        return static_cast<ssize_t>(count);
    }
    const std::string &path() const override { return name; }

    std::vector<std::byte> bytes;
    std::string            name = "weights.gguf";

private:
    std::atomic<bool> held_ = false;
};

} // namespace ds4::test
