#include "runtime/replacement.h"

#include <algorithm>
#include <cmath>

namespace ds4::runtime {

namespace {

constexpr double   kTokensPerDoubling = 64;
constexpr uint64_t kTokensUntilHalf = 1024;

} // namespace

void LeastFrequentlyRecentlyUsed::touch(size_t slot, uint64_t token) {
    Slot &known = slots_[slot];
    if (known.known) {
        by_score_.erase({known.score, slot});
        const uint64_t halvings = token / kTokensUntilHalf - known.token / kTokensUntilHalf;
        known.uses >>= std::min<uint64_t>(halvings, 63);
    } else {
        known = {};
        known.known = true;
    }
    ++known.uses;
    known.token = token;
    known.score = static_cast<double>(token) + kTokensPerDoubling * std::log2(1.0 + static_cast<double>(known.uses));
    by_score_.insert({known.score, slot});
}

void LeastFrequentlyRecentlyUsed::forget(size_t slot) {
    Slot &known = slots_[slot];
    if (known.known) {
        by_score_.erase({known.score, slot});
        known = {};
    }
}

std::optional<size_t> LeastFrequentlyRecentlyUsed::victim(const std::function<bool(size_t)> &may_go) const {
    for (const auto &[score, slot] : by_score_) {
        if (may_go(slot)) {
            return slot;
        }
    }
    return std::nullopt;
}

std::vector<size_t> LeastFrequentlyRecentlyUsed::order() const {
    std::vector<size_t> slots;
    for (auto known = by_score_.rbegin(); known != by_score_.rend(); ++known) {
        slots.push_back(known->second);
    }
    return slots;
}

std::unique_ptr<Replacement> make_replacement(ReplacementPolicy policy, size_t slots) {
    if (policy == ReplacementPolicy::lfru) {
        return std::make_unique<LeastFrequentlyRecentlyUsed>(slots);
    }
    return std::make_unique<LeastRecentlyUsed>(slots);
}

} // namespace ds4::runtime
