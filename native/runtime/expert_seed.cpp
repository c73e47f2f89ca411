/* Seeding: experts that have places before anybody chose them. And who has one now, for seeding another time. */
#include <algorithm>
#include <deque>
#include <exception>
#include <iterator>
#include <ranges>
#include <string>
#include <utility>

#include "failure.h"
#include "runtime/expert_store.h"

namespace ds4::runtime {

namespace {

/* Experts that are asked for at a time: enough to keep every reader busy, and a failure is noticed soon. */
constexpr size_t kExpertsAtATime = 32;

} // namespace

uint64_t ExpertStore::unit_bytes(size_t unit) const {
    const ExpertLayer &layer = layers_[layer_of(unit)];
    return layer[0].bytes + layer[1].bytes + layer[2].bytes;
}

/* Distinct experts that are nowhere yet, each with the best kind of place that has room for it. */
std::vector<ExpertStore::Seed> ExpertStore::choose_seeds(std::span<const ExpertId> wanted) const {
    const auto          room = [](const ExpertPlaces &places) { return places.count() - places.used(); };
    std::vector<size_t> slots;
    for (const SizeClass &size_class : classes_) {
        slots.push_back(room(size_class.slots));
    }
    size_t            host = room(host_);
    std::vector<bool> chosen(units_.size());
    std::vector<Seed> seeds;
    for (const auto &[layer, expert] : wanted) {
        if (layer >= layers_.size() || expert >= experts_) {
            throw Failure(DS4_E_ARGUMENT, "there is no expert " + std::to_string(expert) + " in layer " +
                                              std::to_string(layer) + " of " + std::to_string(layers_.size()) +
                                              " layers with " + std::to_string(experts_) + " experts each");
        }
        const size_t unit = layer * experts_ + expert;
        const Unit  &known = units_[unit];
        size_t      &own = slots[class_of_layer_[layer]];
        if (chosen[unit] || known.promoting || known.where != (streams_ ? Where::absent : Where::own) || own + host == 0) {
            continue;
        }
        seeds.push_back({unit, own > 0 ? Where::slot : Where::host});
        --(own > 0 ? own : host);
        chosen[unit] = true;
    }
    return seeds;
}

/* Among equals a policy gives up the slot with the lowest number first: the last ones of the list get those. */
void ExpertStore::take_places(std::span<const Seed> seeds) {
    for (const auto &[unit, where] : std::views::reverse(seeds)) {
        ExpertPlaces &places = places_of(where, layer_of(unit));
        put(unit, where, places.take(unit));
        units_[unit].arriving = true;
        places[units_[unit].place].is_moving = true;
    }
}

/* As if the last of the list had been used first. */
void ExpertStore::keep_in_order(std::span<const Seed> seeds) {
    for (const auto &[unit, where] : std::views::reverse(seeds)) {
        const Unit &known = units_[unit];
        if (known.where == where) {
            places_of(where, layer_of(unit)).touch(known.place, known.token);
        }
    }
    table_.publish_all();
    count_places();
}

/* Into slots and host memory, in the order of the file. */
void ExpertStore::read_seeds(std::span<const Seed> seeds) {
    take_places(seeds);
    std::vector<size_t> units;
    std::ranges::transform(seeds, std::back_inserter(units), &Seed::unit);
    std::ranges::sort(units);
    std::deque<Pending> reading;
    std::exception_ptr  failure;
    queue_->follow_ops();
    for (size_t next = 0; next < units.size() || !reading.empty();) {
        if (next < units.size() && failure != nullptr) {
            forget(units[next++]);
        } else if (next < units.size() && reading.size() < kExpertsAtATime) {
            std::vector<Fetch> fetches;
            fetch(units[next], fetches);
            reading.push_back({queue_->submit(fetches), {units[next++]}});
        } else {
            const Pending first = std::move(reading.front());
            reading.pop_front();
            try {
                queue_->wait(first.ticket);
                show_arrived(first.units.front());
                telemetry_.add(DS4_WORD_BYTES_DONE, unit_bytes(first.units.front()));
            } catch (...) {
                failure = failure ? failure : std::current_exception();
                forget(first.units.front());
            }
        }
    }
    keep_in_order(seeds);
    if (failure) {
        std::rethrow_exception(failure);
    }
}

/* Copies beside experts that stay where they are. */
void ExpertStore::upload_seeds(std::span<const Seed> seeds, const UploadOptions &options) {
    take_places(seeds);
    std::vector<UploadPiece> pieces;
    for (const auto &[unit, where] : seeds) {
        std::vector<Fetch> fetches;
        fetch(unit, fetches);
        for (const Fetch &part : fetches) {
            pieces.push_back({part.source, part.offset, part.bytes, part.to});
        }
    }
    std::ranges::sort(pieces, {}, [](const UploadPiece &piece) { return std::pair(piece.source, piece.offset); });
    try {
        upload(device_, pieces, options, telemetry_);
    } catch (...) {
        for (const auto &[unit, where] : seeds) {
            forget(unit);
        }
        throw;
    }
    for (const auto &[unit, where] : seeds) {
        show_arrived(unit);
    }
    keep_in_order(seeds);
}

size_t ExpertStore::seed(std::span<const ExpertId> wanted, const UploadOptions &options) {
    settle();
    finish_promotions();
    std::vector<Seed> seeds = choose_seeds(wanted);
    const size_t      seeded = seeds.size();
    if (!streams_) {
        std::vector<ExpertId> all(wanted.begin(), wanted.end());
        for (uint32_t expert = 0; expert < experts_; ++expert) {
            for (uint32_t layer = 0; layer < layers_.size(); ++layer) {
                all.push_back({layer, expert});
            }
        }
        seeds = choose_seeds(all);
    }
    uint64_t bytes = 0;
    for (const Seed &seed : seeds) {
        bytes += unit_bytes(seed.unit);
    }
    telemetry_.add(DS4_WORD_BYTES_TOTAL, bytes);
    if (streams_) {
        read_seeds(seeds);
    } else {
        upload_seeds(seeds, options);
    }
    telemetry_.add(DS4_WORD_EXPERT_SEEDED, seeded);
    return seeded;
}

void ExpertStore::fill_slots(const UploadOptions &options) {
    if (!streams_) {
        seed({}, options);
    }
}

std::vector<ExpertUse> ExpertStore::uses() const {
    std::vector<bool>                      is_kept(units_.size());
    std::vector<ExpertUse>                 found;
    const auto                             add = [&](size_t unit) {
        is_kept[unit] = true;
        found.push_back({{static_cast<uint32_t>(layer_of(unit)), static_cast<uint32_t>(unit % experts_)}, true,
                         units_[unit].uses});
    };
    /* Slots of different sizes are never compared with each other: what counts is how far up among its own a slot is. */
    std::vector<std::pair<double, size_t>> in_slots;
    for (const SizeClass &size_class : classes_) {
        const std::vector<size_t> units = size_class.slots.units_by_value();
        for (size_t rank = 0; rank < units.size(); ++rank) {
            in_slots.emplace_back((static_cast<double>(rank) + 0.5) / static_cast<double>(units.size()), units[rank]);
        }
    }
    std::ranges::stable_sort(in_slots, {}, &std::pair<double, size_t>::first);
    for (const auto &[rank, unit] : in_slots) {
        add(unit);
    }
    std::ranges::for_each(host_.units_by_value(), add);
    const size_t kept = found.size();
    for (size_t unit = 0; unit < units_.size(); ++unit) {
        if (!is_kept[unit] && units_[unit].uses > 0) {
            add(unit);
            found.back().is_kept = false;
        }
    }
    std::ranges::stable_sort(found.begin() + static_cast<std::ptrdiff_t>(kept), found.end(), std::ranges::greater{},
                             &ExpertUse::uses);
    return found;
}

} // namespace ds4::runtime
