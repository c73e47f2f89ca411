#include "backend/cpu/rope_angles.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace ds4::backend::cpu {

void compute_angles(const Rope &rope, uint64_t position, float *cosine, float *sine) {
    const auto p = static_cast<float>(position);
    for (int64_t i = 0; i < rope.dims / 2; ++i) {
        const float angle = p * rope.frequency[i];
        cosine[i] = std::cos(angle);
        sine[i] = std::sin(angle);
    }
}

Angles RopeAngles::of(const Rope &rope, uint64_t position, int64_t tokens, ThreadPool &pool) {
    const int64_t pairs = rope.dims / 2;
    const auto    matches = [&](const Set &set) {
        return set.position == position && set.tokens >= tokens &&
               std::equal(set.frequency.begin(), set.frequency.end(), rope.frequency, rope.frequency + pairs);
    };
    Set *set = std::find_if(sets_, sets_ + kSets, matches);
    if (set == sets_ + kSets) {
        set = std::min_element(sets_, sets_ + kSets,
                               [](const Set &a, const Set &b) { return a.last_use < b.last_use; });
        set->frequency.assign(rope.frequency, rope.frequency + pairs);
        set->position = position;
        set->tokens = tokens;
        set->cosine.resize(static_cast<size_t>(tokens * pairs));
        set->sine.resize(static_cast<size_t>(tokens * pairs));
        pool.run_ranges(tokens, tokens * pairs * 200, [&](int64_t first, int64_t last, uint32_t) {
            for (int64_t t = first; t < last; ++t) {
                compute_angles(rope, position + static_cast<uint64_t>(t), set->cosine.data() + t * pairs,
                               set->sine.data() + t * pairs);
            }
        });
    }
    set->last_use = ++uses_;
    return {set->cosine.data(), set->sine.data(), pairs};
}

} // namespace ds4::backend::cpu
