/* Where the weights are. Given files and byte ranges of them, the store gives each range an address that stays valid as
 * long as the store lives: inside a mapping of the file, or in memory that the range was read into.
 *
 * Ranges may start at any byte. Kernels are promised addresses that are multiples of 4, which every sane file keeps; a
 * range that breaks it is copied into memory even where the rest of the file is mapped. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "backend/device.h"
#include "runtime/file.h"
#include "runtime/telemetry.h"

namespace ds4::runtime {

struct WeightFile {
    std::string path;
    uint64_t    bytes; /* the size the ranges were checked against */
};

struct WeightRange {
    uint32_t    file;
    uint64_t    offset;
    uint64_t    bytes;
    std::string name; /* for sentences */
};

enum class WeightSource { mmap, read };

class WeightStore {
public:
    /* Opens only files that a range lies in. Reports bytes and polls for cancellation through `telemetry`.
     * Throws Failure(DS4_E_ARGUMENT) for a range outside its file, DS4_E_IO, DS4_E_NO_MEMORY, DS4_E_CANCELLED. */
    WeightStore(backend::Device &device, std::span<const WeightFile> files, std::span<const WeightRange> ranges,
                WeightSource source, Telemetry &telemetry);

    const std::byte *address(size_t range) const { return addresses_[range]; }
    uint64_t         weight_bytes() const { return weight_bytes_; }
    uint64_t         mapped_bytes() const { return mapped_bytes_; }

    /* Brings every mapped page into memory, with progress and cancellation. */
    void warm(Telemetry &telemetry) const;

    /* To be called before a step reads weights; see ReadOnlyFile::check_not_shrunk. */
    void check_files() const;

private:
    struct OpenFile {
        uint32_t     index; /* of the caller's file list */
        ReadOnlyFile file;
        FileMapping  mapping; /* from the first to the last mapped range */
    };

    void map_ranges(std::span<const WeightRange> ranges);
    void read_ranges(backend::Device &device, std::span<const WeightRange> ranges, Telemetry &telemetry);

    OpenFile &file_of(const WeightRange &range);

    std::vector<OpenFile>                   files_;
    std::vector<bool>                       mapped_;
    std::vector<std::span<const std::byte>> mapped_ranges_;
    std::vector<const std::byte *>          addresses_;
    backend::Allocation                     copies_;
    uint64_t                                weight_bytes_ = 0;
    uint64_t                                mapped_bytes_ = 0;
};

} // namespace ds4::runtime
