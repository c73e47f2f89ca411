#include "runtime/file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "failure.h"

namespace ds4::runtime {

namespace {

/* One read never asks for more: Linux stops near 2^31 bytes anyway, and callers poll for cancellation in between. */
constexpr size_t kMostBytesPerRead = 1u << 30;

std::string error_text(int error) { return std::strerror(error); }

struct stat status_of(int descriptor, const std::string &path) {
    struct stat status {};
    if (::fstat(descriptor, &status) != 0) {
        throw Failure(DS4_E_IO, "cannot examine " + path + ": " + error_text(errno));
    }
    return status;
}

ssize_t read_through(const backend::Device *device, int descriptor, void *to, size_t bytes, uint64_t offset) {
    return device != nullptr ? device->read_file(descriptor, to, bytes, offset)
                             : ::pread(descriptor, to, bytes, static_cast<off_t>(offset));
}

/* What every drive and file system takes, unless the system says that this one wants more. */
constexpr uint64_t kUsualAlignment = 4096;

uint64_t direct_alignment([[maybe_unused]] int descriptor) {
#if defined(STATX_DIOALIGN)
    struct statx status {};
    if (::statx(descriptor, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 && (status.stx_mask & STATX_DIOALIGN) != 0) {
        return std::max<uint64_t>({kUsualAlignment, status.stx_dio_offset_align, status.stx_dio_mem_align});
    }
#endif
    return kUsualAlignment;
}

} // namespace

void read_fully(const ByteSource &source, std::span<std::byte> to, uint64_t offset) {
    size_t done = 0;
    while (done < to.size()) {
        const size_t  want = std::min(to.size() - done, kMostBytesPerRead);
        const ssize_t got = source.read_some(to.data() + done, want, offset + done);
        if (got > 0) {
            done += static_cast<size_t>(got);
            continue;
        }
        const int error = errno;
        if (got < 0 && error == EINTR) {
            continue;
        }
        const std::string progress = std::to_string(done) + " of " + std::to_string(to.size()) + " bytes at offset " +
                                     std::to_string(offset);
        if (got == 0) {
            throw Failure(DS4_E_IO, "cannot read " + source.path() + ": the file ended after " + progress +
                                        "; it was cut short or changed while in use");
        }
        throw Failure(DS4_E_IO, "cannot read " + source.path() + ": " + error_text(error) + " after " + progress);
    }
}

ReadOnlyFile::ReadOnlyFile(std::string path, uint64_t expected_bytes, const backend::Device *device)
    : path_(std::move(path)), device_(device) {
    /* O_NONBLOCK so that a pipe put in the file's place is refused below instead of waited for. */
    do {
        descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    } while (descriptor_ < 0 && errno == EINTR);
    if (descriptor_ < 0) {
        throw Failure(DS4_E_IO, "cannot open " + path_ + ": " + error_text(errno));
    }
    /* From here on the destructor does not run if we throw, so the descriptor is closed by hand. */
    try {
        const struct stat status = status_of(descriptor_, path_);
        if (!S_ISREG(status.st_mode)) {
            throw Failure(DS4_E_IO, "cannot use " + path_ + ": it is not a regular file");
        }
        bytes_ = static_cast<uint64_t>(status.st_size);
        modified_ = status.st_mtim;
        if (bytes_ != expected_bytes) {
            throw Failure(DS4_E_IO, "cannot use " + path_ + ": it has " + std::to_string(bytes_) + " bytes, but had " +
                                        std::to_string(expected_bytes) +
                                        " when its header was read; wait until it is no longer being written");
        }
    } catch (...) {
        ::close(descriptor_);
        throw;
    }
}

ReadOnlyFile::~ReadOnlyFile() {
    if (descriptor_ >= 0) {
        ::close(descriptor_);
    }
}

ReadOnlyFile::ReadOnlyFile(ReadOnlyFile &&other) noexcept
    : path_(std::move(other.path_)), bytes_(other.bytes_), modified_(other.modified_),
      descriptor_(std::exchange(other.descriptor_, -1)), device_(other.device_) {}

ssize_t ReadOnlyFile::read_some(void *to, size_t bytes, uint64_t offset) const {
    return read_through(device_, descriptor_, to, bytes, offset);
}

void ReadOnlyFile::forget(uint64_t offset, uint64_t bytes) const {
    /* Advice: where the system does not take it, nothing is lost. */
    static_cast<void>(::posix_fadvise(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_DONTNEED));
}

std::unique_ptr<DirectFile> DirectFile::open(const ReadOnlyFile &file, const backend::Device *device) {
    int descriptor = -1;
    do {
        descriptor = ::open(file.path().c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_DIRECT);
    } while (descriptor < 0 && errno == EINTR);
    if (descriptor < 0) {
        return nullptr;
    }
    /* It must be the file that was checked, not one that took its name since. */
    struct stat here {};
    struct stat there {};
    if (::fstat(descriptor, &here) != 0 || ::fstat(file.descriptor(), &there) != 0 || here.st_ino != there.st_ino ||
        here.st_dev != there.st_dev) {
        ::close(descriptor);
        return nullptr;
    }
    return std::unique_ptr<DirectFile>(new DirectFile(file.path(), descriptor, direct_alignment(descriptor), device));
}

DirectFile::~DirectFile() { ::close(descriptor_); }

ssize_t DirectFile::read_some(void *to, size_t bytes, uint64_t offset) const {
    return read_through(device_, descriptor_, to, bytes, offset);
}

uint64_t ReadOnlyFile::bytes_now() const { return static_cast<uint64_t>(status_of(descriptor_, path_).st_size); }

void ReadOnlyFile::check_unchanged() const {
    const struct stat status = status_of(descriptor_, path_);
    const auto        now = static_cast<uint64_t>(status.st_size);
    if (now < bytes_) {
        throw Failure(DS4_E_IO, "cannot go on with " + path_ + ": it shrank from " + std::to_string(bytes_) + " to " +
                                    std::to_string(now) + " bytes while in use; restore the file and start again");
    }
    if (status.st_mtim.tv_sec != modified_.tv_sec || status.st_mtim.tv_nsec != modified_.tv_nsec) {
        throw Failure(DS4_E_IO, "cannot go on with " + path_ + ": it was written to while in use; wait until it is whole and "
                                    "start again");
    }
}

uint64_t page_bytes() { return static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)); }

