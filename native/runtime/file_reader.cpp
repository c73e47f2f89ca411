#include "runtime/file_reader.h"

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "failure.h"

namespace ds4::runtime {

namespace {

/* Counts a read, however it ends. */
class ReadClock {
public:
    explicit ReadClock(Telemetry &telemetry) : telemetry_(telemetry), start_(std::chrono::steady_clock::now()) {}
    ~ReadClock() {
        const auto taken = std::chrono::steady_clock::now() - start_;
        telemetry_.add(DS4_WORD_FILE_READS, 1);
        telemetry_.add(DS4_WORD_FILE_READ_NS, static_cast<uint64_t>(
                                                  std::chrono::duration_cast<std::chrono::nanoseconds>(taken).count()));
    }
    ReadClock(const ReadClock &) = delete;
    ReadClock &operator=(const ReadClock &) = delete;

private:
    Telemetry                            &telemetry_;
    std::chrono::steady_clock::time_point start_;
};

/* Notes reads that came short or failed once, for whoever wonders why loading is slow. */
class CountedSource : public ByteSource {
public:
    CountedSource(const ByteSource &source, Telemetry &telemetry) : source_(source), telemetry_(telemetry) {}

    ssize_t read_some(void *to, size_t bytes, uint64_t offset) const override {
        ssize_t got = source_.read_some(to, bytes, offset);
        if (got < 0 && errno == EIO && !retried_) {
            retried_ = true;
            telemetry_.add(DS4_WORD_FILE_RETRIES, 1);
            got = source_.read_some(to, bytes, offset);
        }
        if (got > 0 && static_cast<size_t>(got) < bytes) {
            telemetry_.add(DS4_WORD_FILE_SHORT_READS, 1);
        }
        if (got == 0 || (got < 0 && errno != EINTR)) {
            telemetry_.add(DS4_WORD_FILE_ERRORS, 1);
        }
        return got;
    }
    const std::string &path() const override { return source_.path(); }

private:
    const ByteSource &source_;
    Telemetry        &telemetry_;
    mutable bool      retried_ = false;
};

} // namespace

/* Whole blocks around the part. The last one may reach past the end of the file: then fewer bytes come, which is right as long
 * as the part is among them. */
FileReader::Outcome FileReader::read_direct(std::span<std::byte> buffer, uint64_t offset, uint64_t bytes) const {
    const uint64_t first = offset / alignment_ * alignment_;
    const uint64_t end = offset + bytes;
    const uint64_t padded = (end - first + alignment_ - 1) / alignment_ * alignment_;
    uint64_t       done = 0;
    while (first + done < end) {
        const ssize_t got = direct_->read_some(buffer.data() + done, padded - done, first + done);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return errno == EINVAL || errno == ENOTSUP ? Outcome::impossible : Outcome::failed;
        }
        done += static_cast<uint64_t>(got);
        if (first + done >= end) {
            break;
        }
        /* From here on the next read would not begin at a block: the page cache has no such rule. */
        if (got == 0 || done % alignment_ != 0) {
            return Outcome::failed;
        }
        telemetry_.add(DS4_WORD_FILE_SHORT_READS, 1);
    }
    return Outcome::done;
}

void FileReader::copy_mapped(std::span<std::byte> to, uint64_t offset) const {
    if (mappable_ == nullptr) {
        read_fully(buffered_, to, offset);
        return;
    }
    const FileMapping window(*mappable_, offset, to.size());
    std::copy_n(window.at(offset), to.size(), to.begin());
    window.check_read(*mappable_);
}

std::span<std::byte> FileReader::read(std::span<std::byte> buffer, uint64_t offset, uint64_t bytes) const {
    const ReadClock clock(telemetry_);
    if (direct_works_.load(std::memory_order_relaxed)) {
        switch (read_direct(buffer, offset, bytes)) {
        case Outcome::done:
            telemetry_.add(DS4_WORD_FILE_READ_BYTES, bytes);
            telemetry_.add(DS4_WORD_FILE_DIRECT_BYTES, bytes);
            return buffer.subspan(offset % alignment_, bytes);
        case Outcome::impossible:
            if (direct_works_.exchange(false, std::memory_order_relaxed)) {
                telemetry_.add(DS4_WORD_FILE_DIRECT_REFUSED, 1);
            }
            break;
        case Outcome::failed:
            telemetry_.add(DS4_WORD_FILE_RETRIES, 1);
            break;
        }
    }
    const std::span<std::byte> part = buffer.first(bytes);
    read_fully(CountedSource(buffered_, telemetry_), part, offset);
    telemetry_.add(DS4_WORD_FILE_READ_BYTES, bytes);
    return part;
}

} // namespace ds4::runtime
