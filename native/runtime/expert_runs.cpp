/* Runs: layers whose experts may be absent. */
#include <algorithm>
#include <utility>

#include "runtime/expert_store.h"

namespace ds4::runtime {

namespace {

/* A batch of so many choices for each expert of a layer needs nearly all of them. */
constexpr size_t kChoicesForAll = 2;

} // namespace

/* How many of the first tokens find places for all their experts. One always does: the transit places are for it. */
size_t ExpertStore::tokens_that_fit(size_t layer, std::span<const int32_t> ids, bool may_evict) {
    const size_t      tokens = ids.size() / used_;
    const auto        room = [](const ExpertPlaces &places) { return places.count() - places.used(); };
    const size_t      to_stay = room(class_of(layer).slots) + room(host_);
    const size_t      transit = places_of(Where::transit, layer).count();
    std::vector<bool> seen(experts_);
    size_t            missing = 0;
    size_t            passing = 0; /* in transit already, and to stay there */
    for (size_t token = 0; token < tokens; ++token) {
        for (const int32_t expert : ids.subspan(token * used_, used_)) {
            if (!seen[static_cast<size_t>(expert)]) {
                seen[static_cast<size_t>(expert)] = true;
                const Where where = units_[unit_of(layer, expert)].where;
                missing += where == Where::absent ? 1 : 0;
                passing += where == Where::transit ? 1 : 0;
            }
        }
        if (missing > to_stay && missing - to_stay + passing > transit && token > 0 && !may_evict) {
            return token;
        }
    }
    return tokens;
}

ExpertStore::Run ExpertStore::begin_run(size_t layer, std::span<const int32_t> ids, size_t batch) {
    const bool   may_evict = batch == 1;
    const size_t tokens = tokens_that_fit(layer, ids, may_evict);
    const auto   chosen = ids.first(tokens * used_);
    ++run_;
    run_layer_ = layer;
    run_is_last_ = tokens == ids.size() / used_;
    run_telling_.clear();
    waits_for_ahead_ = false;
    reads_next_ = false;

    std::vector<bool>   seen(experts_);
    std::vector<size_t> present;
    std::vector<size_t> absent;
    for (const int32_t expert : chosen) {
        if (seen[static_cast<size_t>(expert)]) {
            continue;
        }
        seen[static_cast<size_t>(expert)] = true;
        const size_t unit = unit_of(layer, expert);
        Unit        &known = units_[unit];
        /* Another run of this evaluation may have looked it up before. */
        const bool is_new = known.token != token_;
        known.uses += is_new ? 1 : 0;
        const auto count = [&](size_t word) { telemetry_.add(word, is_new ? 1 : 0); };
        count(DS4_WORD_EXPERT_LOOKUPS);
        if (known.where == Where::absent) {
            count(DS4_WORD_EXPERT_MISSES);
            absent.push_back(unit);
            continue;
        }
        present.push_back(unit);
        places_of(known.where, layer)[known.place].run = run_;
        if (known.arriving) {
            count(DS4_WORD_EXPERT_IN_FLIGHT_HITS);
            waits_for_ahead_ = ahead_.ticket != 0;
        } else {
            count(known.where == Where::host ? DS4_WORD_EXPERT_HOST_HITS : DS4_WORD_EXPERT_DEVICE_HITS);
        }
        if (known.where == Where::host) {
            telemetry_.add(DS4_WORD_BUS_READ_BYTES, is_new ? class_of(layer).layout.bytes : 0);
        }
    }
    /* Only now, when everything that this run needs is marked: a promotion may take a slot from somebody. */
    for (const size_t unit : present) {
        if (units_[unit].where != Where::absent) {
            use(unit, may_evict);
        }
    }

    std::vector<Fetch> fetches;
    for (const size_t unit : absent) {
        place_missing(unit, may_evict);
        places_of(units_[unit].where, layer)[units_[unit].place].run = run_;
        units_[unit].token = token_;
        missing_.units.push_back(unit);
        if (units_[unit].where == Where::host) {
            telemetry_.add(DS4_WORD_BUS_READ_BYTES, class_of(layer).layout.bytes);
        }
        fetch(unit, fetches);
        show(unit);
    }
    if (!fetches.empty()) {
        queue_->follow_ops();
        missing_.ticket = queue_->submit(fetches);
    }
    if (!may_evict && run_is_last_) {
        for (const int32_t expert : chosen.last(std::min(tokens, kTellingTokens) * used_)) {
            run_telling_.push_back(unit_of(layer, expert));
        }
        reads_next_ = batch * used_ >= kChoicesForAll * experts_;
    }
    Pending &foreseen = foreseen_[layer];
    if (foreseen.ticket != 0 && queue_->is_done(foreseen.ticket)) {
        land(foreseen);
    }
    /* What was foreseen is in the table already, though it may not have arrived. */
    std::vector<size_t> arriving = foreseen.units;
    for (size_t &unit : arriving) {
        unit %= experts_;
    }
    const bool all_here = fetches.empty() && !waits_for_ahead_ && arriving.empty();
    return {tokens, all_here ? nullptr : table_.present(layer, arriving)};
}

void ExpertStore::show_arrived(size_t unit) {
    Unit &known = units_[unit];
    known.arriving = false;
    places_of(known.where, layer_of(unit))[known.place].is_moving = false;
    show(unit);
}

/* Waits for what is on its way. Throws as FetchQueue::wait; then it is forgotten. */
void ExpertStore::land(Pending &pending) {
    if (pending.ticket == 0) {
        return;
    }
    const std::vector<size_t> units = std::exchange(pending.units, {});
    try {
        queue_->wait(std::exchange(pending.ticket, 0));
    } catch (...) {
        std::ranges::for_each(units, [this](size_t unit) { forget(unit); });
        throw;
    }
    for (const size_t unit : units) {
        const Unit &known = units_[unit];
        show_arrived(unit);
        places_of(known.where, layer_of(unit)).touch(known.place, known.token);
        if (known.where == Where::transit) {
            transit_units_.push_back(unit);
        }
    }
}

void ExpertStore::complete_run() {
    if (waits_for_ahead_) {
        land(ahead_);
    }
    land(foreseen_[run_layer_]);
    land(missing_);
    if (reads_next_) {
        fetch_next_layer(run_layer_ + 1);
    }
    table_.publish(run_layer_);
}

/* What is in transit stays until the layer's last run: its tokens may want it too. */
void ExpertStore::end_run() {
    if (run_is_last_) {
        keep_telling();
        give_up_transit();
    }
}

void ExpertStore::give_up_transit() {
    for (const size_t unit : std::exchange(transit_units_, {})) {
        if (units_[unit].where == Where::transit) {
            forget(unit);
        }
    }
}

/* What the last tokens of a batch chose is likely to be chosen again: as long as there are free slots, it stays. */
void ExpertStore::keep_telling() {
    for (const size_t unit : std::exchange(run_telling_, {})) {
        ExpertPlaces &slots = class_of(run_layer_).slots;
        if (units_[unit].where != Where::transit || !slots.has_free()) {
            continue;
        }
        ExpertPlaces &transit = places_of(Where::transit, run_layer_);
        const size_t  from = units_[unit].place;
        const size_t  slot = slots.take(unit);
        device_.copy_within(slots[slot].to, transit[from].to, slots.place_bytes());
        transit.give_back(from);
        put(unit, Where::slot, slot);
        slots.touch(slot, token_);
        show(unit);
    }
}

/* Ends what a step that failed in its middle has begun. */
void ExpertStore::settle() noexcept {
    const auto end = [this](Pending &pending) {
        try {
            land(pending);
        } catch (...) {
            /* Nobody needs it any more; whoever needs it next asks again, and hears why it fails. */
        }
    };
    end(ahead_);
    std::ranges::for_each(foreseen_, end);
    end(missing_);
    run_telling_.clear();
    give_up_transit();
}

/* Everything that the next layer lacks, while this one is computed: a batch that needs nearly all experts need not wait for
 * its choice. */
void ExpertStore::fetch_next_layer(size_t layer) {
    if (layer >= layers_.size() || ahead_.ticket != 0) {
        return;
    }
    std::vector<size_t> absent;
    for (size_t unit = layer * experts_; unit < (layer + 1) * experts_; ++unit) {
        if (units_[unit].where == Where::absent) {
            absent.push_back(unit);
        }
    }
    const auto          room = [](const ExpertPlaces &places) { return places.count() - places.used(); };
    const Where         where = room(class_of(layer).slots) >= absent.size() ? Where::slot : Where::transit;
    ExpertPlaces       &places = places_of(where, layer);
    if (absent.empty() || room(places) < absent.size() || (where == Where::transit && !reads_ahead_)) {
        return;
    }
    std::vector<Fetch> fetches;
    for (const size_t unit : absent) {
        put(unit, where, places.take(unit));
        units_[unit].arriving = true;
        places[units_[unit].place].is_moving = true;
        fetch(unit, fetches);
    }
    queue_->follow_ops();
    ahead_.ticket = queue_->submit(fetches, Urgency::ahead);
    telemetry_.add(DS4_WORD_LAYER_LOADS, 1);
    telemetry_.add(DS4_WORD_LAYER_LOAD_BYTES, absent.size() * class_of(layer).layout.bytes);
    ahead_.units = std::move(absent);
}

} // namespace ds4::runtime
