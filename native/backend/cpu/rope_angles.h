/* Sines and cosines of rotations. All layers of a step rotate by the same few sets of angles: the last are kept. */
#pragma once

#include <cstdint>
#include <vector>

#include "backend/cpu/thread_pool.h"
#include "backend/ops.h"

namespace ds4::backend::cpu {

struct Angles {
    const float *cosine; /* [tokens, pairs] */
    const float *sine;
    int64_t      pairs;

    const float *cosine_of(int64_t token) const { return cosine + token * pairs; }
    const float *sine_of(int64_t token) const { return sine + token * pairs; }
};

/* The angles of one position: cosine and sine are [rope.dims / 2]. The product is formed in float32, as the model's own
 * code does. */
void compute_angles(const Rope &rope, uint64_t position, float *cosine, float *sine);

class RopeAngles {
public:
    /* Of positions position .. position + tokens - 1; valid until kSets other sets were asked for. */
    Angles of(const Rope &rope, uint64_t position, int64_t tokens, ThreadPool &pool);

private:
    struct Set {
        std::vector<float> frequency;
        uint64_t           position = 0;
        int64_t            tokens = 0;
        uint64_t           last_use = 0;
        std::vector<float> cosine;
        std::vector<float> sine;
    };

    static constexpr int kSets = 4;

    Set      sets_[kSets];
    uint64_t uses_ = 0;
};

} // namespace ds4::backend::cpu
