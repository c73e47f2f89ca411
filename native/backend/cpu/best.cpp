#include "backend/cpu/cpu_ops.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace ds4::backend::cpu {

namespace {

/* Larger logit, then lower id, as one number. Both zeros are equal. */
uint64_t key_of(float logit, int64_t id) {
    const uint32_t bits = std::bit_cast<uint32_t>(logit + 0.0f);
    const uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
    return static_cast<uint64_t>(ordered) << 32 | (0xffffffffu - static_cast<uint32_t>(id));
}

/* Whether every logit is a number below infinity and one is finite. A sum of zeros is zero unless a term is not. */
bool all_usable(const float *logits, int64_t count) {
    bool any_finite = false;
    bool all = true;
    for (int64_t i = 0; i < count; ++i) {
        all &= logits[i] < INFINITY;
        any_finite |= logits[i] > -INFINITY;
    }
    return all && any_finite;
}

} // namespace

void CpuOps::best(const BestArgs &args) {
    const bool usable = all_usable(args.logits, args.vocab);
    const auto count = static_cast<size_t>(std::min(args.count, args.vocab));
    *args.finite = usable ? 1 : 0;
    if (!usable || count == 0) {
        return;
    }
    /* Keep the candidates that may still be among the best; when there are too many, drop the worse half and raise the
     * bar. Only few logits pass the bar after a while. */
    const size_t limit = std::max<size_t>(2 * count, 256);
    const auto   better = [](uint64_t a, uint64_t b) { return a > b; };
    keys_.clear();
    float bar = -INFINITY;
    for (int64_t id = 0; id < args.vocab; ++id) {
        /* An equal logit further on has a higher id and loses, but the bar may be that of a dropped one. */
        if (!(args.logits[id] >= bar)) {
            continue;
        }
        keys_.push_back(key_of(args.logits[id], id));
        if (keys_.size() == limit) {
            std::nth_element(keys_.begin(), keys_.begin() + static_cast<std::ptrdiff_t>(count - 1), keys_.end(), better);
            keys_.resize(count);
            bar = args.logits[0xffffffffu - static_cast<uint32_t>(keys_[count - 1])];
        }
    }
    std::partial_sort(keys_.begin(), keys_.begin() + static_cast<std::ptrdiff_t>(count), keys_.end(), better);
    for (size_t i = 0; i < count; ++i) {
        const auto id = static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(keys_[i]));
        args.id[i] = id;
        args.logit[i] = args.logits[id];
    }
}

} // namespace ds4::backend::cpu
