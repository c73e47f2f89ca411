#include "runtime/file_lock.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "failure.h"

namespace ds4::runtime {

namespace {

Failure io_failure(const std::string &doing, const std::string &path, int error) {
    return {DS4_E_IO, "cannot " + doing + " lock file " + path + ": " + std::strerror(error)};
}

uint64_t read_pid(int descriptor) {
    std::array<char, 24> text{};
    const ssize_t        got = ::pread(descriptor, text.data(), text.size(), 0);
    uint64_t             pid = 0;
    if (got > 0) {
        std::from_chars(text.data(), text.data() + got, pid);
    }
    return pid;
}

/* Which process holds the lock is a courtesy to the reader of an error; not being able to say it is no failure. */
void write_pid(int descriptor) {
    const std::string text = std::to_string(::getpid()) + "\n";
    if (::ftruncate(descriptor, 0) == 0) {
        [[maybe_unused]] const ssize_t written = ::pwrite(descriptor, text.data(), text.size(), 0);
    }
}

void take(int descriptor, const std::string &path, uint64_t &holder) {
    struct stat status {};
    if (::fstat(descriptor, &status) != 0) {
        throw io_failure("examine", path, errno);
    }
    if (!S_ISREG(status.st_mode)) {
        throw Failure(DS4_E_IO, "cannot use " + path + " as a lock file: it is not a regular file");
    }
    int result = 0;
    do {
        result = ::flock(descriptor, LOCK_EX | LOCK_NB);
    } while (result != 0 && errno == EINTR);
    if (result == 0) {
        write_pid(descriptor);
        return;
    }
    const int error = errno;
    if (error != EWOULDBLOCK) {
        throw io_failure("lock", path, error);
    }
    holder = read_pid(descriptor);
    throw Failure(DS4_E_BUSY, "lock file " + path + " is held by another process" +
                                  (holder == 0 ? std::string() : " (pid " + std::to_string(holder) + ")"));
}

} // namespace

FileLock::FileLock(std::string path, uint64_t &holder) : path_(std::move(path)) {
    holder = 0;
    /* The usual place is a directory that anyone may write to, and the file is truncated: a link planted there must not
     * lead to another file of ours. */
    do {
        descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    } while (descriptor_ < 0 && errno == EINTR);
    if (descriptor_ < 0) {
        if (errno == ELOOP) {
            throw Failure(DS4_E_IO, "cannot open lock file " + path_ + ": it is a symbolic link; name the file itself");
        }
        throw io_failure("open", path_, errno);
    }
    try {
        take(descriptor_, path_, holder);
    } catch (...) {
        ::close(descriptor_);
        throw;
    }
}

FileLock::~FileLock() { ::close(descriptor_); }

} // namespace ds4::runtime
