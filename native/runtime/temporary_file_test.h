/* For tests: a file with given bytes that is gone when the test is. */
#pragma once

#include <cstddef>
#include <cstdlib>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <unistd.h>

namespace ds4::test {

class TemporaryFile {
public:
    explicit TemporaryFile(std::span<const std::byte> bytes) {
        const char *directory = std::getenv("TMPDIR");
        std::string pattern = std::string(directory == nullptr ? "/tmp" : directory) + "/ds4-test-XXXXXX";
        const int   descriptor = ::mkstemp(pattern.data());
        if (descriptor < 0) {
            throw std::runtime_error("cannot make a temporary file");
        }
        path_ = pattern;
        size_t done = 0;
        while (done < bytes.size()) {
            const ssize_t written = ::write(descriptor, bytes.data() + done, bytes.size() - done);
            if (written <= 0) {
                ::close(descriptor);
                throw std::runtime_error("cannot fill a temporary file");
            }
            done += static_cast<size_t>(written);
        }
        ::close(descriptor);
    }
    ~TemporaryFile() { ::unlink(path_.c_str()); }
    TemporaryFile(const TemporaryFile &) = delete;
    TemporaryFile &operator=(const TemporaryFile &) = delete;

    const std::string &path() const { return path_; }

private:
    std::string path_;
};

/* Bytes that differ from their neighbours near and far. */
inline std::vector<std::byte> counting_bytes(size_t count) {
    std::vector<std::byte> bytes(count);
    for (size_t i = 0; i < count; ++i) {
        bytes[i] = static_cast<std::byte>((i * 131 + i / 251) & 255);
    }
    return bytes;
}

} // namespace ds4::test
