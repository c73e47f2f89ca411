/* The activations of one batch. One allocation, made with the session, so that evaluating allocates nothing. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/device.h"
#include "model/shape.h"
#include "runtime/carver.h"

namespace ds4::model {

/* What the host has to know after an evaluation, together in memory so that one copy brings it. */
struct Results {
    int32_t *bad_layer = nullptr;       /* [1] the first layer that left streams which are not finite, or -1 */
    int32_t *finite = nullptr;          /* [rows] whether a row of logits may be used */
    int32_t *candidate_id = nullptr;    /* [candidates], at least one with a head */
    float   *candidate_logit = nullptr; /* [candidates] */

    /* The same for device memory and for the host's copy of it. Returns the bytes. */
    uint64_t place(runtime::Carver carver, int64_t rows, int64_t candidates);
};

struct Workspace {
    Workspace(backend::Device &device, const Shape &shape, const Slice &slice, int64_t chunk);

    static uint64_t bytes_for(const Shape &shape, const Slice &slice, int64_t chunk);

    /* [chunk, ...] each. Members are named by what they hold; T is a token of the batch. */
    float *streams = nullptr; /* [T, hc, embedding] */
    float *x = nullptr;       /* [T, embedding] input of the present sublayer */
    float *y = nullptr;       /* [T, embedding] its output */
    float *post = nullptr;    /* [T, hc] */
    float *comb = nullptr;    /* [T, hc, hc] */

    float *q_low = nullptr;         /* [T, q_rank] */
    float *q = nullptr;             /* [T, heads, head_dim] */
    float *kv = nullptr;            /* [T, head_dim] */
    float *keys = nullptr;          /* [T, 2 head_dim] compressor inputs */
    float *gates = nullptr;
    float *indexer_keys = nullptr;  /* [T, 2 indexer_dim] */
    float *indexer_gates = nullptr;
    float *indexer_q = nullptr;     /* [T, indexer_heads, indexer_dim] */
    float *indexer_weights = nullptr; /* [T, indexer_heads] */
    int32_t *selected = nullptr;    /* [T, top_k] compressed rows */
    int32_t *selected_count = nullptr; /* [T] */
    float *attended = nullptr;      /* [T, heads, head_dim] */
    float *output_low = nullptr;    /* [T, groups, rank] */

    float   *router_logits = nullptr;  /* [T, experts] */
    int32_t *expert_ids = nullptr;     /* [layers of the slice, T, used] */
    float   *expert_weights = nullptr; /* [T, used] */

    float *head_x = nullptr; /* [head_rows, embedding] */
    float *logits = nullptr; /* [head_rows, vocab] */

    std::byte             *result_block = nullptr; /* where results are placed */
    Results                results;                /* of the present evaluation */
    std::vector<std::byte> fetched;                /* the host's copy of result_block */
    bool                   bad_layer_clear = false; /* known to be -1 in device memory */

    /* The head runs on a few rows at a time: all logits of a chunk would outweigh every other activation. */
    int64_t head_rows = 0;

    uint64_t bytes() const { return memory_.bytes(); }

private:
    Workspace() = default;
    uint64_t place(const Shape &shape, const Slice &slice, int64_t chunk, runtime::Carver carver);

    backend::Allocation memory_;
    uint64_t            result_bytes_ = 0; /* the most there can be */
};

} // namespace ds4::model
