#include "runtime/weight_store.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <sys/mman.h>

#include "failure.h"
#include "runtime/carver.h"
#include "runtime/checked_bytes.h"

namespace ds4::runtime {

namespace {

constexpr uint64_t kPromisedAlignment = 4;
/* Progress and cancellation are looked at once per slab. */
constexpr uint64_t kSlabBytes = 16u << 20;

void check_range(const WeightRange &range, std::span<const WeightFile> files) {
    if (range.file >= files.size()) {
        throw Failure(DS4_E_ARGUMENT, "tensor " + range.name + " names file " + std::to_string(range.file) + " of " +
                                          std::to_string(files.size()));
    }
    const WeightFile &file = files[range.file];
    if (range.offset > file.bytes || range.bytes > file.bytes - range.offset) {
        throw Failure(DS4_E_ARGUMENT, "tensor " + range.name + " lies outside its file: " + std::to_string(range.bytes) +
                                          " bytes at offset " + std::to_string(range.offset) + " of " + file.path +
                                          ", which has " + std::to_string(file.bytes));
    }
}

/* Reads one byte of each page. `volatile` keeps the loads although nothing uses their values. */
void touch_pages(std::span<const std::byte> slab, uint64_t page) {
    const volatile std::byte *bytes = slab.data();
    for (uint64_t at = 0; at < slab.size(); at += page) {
        (void)bytes[at];
    }
    if (!slab.empty()) {
        (void)bytes[slab.size() - 1];
    }
}

int advise(std::span<const std::byte> slab, uint64_t page, int advice) {
    const auto first = reinterpret_cast<uintptr_t>(slab.data()) / page * page;
    const auto end = reinterpret_cast<uintptr_t>(slab.data()) + slab.size();
    return ::madvise(reinterpret_cast<void *>(first), end - first, advice);
}

void populate(std::span<const std::byte> slab, uint64_t page) {
#if defined(MADV_POPULATE_READ)
    /* Unlike touching, this reports an unreadable page as an error instead of a signal. */
    int result = 0;
    do {
        result = advise(slab, page, MADV_POPULATE_READ);
    } while (result != 0 && (errno == EINTR || errno == EAGAIN));
    if (result == 0) {
        return;
    }
    if (errno != EINVAL && errno != ENOSYS) {
        throw Failure(DS4_E_IO, std::string("cannot bring the weights into memory: ") + std::strerror(errno));
    }
#endif
    touch_pages(slab, page);
}

} // namespace

WeightStore::WeightStore(backend::Device &device, std::span<const WeightFile> files, std::span<const WeightRange> ranges,
                         WeightSource source, Telemetry &telemetry) {
    mapped_.resize(ranges.size());
    for (size_t i = 0; i < ranges.size(); ++i) {
        check_range(ranges[i], files);
        weight_bytes_ = checked_add(weight_bytes_, ranges[i].bytes);
        mapped_[i] = source == WeightSource::mmap && ranges[i].offset % kPromisedAlignment == 0;
    }
    for (size_t i = 0; i < files.size(); ++i) {
        const auto index = static_cast<uint32_t>(i);
        if (std::any_of(ranges.begin(), ranges.end(), [&](const WeightRange &range) { return range.file == index; })) {
            files_.push_back({index, ReadOnlyFile(files[i].path, files[i].bytes), FileMapping()});
        }
    }
    telemetry.set(DS4_WORD_BYTES_DONE, 0);
    telemetry.set(DS4_WORD_BYTES_TOTAL, weight_bytes_);
    addresses_.resize(ranges.size());
    map_ranges(ranges);
    read_ranges(device, ranges, telemetry);
}

WeightStore::OpenFile &WeightStore::file_of(const WeightRange &range) {
    return *std::find_if(files_.begin(), files_.end(),
                         [&](const OpenFile &candidate) { return candidate.index == range.file; });
}

/* One mapping per file, from its first needed byte to its last: what lies between and is not needed costs address space
 * only. */
void WeightStore::map_ranges(std::span<const WeightRange> ranges) {
    for (OpenFile &file : files_) {
        uint64_t first = file.file.bytes();
        uint64_t end = 0;
        for (size_t i = 0; i < ranges.size(); ++i) {
            if (mapped_[i] && ranges[i].file == file.index && ranges[i].bytes > 0) {
                first = std::min(first, ranges[i].offset);
                end = std::max(end, ranges[i].offset + ranges[i].bytes);
            }
        }
        if (first < end) {
            file.mapping = FileMapping(file.file, first, end - first);
        }
    }
    for (size_t i = 0; i < ranges.size(); ++i) {
        if (mapped_[i] && ranges[i].bytes > 0) {
            addresses_[i] = file_of(ranges[i]).mapping.at(ranges[i].offset);
            mapped_ranges_.emplace_back(addresses_[i], ranges[i].bytes);
            mapped_bytes_ += ranges[i].bytes;
        }
    }
}

void WeightStore::read_ranges(backend::Device &device, std::span<const WeightRange> ranges, Telemetry &telemetry) {
    const auto place = [&](Carver carver) {
        for (size_t i = 0; i < ranges.size(); ++i) {
            if (!mapped_[i]) {
                addresses_[i] = carver.take<std::byte>(ranges[i].bytes);
            }
        }
        return carver.bytes();
    };
    const uint64_t bytes = place(Carver());
    if (bytes == 0) {
        return;
    }
    copies_ = device.allocate(bytes, "the weights");
    place(Carver(copies_.as<std::byte>()));

    for (size_t i = 0; i < ranges.size(); ++i) {
        if (mapped_[i]) {
            continue;
        }
        const ReadOnlyFile &file = file_of(ranges[i]).file;
        std::byte *const    to = copies_.as<std::byte>() + (addresses_[i] - copies_.as<std::byte>());
        for (uint64_t done = 0; done < ranges[i].bytes;) {
            telemetry.poll_cancel("loading the model");
            const uint64_t step = std::min(kSlabBytes, ranges[i].bytes - done);
            read_fully(file, {to + done, step}, ranges[i].offset + done);
            done += step;
            telemetry.add(DS4_WORD_BYTES_DONE, step);
        }
    }
}

void WeightStore::warm(Telemetry &telemetry) const {
    check_files();
    const uint64_t page = page_bytes();
    for (const std::span<const std::byte> range : mapped_ranges_) {
        for (uint64_t done = 0; done < range.size();) {
            telemetry.poll_cancel("loading the model");
            const uint64_t step = std::min(kSlabBytes, range.size() - done);
            /* Lets the disk work on the next slab meanwhile. Failing costs nothing but time. */
            advise(range.subspan(done, std::min(2 * kSlabBytes, range.size() - done)), page, MADV_WILLNEED);
            populate(range.subspan(done, step), page);
            done += step;
            telemetry.add(DS4_WORD_BYTES_DONE, step);
        }
    }
}

void WeightStore::check_files() const {
    if (mapped_bytes_ == 0) {
        return;
    }
    for (const OpenFile &file : files_) {
        file.file.check_not_shrunk();
    }
}

} // namespace ds4::runtime
