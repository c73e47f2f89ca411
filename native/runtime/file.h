/* Files that are only read: opening, whole reads, and the size they must keep. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <sys/types.h>
#include <time.h>

#include "backend/device.h"
#include "runtime/mapping_watch.h"

namespace ds4::runtime {

/* What reading needs of a file. A test puts one in whose reads come short, are interrupted or fail. */
class ByteSource {
public:
    virtual ~ByteSource() = default;

    /* As pread(2): bytes read, 0 at the end, -1 with errno. */
    virtual ssize_t read_some(void *to, size_t bytes, uint64_t offset) const = 0;
    /* The system need not keep this part in its page cache. */
    virtual void forget(uint64_t, uint64_t) const {}
    /* Names the file in sentences. */
    virtual const std::string &path() const = 0;
};

/* Fills `to` from `offset`, whatever pieces the reads come in. Throws Failure(DS4_E_IO) with path, offset and cause; an end
 * of file before the last byte is a failure. */
void read_fully(const ByteSource &source, std::span<std::byte> to, uint64_t offset);

/* A regular file, opened read-only and closed on exec. */
class ReadOnlyFile : public ByteSource {
public:
    /* `device` has the disk that the file lies on. Throws Failure(DS4_E_IO) when the file cannot be opened, is no regular file,
     * or has not `expected_bytes`. */
    ReadOnlyFile(std::string path, uint64_t expected_bytes, const backend::Device *device = nullptr);
    ~ReadOnlyFile() override;
    ReadOnlyFile(ReadOnlyFile &&other) noexcept;
    ReadOnlyFile &operator=(ReadOnlyFile &&) = delete;
    ReadOnlyFile(const ReadOnlyFile &) = delete;
    ReadOnlyFile &operator=(const ReadOnlyFile &) = delete;

    ssize_t            read_some(void *to, size_t bytes, uint64_t offset) const override;
    void               forget(uint64_t offset, uint64_t bytes) const override;
    const std::string &path() const override { return path_; }
    uint64_t           bytes() const { return bytes_; }
    int                descriptor() const { return descriptor_; }

    /* Throws Failure(DS4_E_IO) when the file is now shorter than it was, or has been written to: a mapping shows other bytes
     * then, and what is read next belongs to another file than what was read before. */
    void check_unchanged() const;

private:
    friend class FileMapping;
    uint64_t bytes_now() const;

    std::string            path_;
    uint64_t               bytes_ = 0;
    timespec               modified_{};
    int                    descriptor_ = -1;
    const backend::Device *device_;
};

/* The same file once more, read past the page cache: offsets, lengths and addresses must be multiples of alignment(). Opened
 * anew, never a duplicate of another descriptor, which would share the flag. */
class DirectFile : public ByteSource {
public:
    /* nullptr when the file system cannot do that. */
    static std::unique_ptr<DirectFile> open(const ReadOnlyFile &file, const backend::Device *device);
    ~DirectFile() override;
    DirectFile(const DirectFile &) = delete;
    DirectFile &operator=(const DirectFile &) = delete;

    ssize_t            read_some(void *to, size_t bytes, uint64_t offset) const override;
    const std::string &path() const override { return path_; }
    uint64_t           alignment() const { return alignment_; }

private:
    DirectFile(std::string path, int descriptor, uint64_t alignment, const backend::Device *device)
        : path_(std::move(path)), descriptor_(descriptor), alignment_(alignment), device_(device) {}

    std::string            path_;
    int                    descriptor_;
    uint64_t               alignment_;
    const backend::Device *device_;
};

/* A shared read-only mapping of part of a file. Pages that the file loses meanwhile read as zeroes. */
class FileMapping {
public:
    FileMapping() = default;
    /* `offset` need not be at a page boundary. Throws Failure(DS4_E_IO). */
    FileMapping(const ReadOnlyFile &file, uint64_t offset, uint64_t bytes);
    ~FileMapping();
    FileMapping(FileMapping &&other) noexcept;
    FileMapping &operator=(FileMapping &&other) noexcept;
    FileMapping(const FileMapping &) = delete;
    FileMapping &operator=(const FileMapping &) = delete;

    /* Address of a byte of the file, which must lie inside the mapping. */
    const std::byte *at(uint64_t offset) const { return base_ + (offset - start_); }

    /* To be called after reading: throws Failure(DS4_E_IO), with the offset of the first, when there were bytes that `file`,
     * the mapped one, did not give. They stay lost, whatever becomes of the file. */
    void check_read(const ReadOnlyFile &file) const;

private:
    void swap(FileMapping &other) noexcept;

    std::byte   *base_ = nullptr;
    uint64_t     start_ = 0; /* file offset of base_ */
    uint64_t     bytes_ = 0; /* whole pages */
    MappingWatch watch_;
};

uint64_t page_bytes();

} // namespace ds4::runtime
