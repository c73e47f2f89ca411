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
#include "runtime/file.h"
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
    routed_experts, /* likewise, but only parts of it in each step */
    host,           /* only through WeightStore::read, to make something else of it */
};

struct WeightRange {
    uint32_t    file;
    uint64_t    offset;
    uint64_t    bytes;
    std::string name; /* for sentences */
    WeightUse   use = WeightUse::kernels;
};

enum class WeightSource { mmap, read };

enum class WeightPlacement {
    automatic,      /* in host memory, for devices that read it */
    resident,       /* in device memory */
    mapped_experts, /* the same, but routed experts in the mapped file, which the device reads in place */
};

struct WeightPlan {
    WeightSource    source = WeightSource::mmap; /* of automatic placement */
    WeightPlacement placement = WeightPlacement::automatic;
    UploadOptions   upload = {};
    bool            check_upload = false; /* read samples back and compare them with the file */
};

class WeightStore {
public:
    /* Opens only files that a range lies in. Reports bytes and polls for cancellation through `telemetry`.
     * Throws Failure(DS4_E_ARGUMENT) for a range outside its file or a placement that the device cannot have, DS4_E_IO,
     * DS4_E_NO_MEMORY with need and free, DS4_E_CANCELLED, DS4_E_DEVICE. Nothing of the device stays taken then. */
    WeightStore(backend::Device &device, std::span<const WeightFile> files, std::span<const WeightRange> ranges,
                const WeightPlan &plan, Telemetry &telemetry);

    /* Where kernels find a range; in device memory there is none for the host's own use. */
    const std::byte *address(size_t range) const { return addresses_[range]; }
    /* Whether the range has device memory of its own, which may be rewritten. */
    bool             owned_by_device(size_t range) const { return homes_[range] == Home::device; }
    /* Copies a whole range to host memory. */
    void             read(size_t range, std::span<std::byte> to) const;

    uint64_t weight_bytes() const { return weight_bytes_; }
    uint64_t mapped_bytes() const { return mapped_bytes_; }
    /* Of ranges that were copied into device memory, or are to be when the host has made something else of them. */
    uint64_t device_bytes() const { return device_bytes_; }

    /* Brings every mapped page into memory, with progress and cancellation. */
    void warm(Telemetry &telemetry) const;

    /* To be called before a step reads weights; see ReadOnlyFile::check_not_shrunk. */
    void check_files() const;

private:
    enum class Home { nowhere, mapping, memory, device, pinned_mapping };

    struct OpenFile {
        uint32_t     index; /* of the caller's file list */
        ReadOnlyFile file;
        FileMapping  mapping; /* from the first to the last mapped range */
    };

    Home home_of(const WeightRange &range, const WeightPlan &plan) const;
    bool is_mapped(size_t range) const;
    void open_files(std::span<const WeightFile> files);
    void map_ranges();
    void read_ranges(backend::Device &device, Telemetry &telemetry);
    void upload_ranges(backend::Device &device, const WeightPlan &plan, Telemetry &telemetry);
    void check_uploaded(backend::Device &device) const;
    void pin_ranges(backend::Device &device, Telemetry &telemetry);

    std::vector<size_t> in_file_order(Home home) const;
    const OpenFile     &file_of(size_t range) const;

    std::vector<WeightRange>                           ranges_;
    std::vector<Home>                                  homes_;
    std::vector<const std::byte *>                     addresses_;
    std::vector<OpenFile>                              files_;
    std::vector<std::span<const std::byte>>            mapped_ranges_;
    std::vector<std::unique_ptr<backend::HostMapping>> pins_;
    backend::Allocation                                copies_;
    backend::Allocation                                image_;
    uint64_t                                           weight_bytes_ = 0;
    uint64_t                                           mapped_bytes_ = 0;
    uint64_t                                           device_bytes_ = 0;
};

} // namespace ds4::runtime
