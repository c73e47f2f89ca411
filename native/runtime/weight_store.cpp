#include "runtime/weight_store.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/mman.h>

#include "failure.h"
#include "runtime/carver.h"
#include "runtime/checked_bytes.h"

namespace ds4::runtime {

namespace {

constexpr uint64_t kPromisedAlignment = 4;
/* While pages are brought into memory, progress and cancellation are looked at once per slab. */
constexpr uint64_t kSlabBytes = 16u << 20;
/* Of tensors in device memory, so that kernels may load them in the widest pieces. */
constexpr uint64_t kDeviceAlignment = 256;

uint64_t round_up(uint64_t value, uint64_t to) { return checked_add(value, to - 1) / to * to; }

bool may_be_mapped(const WeightRange &range) { return range.offset % kPromisedAlignment == 0; }

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
    int result = 0;
    do {
        result = advise(slab, page, MADV_POPULATE_READ);
    } while (result != 0 && (errno == EINTR || errno == EAGAIN));
    if (result == 0) {
        return;
    }
    /* EFAULT: some page cannot be read. Touching finds out which. */
    if (errno != EINVAL && errno != ENOSYS && errno != EFAULT) {
        throw Failure(DS4_E_IO, std::string("cannot bring the weights into memory: ") + std::strerror(errno));
    }
#endif
    touch_pages(slab, page);
}

} // namespace

WeightStore::WeightStore(backend::Device &device, std::span<const WeightFile> files, std::span<const WeightRange> ranges,
                         const WeightPlan &plan, Telemetry &telemetry)
    : ranges_(ranges.begin(), ranges.end()), homes_(ranges.size()), addresses_(ranges.size()),
      pinned_addresses_(ranges.size()) {
    if (plan.placement == WeightPlacement::automatic && !device.reads_host_memory()) {
        throw Failure(DS4_E_ARGUMENT, device.info().name + " cannot read weights where the host has them: choose resident "
                                                           "weights, mapped experts or streamed experts");
    }
    for (const WeightRange &range : ranges_) {
        check_range(range, files);
        weight_bytes_ = checked_add(weight_bytes_, range.bytes);
    }
    choose_homes(plan, device.reads_host_memory());
    open_files(files, plan, device, telemetry);
    uint64_t to_load = 0;
    for (size_t i = 0; i < ranges_.size(); ++i) {
        to_load += homes_[i] == Home::file ? 0 : ranges_[i].bytes;
    }
    telemetry.set(DS4_WORD_BYTES_DONE, 0);
    telemetry.set(DS4_WORD_BYTES_TOTAL, to_load);
    map_ranges();
    read_ranges(device, plan, telemetry);
    upload_ranges(device, plan, telemetry);
    pin_ranges(device, telemetry);
    copy_pinned(device, plan, telemetry);
    if (plan.lock) {
        lock_ranges();
    }
    for (const std::unique_ptr<OpenFile> &file : files_) {
        file->check(); /* or what was loaded may be half of one file and half of another */
    }
}

/* Where the host has what kernels read over the bus. */
WeightStore::Home WeightStore::pinned_home(const WeightRange &range, const WeightPlan &plan) {
    return may_be_mapped(range) && !plan.pin_copies ? Home::pinned_mapping : Home::pinned_copy;
}

WeightStore::Home WeightStore::home_of(const WeightRange &range, const WeightPlan &plan, bool reads_host_memory) const {
    const Home in_host = plan.source == WeightSource::mmap && may_be_mapped(range) ? Home::mapping : Home::memory;
    const bool is_host = plan.placement == WeightPlacement::automatic ||
                         (plan.placement == WeightPlacement::stream_experts && reads_host_memory);
    if (range.bytes == 0) {
        return Home::nowhere;
    }
    switch (range.use) {
    case WeightUse::host:
        return is_host ? in_host : Home::nowhere;
    case WeightUse::paged:
        return Home::file;
    case WeightUse::routed_experts:
        if (plan.placement == WeightPlacement::stream_experts) {
            return Home::file;
        }
        if (plan.placement == WeightPlacement::mapped_experts) {
            return pinned_home(range, plan);
        }
        break;
    case WeightUse::kernels:
    case WeightUse::rows:
        break;
    }
    return is_host ? in_host : Home::device;
}

/* When device memory is limited, ranges of which each step reads only rows are the first to stay outside, then the last ones
 * of the list. */
