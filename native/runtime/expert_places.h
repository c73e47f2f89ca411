/* Memory for experts: places of one size each, in a few large allocations. */
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "backend/device.h"
#include "backend/ops.h"
#include "runtime/replacement.h"

namespace ds4::runtime {

/* Where the three matrices of an expert lie in its place: gate, up, down, one after another. */
struct ExpertLayout {
    std::array<uint64_t, 3> offset{};
    uint64_t                bytes = 0; /* of the whole place */

    explicit ExpertLayout(const std::array<uint64_t, 3> &part_bytes) {
        for (size_t part = 0; part < part_bytes.size(); ++part) {
            offset[part] = bytes;
            bytes += (part_bytes[part] + kAlignment - 1) / kAlignment * kAlignment;
        }
    }

    backend::ExpertAddress address(const std::byte *place) const {
        return {place + offset[0], place + offset[1], place + offset[2]};
    }

private:
    static constexpr uint64_t kAlignment = 256; /* so that kernels may load in the widest pieces */
};

inline constexpr size_t kNoUnit = std::numeric_limits<size_t>::max();

/* One place and the expert in it. */
struct ExpertPlace {
    std::byte       *to;   /* where it is written: device memory, or the host's own view of pinned memory */
    const std::byte *from; /* where kernels read it */
    size_t           unit = kNoUnit;
    uint64_t         run = 0;        /* the last run that needs it: only later ones may overwrite it */
    bool             is_moving = false; /* something is being copied into or out of it */
};

/* Places for experts of one size. */
class ExpertPlaces {
public:
    ExpertPlaces(uint64_t place_bytes, ReplacementPolicy policy) : place_bytes_(place_bytes), policy_(policy) {}

    /* Takes `count` places of device memory; fewer when there is not so much, even none. */
    void take_device_memory(backend::Device &device, size_t count);
    /* The same of pinned host memory. */
    void take_pinned_memory(backend::Device &device, size_t count);

    size_t       count() const { return places_.size(); }
    size_t       used() const { return places_.size() - free_.size(); }
    uint64_t     place_bytes() const { return place_bytes_; }
    ExpertPlace &operator[](size_t place) { return places_[place]; }

    bool has_free() const { return !free_.empty(); }
    /* A free place, for `unit`. */
    size_t take(size_t unit);
    /* Its expert is forgotten. */
    void give_back(size_t place);

    void touch(size_t place, uint64_t token) { order_->touch(place, token); }
    /* The place whose expert is missed least, of those that no run up to `run` needs. */
    std::optional<size_t> victim(uint64_t run) const;
    /* The experts that were touched in their places, the one that is missed most first. */
    std::vector<size_t> units_by_value() const;

private:
    void add(std::byte *to, const std::byte *from, size_t count);
    void finish();

    uint64_t                                            place_bytes_;
    backend::Device                                    *device_ = nullptr; /* of whatever places there are */
    ReplacementPolicy                                   policy_;
    std::vector<backend::Allocation>                    device_slabs_;
    std::vector<std::unique_ptr<backend::PinnedMemory>> host_slabs_;
    std::vector<ExpertPlace>                            places_;
    std::vector<size_t>                                 free_;
    std::unique_ptr<Replacement>                        order_ = make_replacement(ReplacementPolicy::lru, 0);
};

} // namespace ds4::runtime
