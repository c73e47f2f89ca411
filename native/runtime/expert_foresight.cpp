/* Foresight: experts that are fetched before anything of the step was computed, because the tokens alone decide about them. */
#include <utility>

#include "runtime/expert_store.h"

namespace ds4::runtime {

bool ExpertStore::has_all(size_t layer, std::span<const int32_t> ids) const {
    for (const int32_t expert : ids) {
        if (units_[unit_of(layer, expert)].where == Where::absent) {
            return false;
        }
    }
    return true;
}

void ExpertStore::foresee(std::span<const std::vector<int32_t>> ids, size_t tokens) {
    if (!streams_ || tokens > kTellingTokens) {
        return; /* a longer batch fills layers as a whole */
    }
    ++run_;
    /* All marks come first, so that no layer's experts give way to those of another. */
    for (size_t layer = 0; layer < ids.size(); ++layer) {
        for (const int32_t expert : ids[layer]) {
            const Unit &known = units_[unit_of(layer, expert)];
            if (known.where != Where::absent) {
                places_of(known.where, layer)[known.place].run = run_;
            }
        }
    }
    for (size_t layer = 0; layer < ids.size(); ++layer) {
        foresee_layer(layer, ids[layer], tokens == 1);
    }
    /* Now, while no op runs that a change of the table would have to wait for. */
    for (size_t layer = 0; layer < ids.size(); ++layer) {
        table_.publish(layer);
    }
}

void ExpertStore::foresee_layer(size_t layer, std::span<const int32_t> ids, bool may_evict) {
    Pending           &pending = foreseen_[layer];
    std::vector<Fetch> fetches;
    for (const int32_t expert : ids) {
        const size_t unit = unit_of(layer, expert);
        if (units_[unit].where == Where::absent && place_foreseen(unit, may_evict)) {
            pending.units.push_back(unit);
            fetch(unit, fetches);
        }
    }
    if (!fetches.empty()) {
        queue_->follow_ops();
        /* Somebody who waits for a layer's weights goes first. */
        pending.ticket = queue_->submit(fetches, Urgency::ahead);
        telemetry_.add(DS4_WORD_EXPERT_FORESEEN, pending.units.size());
    }
}

/* A place as place_missing would choose it, but for what would be given up too early. Without one the router's choice is read
 * back as usual. */
bool ExpertStore::place_foreseen(size_t unit, bool may_evict) {
    const size_t  layer = layer_of(unit);
    ExpertPlaces &slots = class_of(layer).slots;
    ExpertPlaces &transit = places_of(Where::transit, layer);
    /* Nothing is in transit at the start of a step, and the first layer, or one for each half, can have all of it. */
    const bool may_pass = slots.count() + host_.count() == 0 && layer < (reads_ahead_ ? 2u : 1u);
    if (slots.has_free()) {
        put(unit, Where::slot, slots.take(unit));
    } else if (host_.has_free()) {
        put(unit, Where::host, host_.take(unit));
    } else if (may_evict && may_pass && transit.has_free()) {
        put(unit, Where::transit, transit.take(unit));
        telemetry_.add(DS4_WORD_EXPERT_TRANSIT, 1);
    } else if (!may_evict || !(evict_old_for(unit, slots, Where::slot) || evict_old_for(unit, host_, Where::host))) {
        return false;
    }
    Unit        &known = units_[unit];
    ExpertPlace &place = places_of(known.where, layer)[known.place];
    known.arriving = true;
    place.is_moving = true;
    place.run = run_;
    expect(unit);
    return true;
}

/* Not for what the last token used: the next one may well want it again, and nobody has missed `unit` so far. */
bool ExpertStore::evict_old_for(size_t unit, ExpertPlaces &places, Where where) {
    const std::optional<size_t> victim = places.victim(run_);
    return victim && units_[places[*victim].unit].token < last_token_ && evict_for(unit, places, where);
}

/* Shows an expert where it will be. Ops that read it are called only when it has arrived, and this way no change of the table
 * has to wait for other ops then. */
void ExpertStore::expect(size_t unit) {
    const size_t layer = layer_of(unit);
    const Unit  &known = units_[unit];
    table_.set(layer, unit % experts_, class_of(layer).layout.address(places_of(known.where, layer)[known.place].from));
}

} // namespace ds4::runtime