void WeightStore::choose_homes(const WeightPlan &plan, bool reads_host_memory) {
    const uint64_t most = plan.most_device_bytes;
    uint64_t       taken = 0;
    for (const bool rows : {false, true}) {
        for (size_t i = 0; i < ranges_.size(); ++i) {
            if ((ranges_[i].use == WeightUse::rows) != rows) {
                continue;
            }
            homes_[i] = home_of(ranges_[i], plan, reads_host_memory);
            const bool is_limited = homes_[i] == Home::device && most != 0 && ranges_[i].use != WeightUse::routed_experts;
            if (is_limited && ranges_[i].bytes > most - std::min(most, taken)) {
                homes_[i] = pinned_home(ranges_[i], plan);
            }
            taken += is_limited && homes_[i] == Home::device ? ranges_[i].bytes : 0;
            device_bytes_ += homes_[i] == Home::device || homes_[i] == Home::nowhere ? ranges_[i].bytes : 0;
        }
    }
}

bool WeightStore::is_mapped(size_t range) const {
    return homes_[range] == Home::mapping || homes_[range] == Home::pinned_mapping;
}

void WeightStore::open_files(std::span<const WeightFile> files, const WeightPlan &plan, backend::Device &device,
                             Telemetry &telemetry) {
    for (size_t i = 0; i < files.size(); ++i) {
        const auto index = static_cast<uint32_t>(i);
        if (std::ranges::any_of(ranges_, [&](const WeightRange &range) { return range.file == index; })) {
            const bool direct = plan.source == WeightSource::direct;
            files_.push_back(std::unique_ptr<OpenFile>(new OpenFile{
                index, WeightFileReader(files[i].path, files[i].bytes, direct, device, telemetry), FileMapping(), false}));
        }
    }
    for (size_t i = 0; i < ranges_.size(); ++i) {
        if (homes_[i] == Home::file || is_mapped(i)) {
            std::ranges::find(files_, ranges_[i].file, [](const auto &file) { return file->index; })->get()->stays_in_use = true;
        }
    }
}

const WeightStore::OpenFile &WeightStore::file_of(size_t range) const {
    return **std::ranges::find(files_, ranges_[range].file, [](const auto &file) { return file->index; });
}

std::vector<size_t> WeightStore::in_file_order(Home home) const {
    std::vector<size_t> order;
    for (size_t i = 0; i < ranges_.size(); ++i) {
        if (homes_[i] == home) {
            order.push_back(i);
        }
    }
    std::ranges::sort(order, {}, [&](size_t i) { return std::pair(ranges_[i].file, ranges_[i].offset); });
    return order;
}

void WeightStore::read(size_t range, std::span<std::byte> to) const {
    if (homes_[range] == Home::mapping || homes_[range] == Home::memory) {
        std::copy_n(addresses_[range], ranges_[range].bytes, to.begin());
        if (homes_[range] == Home::mapping) {
            file_of(range).check();
        }
        return;
    }
    read_fully(file_of(range).file(), to.first(ranges_[range].bytes), ranges_[range].offset);
}

/* One mapping per file, from its first needed byte to its last: what lies between and is not needed costs address space
 * only. */
void WeightStore::map_ranges() {
    for (const std::unique_ptr<OpenFile> &file : files_) {
        uint64_t first = file->file().bytes();
        uint64_t end = 0;
        for (size_t i = 0; i < ranges_.size(); ++i) {
            if (is_mapped(i) && ranges_[i].file == file->index) {
                first = std::min(first, ranges_[i].offset);
                end = std::max(end, ranges_[i].offset + ranges_[i].bytes);
            }
        }
        if (first < end) {
            file->mapping = FileMapping(file->file(), first, end - first);
        }
    }
    for (size_t i = 0; i < ranges_.size(); ++i) {
        if (is_mapped(i)) {
            addresses_[i] = file_of(i).mapping.at(ranges_[i].offset);
            mapped_ranges_.emplace_back(addresses_[i], ranges_[i].bytes);
            mapped_bytes_ += ranges_[i].bytes;
        }
    }
}

void WeightStore::read_ranges(backend::Device &device, const WeightPlan &plan, Telemetry &telemetry) {
    const std::vector<size_t> order = in_file_order(Home::memory);
    const auto                place = [&](Carver carver) {
        for (const size_t i : order) {
            addresses_[i] = carver.take<std::byte>(ranges_[i].bytes);
        }
        return carver.bytes();
    };
    const uint64_t bytes = place(Carver());
    if (bytes == 0) {
        return;
    }
    copies_ = device.allocate(bytes, "the weights");
    place(Carver(copies_.as<std::byte>()));

    std::vector<UploadPiece> pieces;
    for (const size_t i : order) {
        std::byte *const to = copies_.as<std::byte>() + (addresses_[i] - copies_.as<std::byte>());
        pieces.push_back({&source(i), ranges_[i].offset, ranges_[i].bytes, to, false, ranges_[i].name});
    }
    upload(device, pieces, plan.upload, telemetry);
}

