#include "runtime/expert_places.h"

#include <algorithm>

#include "failure.h"

namespace ds4::runtime {

namespace {

/* Large enough that the device's own granularity does not matter, small enough that what is left between other allocations
 * is used too. */
constexpr uint64_t kDeviceSlabBytes = 1u << 30;
constexpr uint64_t kHostSlabBytes = 64u << 20;

/* Calls take(places) for slabs that together have `count` places. A slab that cannot be had is halved, down to one place. */
template <typename Take> void take_slabs(size_t count, uint64_t place_bytes, uint64_t slab_bytes, Take &&take) {
    size_t most = std::max<uint64_t>(1, slab_bytes / place_bytes);
    while (count > 0) {
        const size_t places = std::min(most, count);
        try {
            take(places);
            count -= places;
        } catch (const Failure &failure) {
            if (failure.status() != DS4_E_NO_MEMORY) {
                throw;
            }
            if (places == 1) {
                return;
            }
            most = places / 2;
        }
    }
}

} // namespace

void ExpertPlaces::take_device_memory(backend::Device &device, size_t count) {
    device_ = &device;
    take_slabs(count, place_bytes_, kDeviceSlabBytes, [&](size_t places) {
        device_slabs_.push_back(device.allocate(places * place_bytes_, "experts"));
        auto *const memory = device_slabs_.back().as<std::byte>();
        add(memory, memory, places);
    });
    finish();
}

void ExpertPlaces::take_pinned_memory(backend::Device &device, size_t count) {
    device_ = &device;
    take_slabs(count, place_bytes_, kHostSlabBytes, [&](size_t places) {
        host_slabs_.push_back(device.pin_memory(places * place_bytes_, "experts"));
        add(host_slabs_.back()->bytes().data(), host_slabs_.back()->device_address(), places);
    });
    finish();
}

void ExpertPlaces::add(std::byte *to, const std::byte *from, size_t count) {
    for (size_t i = 0; i < count; ++i) {
        places_.push_back({to + i * place_bytes_, from + i * place_bytes_});
    }
}

void ExpertPlaces::finish() {
    order_ = make_replacement(policy_, places_.size());
    for (size_t place = places_.size(); place-- > 0;) {
        free_.push_back(place);
    }
}

size_t ExpertPlaces::take(size_t unit) {
    if (free_.empty()) {
        throw Failure(DS4_E_INTERNAL, "no place is free for an expert");
    }
    const size_t place = free_.back();
    free_.pop_back();
    places_[place].unit = unit;
    device_->spoil(places_[place].to, place_bytes_); /* a place that was never used has zeros, which would pass for weights */
    return place;
}

void ExpertPlaces::give_back(size_t place) {
    order_->forget(place);
    places_[place].unit = kNoUnit;
    places_[place].is_moving = false;
    free_.push_back(place);
    device_->spoil(places_[place].to, place_bytes_);
}

std::vector<size_t> ExpertPlaces::units_by_value() const {
    std::vector<size_t> units = order_->order();
    for (size_t &place : units) {
        place = places_[place].unit;
    }
    return units;
}

std::optional<size_t> ExpertPlaces::victim(uint64_t run) const {
    return order_->victim([&](size_t place) { return places_[place].run < run && !places_[place].is_moving; });
}

} // namespace ds4::runtime
