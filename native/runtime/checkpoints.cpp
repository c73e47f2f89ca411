#include "runtime/checkpoints.h"

#include <algorithm>

#include "failure.h"
#include "runtime/carver.h"
#include "runtime/checked_bytes.h"

namespace ds4::runtime {

namespace {

/* Rows [first, end) of a ring, in runs that lie together in memory: visit(address of the run, floats). */
template <typename Visit> void for_each_run(const Ring &ring, uint64_t first, uint64_t end, Visit &&visit) {
    for (uint64_t position = first; position < end;) {
        const uint64_t rows = std::min(end - position, ring.rows - position % ring.rows);
        visit(ring.row(position), rows * ring.width);
        position += rows;
    }
}

uint64_t compressor_floats(const KvLayerShape &layer, uint64_t row_width) {
    const uint64_t history = checked_multiply(layer.halves, layer.ratio) - 1;
    return checked_multiply(2, checked_multiply(history, checked_multiply(layer.halves, row_width)));
}

} // namespace

uint64_t Checkpoints::bytes_of_one(const KvShape &shape) {
    uint64_t floats = 0;
    for (const KvLayerShape &layer : shape.layers) {
        floats = checked_add(floats, checked_multiply(layer.window - 1, layer.row_width));
        if (layer.ratio != 0) {
            floats = checked_add(floats, compressor_floats(layer, layer.row_width));
            floats = checked_add(floats, compressor_floats(layer, layer.indexer_width));
        }
    }
    return checked_multiply(floats, sizeof(float));
}

uint64_t Checkpoints::bytes_of_one(const KvCache &cache) { return bytes_of_one(cache.shape()); }

Checkpoints::Checkpoints(backend::Device &device, const KvCache &cache, uint32_t count)
    : device_(device), slots_(count) {
    const uint64_t floats = bytes_of_one(cache) / sizeof(float);
    const auto     place = [&](Carver carver) {
        for (Slot &slot : slots_) {
            slot.data = carver.take<float>(floats);
        }
        return carver.bytes();
    };
    const uint64_t bytes = place(Carver());
    if (bytes > 0) {
        memory_ = device.allocate(bytes, "the checkpoints");
        place(Carver(memory_.as<std::byte>()));
    }
}

void Checkpoints::save(const KvCache &cache) {
    const uint64_t position = cache.position();
    const auto     same = [&](const Slot &slot) { return slot.age != 0 && slot.position == position; };
    auto           slot = std::find_if(slots_.begin(), slots_.end(), same);
    if (slot == slots_.end()) {
        slot = std::min_element(slots_.begin(), slots_.end(),
                                [](const Slot &a, const Slot &b) { return a.age < b.age; });
    }
    float *to = slot->data;
    cache.for_each_tail(position, [&](const Ring &ring, uint64_t history, uint64_t first, uint64_t end) {
        float *at = to;
        for_each_run(ring, first, end, [&](const float *run, uint64_t floats) {
            device_.copy_within(at, run, floats * sizeof(float));
            at += floats;
        });
        to += history * ring.width;
    });
    slot->position = position;
    slot->age = ++saved_;
}

std::optional<uint64_t> Checkpoints::latest_at(uint64_t position) const {
    std::optional<uint64_t> latest;
    for (const Slot &slot : slots_) {
        if (slot.age != 0 && slot.position <= position && (!latest || slot.position > *latest)) {
            latest = slot.position;
        }
    }
    return latest;
}

void Checkpoints::restore(KvCache &cache, uint64_t position) const {
    const auto slot = std::find_if(slots_.begin(), slots_.end(), [&](const Slot &candidate) {
        return candidate.age != 0 && candidate.position == position;
    });
    if (slot == slots_.end()) {
        throw Failure(DS4_E_INTERNAL, "no checkpoint at position " + std::to_string(position));
    }
    const float *from = slot->data;
    cache.for_each_tail(position, [&](const Ring &ring, uint64_t history, uint64_t first, uint64_t end) {
        const float *at = from;
        for_each_run(ring, first, end, [&](float *run, uint64_t floats) {
            device_.copy_within(run, at, floats * sizeof(float));
            at += floats;
        });
        from += history * ring.width;
    });
    cache.restored(position);
}

void Checkpoints::forget_after(uint64_t position) {
    for (Slot &slot : slots_) {
        if (slot.position > position) {
            slot.age = 0;
        }
    }
}

} // namespace ds4::runtime