/* What kernels read over the bus, where the file's own pages are not to be pinned or cannot be. */
void WeightStore::copy_pinned(backend::Device &device, const WeightPlan &plan, Telemetry &telemetry) {
    const LoadStep           step(telemetry, DS4_STEP_PIN);
    std::vector<UploadPiece> pieces;
    for (const size_t i : in_file_order(Home::pinned_copy)) {
        auto memory = device.pin_memory(ranges_[i].bytes, ranges_[i].name);
        pieces.push_back({&source(i), ranges_[i].offset, ranges_[i].bytes, memory->bytes().data(), true, ranges_[i].name});
        addresses_[i] = memory->device_address();
        pinned_addresses_[i] = memory->bytes().data();
        pins_.push_back(std::move(memory));
        telemetry.poll_cancel("loading the model");
    }
    upload(device, pieces, plan.upload, telemetry);
}

/* A limit of the system is no reason not to run; whoever asked is told by locked_bytes(). Pinned memory is locked already. */
void WeightStore::lock_ranges() {
    const auto lock = [this](const void *data, uint64_t bytes) {
        if (bytes > 0 && ::mlock(data, bytes) == 0) {
            locked_bytes_ += bytes;
        }
    };
    for (size_t i = 0; i < ranges_.size(); ++i) {
        if (homes_[i] == Home::mapping) {
            lock(addresses_[i], ranges_[i].bytes);
        } else if (homes_[i] == Home::pinned_mapping || homes_[i] == Home::pinned_copy) {
            locked_bytes_ += ranges_[i].bytes;
        }
    }
    lock(copies_.as<void>(), copies_.bytes());
}

/* One allocation for all of them: a thousand would each be rounded up to the device's own granularity. */
void WeightStore::upload_ranges(backend::Device &device, const WeightPlan &plan, Telemetry &telemetry) {
    const LoadStep            step(telemetry, DS4_STEP_WEIGHTS);
    const std::vector<size_t> order = in_file_order(Home::device);
    uint64_t                  bytes = 0;
    for (const size_t i : order) {
        bytes = checked_add(bytes, round_up(ranges_[i].bytes, kDeviceAlignment));
    }
    if (bytes == 0) {
        return;
    }
    const backend::DeviceInfo info = device.info();
    if (info.free_bytes != 0 && bytes > info.free_bytes) { /* 0: the device cannot say */
        throw Failure(DS4_E_NO_MEMORY, "cannot copy the weights to " + info.name + ": they need " + describe_bytes(bytes) +
                                           ", " + describe_bytes(info.free_bytes) + " free");
    }
    image_ = device.allocate(bytes, "the weights");

    std::vector<UploadPiece> pieces;
    std::byte               *to = image_.as<std::byte>();
    for (const size_t i : order) {
        pieces.push_back({&source(i), ranges_[i].offset, ranges_[i].bytes, to, false, ranges_[i].name});
        addresses_[i] = to;
        to += round_up(ranges_[i].bytes, kDeviceAlignment);
    }
    upload(device, pieces, plan.upload, telemetry);
}

/* Pages are pinned, not bytes, and none of them twice: ranges that share one are pinned together. */
void WeightStore::pin_ranges(backend::Device &device, Telemetry &telemetry) {
    const LoadStep            step(telemetry, DS4_STEP_MAP);
    const std::vector<size_t> order = in_file_order(Home::pinned_mapping);
    const uint64_t            page = page_bytes();
    for (size_t done = 0; done < order.size();) {
        telemetry.poll_cancel("loading the model");
        const uint32_t file = ranges_[order[done]].file;
        const uint64_t start = ranges_[order[done]].offset / page * page;
        uint64_t       end = start;
        uint64_t       bytes = 0;
        size_t         next = done;
        while (next < order.size() && ranges_[order[next]].file == file &&
               (next == done || ranges_[order[next]].offset < end)) {
            end = std::max(end, round_up(ranges_[order[next]].offset + ranges_[order[next]].bytes, page));
            bytes += ranges_[order[next]].bytes;
            ++next;
        }
        const std::byte *const host = file_of(order[done]).mapping.at(start);
        pins_.push_back(device.map_host({host, end - start}));
        for (; done < next; ++done) {
            pinned_addresses_[order[done]] = addresses_[order[done]];
            addresses_[order[done]] = pins_.back()->device_address() + (addresses_[order[done]] - host);
        }
        telemetry.add(DS4_WORD_BYTES_DONE, bytes);
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
            check_files();
            done += step;
            telemetry.add(DS4_WORD_BYTES_DONE, step);
        }
    }
}

void WeightStore::check_files() const {
    for (const std::unique_ptr<OpenFile> &file : files_) {
        if (file->stays_in_use) {
            file->check();
        }
    }
}

} // namespace ds4::runtime
