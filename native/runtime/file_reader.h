/* Reads parts of one file, past the page cache where that was asked for and works. */
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "runtime/file.h"
#include "runtime/telemetry.h"

namespace ds4::runtime {

class FileReader {
public:
    /* `direct` may be nullptr, and so may `mappable`, the file of `buffered`. What they read is counted in `telemetry`. */
    FileReader(const ByteSource &buffered, const ByteSource *direct, uint64_t alignment, Telemetry &telemetry,
               const ReadOnlyFile *mappable = nullptr)
        : buffered_(buffered), direct_(direct), mappable_(mappable), alignment_(alignment), telemetry_(telemetry),
          direct_works_(direct != nullptr) {}

    /* A buffer of so many bytes takes `bytes` from any offset. */
    uint64_t buffer_bytes(uint64_t bytes) const { return direct_ == nullptr ? bytes : bytes + 2 * alignment_; }
    /* The most bytes from any offset that a buffer takes. */
    uint64_t room_in(uint64_t buffer) const { return direct_ == nullptr ? buffer : buffer - 2 * alignment_; }

    /* Reads [offset, offset + bytes) into the buffer, whose address is a multiple of the alignment, and returns where in it they
     * lie. Interruptions and short reads are gone on with, a failing disk is asked once more through the page cache.
     * Throws Failure(DS4_E_IO) with path, offset, wanted and got. */
    std::span<std::byte> read(std::span<std::byte> buffer, uint64_t offset, uint64_t bytes) const;

    /* Fills `to` from a mapping that is gone again when the call returns; by reading, where the source is no file. Not counted
     * as a read. Throws Failure(DS4_E_IO) with path and offset, also for bytes that the file has lost meanwhile. */
    void copy_mapped(std::span<std::byte> to, uint64_t offset) const;

    /* Fills `to` through the page cache. Not counted as a read. Throws Failure(DS4_E_IO). */
    void read_once_more(std::span<std::byte> to, uint64_t offset) const { read_fully(buffered_, to, offset); }

    const std::string &path() const { return buffered_.path(); }
    void               forget(uint64_t offset, uint64_t bytes) const { buffered_.forget(offset, bytes); }

private:
    enum class Outcome { done, failed, impossible };

    Outcome read_direct(std::span<std::byte> buffer, uint64_t offset, uint64_t bytes) const;

    const ByteSource         &buffered_;
    const ByteSource         *direct_;
    const ReadOnlyFile       *mappable_;
    uint64_t                  alignment_;
    Telemetry                &telemetry_;
    mutable std::atomic<bool> direct_works_; /* false for good once the system has refused */
};

/* A file of weights, opened in both ways if that is wanted. */
class WeightFileReader {
public:
    WeightFileReader(const std::string &path, uint64_t bytes, bool direct, const backend::Device &device,
                     Telemetry &telemetry)
        : file_(path, bytes, &device), direct_(direct ? DirectFile::open(file_, &device) : nullptr),
          reader_(file_, direct_.get(), direct_ == nullptr ? 1 : direct_->alignment(), telemetry, &file_) {
        if (direct && direct_ == nullptr) {
            telemetry.add(DS4_WORD_FILE_DIRECT_REFUSED, 1);
        }
    }

    const ReadOnlyFile &file() const { return file_; }
    const FileReader   &reader() const { return reader_; }

private:
    ReadOnlyFile                file_;
    std::unique_ptr<DirectFile> direct_;
    FileReader                  reader_;
};

} // namespace ds4::runtime
