/* The best rows of scores that lie on the device. */
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/gpu/gpu_ops.h"
#include "backend/gpu/launch.h"

namespace ds4::backend::gpu {

struct ChooseJob {
    int64_t      ratio, top_k;
    Position     at;
    const float *scores;         /* [tokens, scores_stride]; not read for tokens that see at most top_k rows */
    int64_t      scores_stride;
    int32_t     *selected;       /* out [tokens, top_k] */
    int32_t     *count;          /* out [tokens] */
    uint32_t    *candidate_keys; /* room for choose_candidates(...), or nullptr when that is 0 */
    int32_t     *candidate_rows;
};

/* How many candidates a token's rows are first narrowed down to; 0 when one block looks at all of them. */
size_t choose_candidates(int64_t tokens, int64_t row_capacity, int64_t top_k);

/* As Ops::indexer_select says. What is started depends on the arguments only, never on the position. */
void choose_rows(const Stream &stream, const ChooseJob &job, int64_t tokens, int64_t row_capacity);

} // namespace ds4::backend::gpu
