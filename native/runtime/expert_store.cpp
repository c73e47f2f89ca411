#include "runtime/expert_store.h"

#include <algorithm>
#include <string>
#include <utility>

#include "failure.h"
#include "runtime/checked_bytes.h"
#include "runtime/counted_ring.h"

namespace ds4::runtime {

namespace {

/* A second use within so many tokens makes an expert worth moving: its bytes cross the bus once more and then no longer. */
constexpr uint64_t kSoon = 64;
/* Experts on their way into slots at a time: enough to keep a bus busy, too few to starve kernels that read over it. */
constexpr size_t kPromotionLanes = 8;

std::array<uint64_t, 3> part_bytes(const ExpertLayer &layer) { return {layer[0].bytes, layer[1].bytes, layer[2].bytes}; }

uint64_t largest_unit(std::span<const ExpertLayer> layers) {
    uint64_t largest = 1;
    for (const ExpertLayer &layer : layers) {
        largest = std::max(largest, ExpertLayout(part_bytes(layer)).bytes);
    }
    return largest;
}

bool have_addresses(std::span<const ExpertLayer> layers) {
    return std::ranges::all_of(layers, [](const ExpertLayer &layer) { return layer[0].address != nullptr; });
}

} // namespace

ExpertStore::ExpertStore(backend::Device &device, FetchQueue *queue, std::span<const ExpertLayer> layers, size_t experts,
                         size_t used, const ExpertPlan &plan, Telemetry &telemetry)
    : device_(device), queue_(queue), layers_(layers.begin(), layers.end()), experts_(experts), used_(used),
      telemetry_(telemetry), table_(device, layers.size(), experts), units_(layers.size() * experts),
      host_(largest_unit(layers), plan.policy), transit_{{largest_unit(layers), plan.policy}, {largest_unit(layers), plan.policy}} {
    const uint64_t unit_bytes = largest_unit(layers);
    streams_ = !have_addresses(layers);
    foreseen_.resize(layers.size());
    sort_into_classes(plan.slot_bytes, plan.policy);
    if (streams_) {
        const size_t transit = plan.transit_bytes / unit_bytes;
        if (transit < used) {
            throw Failure(DS4_E_ARGUMENT, "experts cannot be streamed through " + describe_bytes(plan.transit_bytes) +
                                              ": the " + std::to_string(used) + " experts of one token need " +
                                              describe_bytes(used * unit_bytes));
        }
        /* Half of less than two layers could not take in the next one. */
        reads_ahead_ = transit / 2 >= experts;
        const size_t first = reads_ahead_ ? transit / 2 : transit;
        for (size_t half = 0; half < (reads_ahead_ ? 2u : 1u); ++half) {
            transit_[half].take_device_memory(device, first);
            if (transit_[half].count() < used) {
                throw Failure(DS4_E_NO_MEMORY, "no memory for experts that are being used: the " + std::to_string(used) +
                                                   " experts of one token need " + describe_bytes(used * unit_bytes));
            }
        }
        const LoadStep step(telemetry, DS4_STEP_HOST_TIER);
        host_.take_pinned_memory(device, plan.host_bytes / unit_bytes);
    }
    for (SizeClass &size_class : classes_) {
        learns_ = learns_ || (size_class.slots.count() > 0 && (!streams_ || host_.count() > 0));
    }
    /* What is read over the bus is counted even where it cannot move. */
    learns_ = learns_ || std::ranges::any_of(layers_, [](const ExpertLayer &layer) { return layer[0].host != nullptr; });
    if (learns_) {
        const LoadStep step(telemetry, streams_ ? DS4_STEP_HOST_TIER : DS4_STEP_SLOTS);
        lanes_ = device.upload_ring(kPromotionLanes, 1);
        for (size_t lane = 0; lane < kPromotionLanes; ++lane) {
            free_lanes_.push_back(lane);
        }
    }
    if (!streams_) {
        for (size_t unit = 0; unit < units_.size(); ++unit) {
            units_[unit].where = Where::own;
            show(unit);
        }
    }
    table_.publish_all();
    count_places();
}

ExpertStore::~ExpertStore() {
    settle();       /* reads may still be on their way */
    lanes_.reset(); /* waits for copies into slots */
}

/* The memory for slots is shared among the classes by the bytes of their layers. */
void ExpertStore::sort_into_classes(uint64_t slot_bytes, ReplacementPolicy policy) {
    for (const ExpertLayer &layer : layers_) {
        const ExpertLayout layout(part_bytes(layer));
        const auto known = std::ranges::find_if(classes_, [&](const SizeClass &size_class) {
            return size_class.layout.bytes == layout.bytes && size_class.layout.offset == layout.offset;
        });
        class_of_layer_.push_back(static_cast<size_t>(known - classes_.begin()));
        if (known == classes_.end()) {
            classes_.push_back({layout, 0, ExpertPlaces(layout.bytes, policy)});
        }
        ++classes_[class_of_layer_.back()].layers;
    }
    uint64_t all = 0;
    for (const SizeClass &size_class : classes_) {
        all += size_class.layers * size_class.layout.bytes;
    }
    for (SizeClass &size_class : classes_) {
        const double share = static_cast<double>(size_class.layers * size_class.layout.bytes) / static_cast<double>(all);
        const auto   bytes = static_cast<uint64_t>(static_cast<double>(slot_bytes) * share);
        const size_t wanted = std::min(bytes / size_class.layout.bytes, size_class.layers * experts_);
        size_class.slots.take_device_memory(device_, wanted);
    }
}

void ExpertStore::count_places() {
    size_t slots = 0;
    size_t used = 0;
    for (const SizeClass &size_class : classes_) {
        slots += size_class.slots.count();
        used += size_class.slots.used();
    }
    telemetry_.set(DS4_WORD_EXPERT_SLOTS, slots);
    telemetry_.set(DS4_WORD_EXPERT_SLOTS_USED, used);
    telemetry_.set(DS4_WORD_EXPERT_HOST_PLACES, host_.count());
    telemetry_.set(DS4_WORD_EXPERT_HOST_USED, host_.used());
}

ExpertPlaces &ExpertStore::places_of(Where where, size_t layer) {
    switch (where) {
    case Where::host: return host_;
    case Where::transit: return transit_[reads_ahead_ ? layer % 2 : 0];
    default: return class_of(layer).slots;
    }
}

/* What kernels are to find, from the next time the layer is published. */
void ExpertStore::show(size_t unit) {
    const size_t                 layer = layer_of(unit);
    const Unit                  &known = units_[unit];
    backend::ExpertAddress       address{};
    if (known.where == Where::own) {
        const size_t expert = unit % experts_;
        address = {layers_[layer][0].address + expert * layers_[layer][0].bytes,
                   layers_[layer][1].address + expert * layers_[layer][1].bytes,
                   layers_[layer][2].address + expert * layers_[layer][2].bytes};
    } else if (known.where != Where::absent && !known.arriving) {
        address = class_of(layer).layout.address(places_of(known.where, layer)[known.place].from);
    }
    table_.set(layer, unit % experts_, address);
}

/* ---- moving ---------------------------------------------------------------------------------------- */

void ExpertStore::put(size_t unit, Where where, size_t place) {
    units_[unit].where = where;
    units_[unit].place = static_cast<uint32_t>(place);
    if (where == Where::host) {
        telemetry_.add(DS4_WORD_EXPERT_HOST_ADMISSIONS, 1);
        telemetry_.add(DS4_WORD_EXPERT_HOST_ADMITTED_BYTES, class_of(layer_of(unit)).layout.bytes);
    }
}

/* The unit has no place any more. */
void ExpertStore::forget(size_t unit) {
    Unit &known = units_[unit];
    places_of(known.where, layer_of(unit)).give_back(known.place);
    known.where = streams_ ? Where::absent : Where::own;
    known.arriving = false;
    show(unit);
}

bool ExpertStore::evict_for(size_t unit, ExpertPlaces &places, Where where) {
    const std::optional<size_t> victim = places.victim(run_);
    if (!victim) {
        return false;
    }
    const size_t evicted = places[*victim].unit;
    forget(evicted);
    if (where != Where::transit) {
        telemetry_.add(DS4_WORD_EXPERT_EVICTIONS, 1);
        telemetry_.add(DS4_WORD_EXPERT_EVICTED_BYTES, class_of(layer_of(evicted)).layout.bytes);
    }
    put(unit, where, places.take(unit));
    return true;
}

/* A place for an expert that is nowhere. In a batch of many tokens nothing is evicted: a long prompt touches nearly every
 * expert once, and would leave nothing of what decoding has gathered. */
void ExpertStore::place_missing(size_t unit, bool may_evict) {
    const size_t  layer = layer_of(unit);
    ExpertPlaces &slots = class_of(layer).slots;
    if (slots.has_free()) {
        put(unit, Where::slot, slots.take(unit));
    } else if (host_.has_free()) {
        put(unit, Where::host, host_.take(unit));
    } else if (!(may_evict && (evict_for(unit, slots, Where::slot) || evict_for(unit, host_, Where::host)))) {
        ExpertPlaces &transit = places_of(Where::transit, layer);
        if (transit.has_free()) {
            put(unit, Where::transit, transit.take(unit));
        } else if (!evict_for(unit, transit, Where::transit)) {
            throw Failure(DS4_E_INTERNAL, "no place is free for an expert");
        }
        telemetry_.add(DS4_WORD_EXPERT_TRANSIT, 1);
    }
    Unit &known = units_[unit];
    known.arriving = true;
    places_of(known.where, layer)[known.place].is_moving = true;
}

void ExpertStore::fetch(size_t unit, std::vector<Fetch> &fetches) {
    const size_t        layer = layer_of(unit);
    const Unit         &known = units_[unit];
    const ExpertLayout &layout = class_of(layer).layout;
    std::byte *const    to = places_of(known.where, layer)[known.place].to;
    for (size_t part = 0; part < layers_[layer].size(); ++part) {
        const ExpertMatrix &matrix = layers_[layer][part];
        fetches.push_back({matrix.source, matrix.offset + unit % experts_ * matrix.bytes, matrix.bytes,
                           to + layout.offset[part], known.where == Where::host});
    }
}

/* ---- steps ----------------------------------------------------------------------------------------- */

void ExpertStore::begin_step() {
    settle();
    finish_promotions();
    table_.publish_all();
}

void ExpertStore::end_step(std::span<const int32_t> ids, size_t tokens) {
    if (!streams_ && learns_) {
        for (size_t layer = 0; layer < layers_.size(); ++layer) {
            const std::span<const int32_t> chosen = ids.subspan(layer * tokens * used_, tokens * used_);
            std::vector<bool>              seen(experts_);
            for (const int32_t expert : chosen) {
                seen[static_cast<size_t>(expert)] = true;
            }
            for (size_t expert = 0; expert < experts_; ++expert) {
                if (!seen[expert]) {
                    continue;
                }
                const bool in_slot = units_[layer * experts_ + expert].where == Where::slot;
                telemetry_.add(DS4_WORD_EXPERT_LOOKUPS, 1);
                telemetry_.add(in_slot ? DS4_WORD_EXPERT_DEVICE_HITS : DS4_WORD_EXPERT_HOST_HITS, 1);
                telemetry_.add(DS4_WORD_BUS_READ_BYTES, in_slot ? 0 : class_of(layer).layout.bytes);
                ++units_[layer * experts_ + expert].uses;
            }
            const size_t telling = std::min(tokens, kTellingTokens);
            for (const int32_t expert : chosen.last(telling * used_)) {
                use(unit_of(layer, expert), true);
            }
        }
    }
    last_token_ = token_;
    token_ += tokens;
    count_places();
}

/* Notes a use, and moves an expert that is used again and again nearer. */
void ExpertStore::use(size_t unit, bool may_promote) {
    Unit          &known = units_[unit];
    const uint64_t before = std::exchange(known.token, token_);
    const bool has_place = known.where == Where::slot || known.where == Where::host || known.where == Where::transit;
    if (has_place && !known.arriving && before != token_) {
        places_of(known.where, layer_of(unit)).touch(known.place, token_);
    }
    const bool is_far = known.where == Where::host || (known.where == Where::own && learns_);
    if (!may_promote || !is_far || known.arriving || known.promoting || before == 0 || before == token_ || token_ - before > kSoon) {
        return;
    }
    ExpertPlaces &slots = class_of(layer_of(unit)).slots;
    if (free_lanes_.empty() || slots.count() == 0) {
        return;
    }
    if (!slots.has_free()) {
        const std::optional<size_t> victim = slots.victim(run_);
        if (!victim || units_[slots[*victim].unit].token >= before) {
            return;
        }
        forget(slots[*victim].unit);
        telemetry_.add(DS4_WORD_EXPERT_DEMOTIONS, 1);
    }
    promote(unit);
}

const std::byte *ExpertStore::bytes_of(size_t unit, size_t part) {
    const Unit         &known = units_[unit];
    const size_t        layer = layer_of(unit);
    const ExpertMatrix &matrix = layers_[layer][part];
    if (known.where == Where::own) {
        return matrix.host + unit % experts_ * matrix.bytes;
    }
    return host_[known.place].to + class_of(layer).layout.offset[part];
}

/* Until all bytes have arrived, kernels go on reading them where they are. */
void ExpertStore::promote(size_t unit) {
    const size_t  layer = layer_of(unit);
    ExpertPlaces &slots = class_of(layer).slots;
    const size_t  slot = slots.take(unit);
    const size_t  lane = free_lanes_.back();
    free_lanes_.pop_back();
    slots[slot].is_moving = true;
    if (units_[unit].where == Where::host) {
        host_[units_[unit].place].is_moving = true;
    }
    units_[unit].promoting = true;
    promotions_.push_back({unit, slot, lane});
    if (promotions_.size() == 1) {
        lanes_->follow_ops();
    }
    for (size_t part = 0; part < layers_[layer].size(); ++part) {
        lanes_->send_pinned(lane, slots[slot].to + class_of(layer).layout.offset[part], bytes_of(unit, part),
                            layers_[layer][part].bytes);
        count_upload(telemetry_, layers_[layer][part].bytes);
    }
    telemetry_.add(DS4_WORD_EXPERT_PROMOTIONS, 1);
}

/* Shows the experts that have arrived in their slots. Does not wait for the others. */
void ExpertStore::finish_promotions() {
    std::erase_if(promotions_, [&](const Promotion &promotion) {
        if (!lanes_->arrived(promotion.lane)) {
            return false;
        }
        ExpertPlaces &slots = class_of(layer_of(promotion.unit)).slots;
        if (units_[promotion.unit].where == Where::host) {
            host_.give_back(units_[promotion.unit].place);
        }
        units_[promotion.unit].promoting = false;
        put(promotion.unit, Where::slot, promotion.slot);
        slots[promotion.slot].is_moving = false;
        slots.touch(promotion.slot, units_[promotion.unit].token);
        show(promotion.unit);
        free_lanes_.push_back(promotion.lane);
        return true;
    });
}

} // namespace ds4::runtime
