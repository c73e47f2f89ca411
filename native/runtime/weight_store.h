/* Where the weights are. Given files and byte ranges of them, the store gives each range an address that stays valid as
 * long as the store lives: inside a mapping of the file, in memory that the range was read into, or in the memory of a
 * device that has its own.
 *
 * Ranges may start at any byte. Kernels are promised addresses that are multiples of 4, which every sane file keeps; a
 * range that breaks it is copied into memory even where the rest of the file is mapped. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/device.h"
#include "runtime/file_reader.h"
#include "runtime/telemetry.h"
#include "runtime/upload.h"

namespace ds4::runtime {

struct WeightFile {
    std::string path;
    uint64_t    bytes; /* the size the ranges were checked against */
};

/* Who reads a range. */
enum class WeightUse {
    kernels,        /* as it is in the file */
    rows,           /* likewise, but only a few rows of it in each step */
    routed_experts, /* likewise, but only the chosen ones */
    paged,          /* likewise, but only while its page is entered */
    host,           /* only through WeightStore::read, to make something else of it */
};

struct WeightRange {
    uint32_t    file;
    uint64_t    offset;
    uint64_t    bytes;
    std::string name; /* for sentences */
    WeightUse   use = WeightUse::kernels;
};

enum class WeightSource { mmap, read, direct };

enum class WeightPlacement {
    automatic,      /* in host memory, for devices that read it */
    resident,       /* in device memory */
    mapped_experts, /* the same, but routed experts in the mapped file, which the device reads in place */
    stream_experts, /* routed experts in the file only; the others automatic, or resident where kernels read no host memory */
};

struct WeightPlan {
    WeightSource    source = WeightSource::mmap; /* of automatic placement; direct: of every read */
    WeightPlacement placement = WeightPlacement::automatic;
    UploadOptions   upload = {};
    uint64_t        most_device_bytes = 0; /* of ranges for kernels; those beyond are mapped like experts. 0: no limit */
    bool            pin_copies = false; /* copies in pinned memory instead of pinned mappings */
    bool            lock = false; /* what is in host memory may not be swapped out, if the system allows that */
};

class WeightStore {
public:
    /* Opens only files that a range lies in. Reports bytes and polls for cancellation through `telemetry`.
     * Throws Failure(DS4_E_ARGUMENT) for a range outside its file or a placement that the device cannot have, DS4_E_IO,
     * DS4_E_NO_MEMORY with need and free, DS4_E_CANCELLED, DS4_E_DEVICE. Nothing of the device stays taken then. */
    WeightStore(backend::Device &device, std::span<const WeightFile> files, std::span<const WeightRange> ranges,
                const WeightPlan &plan, Telemetry &telemetry);

    /* Where kernels find a range; in device memory there is none for the host's own use, and none for what stays in its file. */
    const std::byte *address(size_t range) const { return addresses_[range]; }
    /* Where the host finds what kernels read in pinned host memory; nullptr for all else. */
    const std::byte *pinned_address(size_t range) const { return pinned_addresses_[range]; }
    /* From where in which file a range comes. */
    const FileReader &source(size_t range) const { return file_of(range).reader.reader(); }
    uint64_t          offset(size_t range) const { return ranges_[range].offset; }
    /* Whether the range has device memory of its own, which may be rewritten. */
    bool             owned_by_device(size_t range) const { return homes_[range] == Home::device; }
    /* Copies a whole range to host memory. Throws Failure(DS4_E_IO). */
    void             read(size_t range, std::span<std::byte> to) const;

    uint64_t weight_bytes() const { return weight_bytes_; }
    uint64_t mapped_bytes() const { return mapped_bytes_; }
    /* Of ranges that were copied into device memory, or are to be when the host has made something else of them. */
    uint64_t device_bytes() const { return device_bytes_; }
    /* That may not be swapped out: what the plan asked to lock, as far as the system allowed it, and pinned memory. 0 for a
     * plan that did not ask. */
    uint64_t locked_bytes() const { return locked_bytes_; }

    /* Brings every mapped page into memory, with progress and cancellation. */
    void warm(Telemetry &telemetry) const;

    /* Before a step reads weights, and again before anybody is given what it computed from them: a mapping may have lost its
     * file, and what was read of it earlier may not belong to what it holds now. Files from which everything has been copied are
     * not looked at. Throws Failure(DS4_E_IO) with the file, and with the offset when a lost byte was read. */
    void check_files() const;

private:
    enum class Home { nowhere, file, mapping, memory, device, pinned_mapping, pinned_copy };

    struct OpenFile {
        uint32_t         index; /* of the caller's file list */
        WeightFileReader reader;
        FileMapping      mapping; /* from the first to the last mapped range */
        bool             stays_in_use; /* also after loading: through the mapping, or for what is read when it is needed */

        const ReadOnlyFile &file() const { return reader.file(); }
        void                check() const {
            mapping.check_read(file());
            file().check_unchanged();
        }
    };

    static Home pinned_home(const WeightRange &range, const WeightPlan &plan);
    Home home_of(const WeightRange &range, const WeightPlan &plan, bool reads_host_memory) const;
    void choose_homes(const WeightPlan &plan, bool reads_host_memory);
    bool is_mapped(size_t range) const;
    void open_files(std::span<const WeightFile> files, const WeightPlan &plan, backend::Device &device, Telemetry &telemetry);
    void map_ranges();
    void read_ranges(backend::Device &device, const WeightPlan &plan, Telemetry &telemetry);
    void copy_pinned(backend::Device &device, const WeightPlan &plan, Telemetry &telemetry);
    void lock_ranges();
    void upload_ranges(backend::Device &device, const WeightPlan &plan, Telemetry &telemetry);
    void pin_ranges(backend::Device &device, Telemetry &telemetry);

    std::vector<size_t> in_file_order(Home home) const;
    const OpenFile     &file_of(size_t range) const;

    std::vector<WeightRange>                           ranges_;
    std::vector<Home>                                  homes_;
    std::vector<const std::byte *>                     addresses_;
    std::vector<const std::byte *>                     pinned_addresses_;
    std::vector<std::unique_ptr<OpenFile>>             files_;
    std::vector<std::span<const std::byte>>            mapped_ranges_;
    std::vector<std::unique_ptr<backend::HostMapping>> pins_;
    backend::Allocation                                copies_;
    backend::Allocation                                image_;
    uint64_t                                           weight_bytes_ = 0;
    uint64_t                                           mapped_bytes_ = 0;
    uint64_t                                           device_bytes_ = 0;
    uint64_t                                           locked_bytes_ = 0;
};

} // namespace ds4::runtime