FileMapping::FileMapping(const ReadOnlyFile &file, uint64_t offset, uint64_t bytes) {
    start_ = offset / page_bytes() * page_bytes();
    bytes_ = (offset - start_ + bytes + page_bytes() - 1) / page_bytes() * page_bytes();
    void *const mapped = ::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, file.descriptor(), static_cast<off_t>(start_));
    if (mapped == MAP_FAILED) {
        const int error = errno;
        throw Failure(error == ENOMEM ? DS4_E_NO_MEMORY : DS4_E_IO,
                      "cannot map " + std::to_string(bytes_) + " bytes of " + file.path() + ": " + error_text(error));
    }
    /* From here on the destructor does not run if we throw. */
    try {
        watch_ = MappingWatch(static_cast<std::byte *>(mapped), bytes_);
    } catch (...) {
        ::munmap(mapped, bytes_);
        throw;
    }
    base_ = static_cast<std::byte *>(mapped);
}

FileMapping::~FileMapping() {
    watch_ = MappingWatch(); /* first: the addresses may be another mapping's next */
    if (base_ != nullptr) {
        ::munmap(base_, bytes_);
    }
}

FileMapping::FileMapping(FileMapping &&other) noexcept { swap(other); }

FileMapping &FileMapping::operator=(FileMapping &&other) noexcept {
    FileMapping taken(std::move(other));
    swap(taken);
    return *this;
}

void FileMapping::swap(FileMapping &other) noexcept {
    std::swap(base_, other.base_);
    std::swap(start_, other.start_);
    std::swap(bytes_, other.bytes_);
    std::swap(watch_, other.watch_);
}

void FileMapping::check_read(const ReadOnlyFile &file) const {
    const std::optional<uint64_t> loss = watch_.loss();
    if (!loss) {
        return;
    }
    const uint64_t    now = file.bytes_now();
    const std::string what = "cannot read " + file.path() + " at offset " + std::to_string(start_ + *loss) + ": ";
    if (now < file.bytes()) {
        throw Failure(DS4_E_IO, what + "the file was cut from " + std::to_string(file.bytes()) + " to " +
                                    std::to_string(now) + " bytes while in use; restore it and start again");
    }
    throw Failure(DS4_E_IO, what + "the disk did not give it, or the file was cut and restored while in use; check both and "
                                   "start again");
}

} // namespace ds4::runtime
