/* The parts of a layer, one file each. Every part reads and writes the workspace of the batch; what goes from one part to
 * the next is named there. */
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/ops.h"
#include "model/shape.h"
#include "model/taps.h"
#include "model/weights.h"
#include "model/workspace.h"
#include "runtime/kv_cache.h"

namespace ds4::model {

/* Tokens on their way through the layers. */
struct Batch {
    backend::Device         &device;
    backend::Ops            &ops;
    const Shape             &shape;
    Workspace               &work;
    Taps                    &taps;
    std::span<const int32_t> token_ids;
    uint64_t                 position;     /* of the first token */
    std::span<float>         score_buffer; /* device memory [context / 4], when indexer scores are tapped */

    int64_t  tokens() const { return static_cast<int64_t>(token_ids.size()); }
    uint64_t end() const { return position + token_ids.size(); }
};

struct Layer {
    int64_t                       index;
    size_t                        place;   /* in the slice */
    const LayerWeights           &weights;
    runtime::ExpertStore         &experts;
    const runtime::LayerKv       &kv;
    backend::Rope                 rope;

    /* [tokens, used] the experts that the batch's tokens go to. Every layer has an array of its own, one after another, so that
     * one copy tells what a whole evaluation chose. */
    int32_t *expert_ids(const Batch &batch) const {
        return batch.work.expert_ids + static_cast<int64_t>(place) * batch.tokens() * batch.shape.expert_used;
    }
};

/* hyper_connection.cpp: the residual streams before and after a sublayer. With `bad_layer`, a layer after which they are no
 * numbers any more is noted there. */
void collapse_streams(const Batch &batch, const HyperConnectionWeights &weights, const float *norm);
void spread_over_streams(const Batch &batch, const Layer &layer, int32_t *bad_layer);

/* attention_query.cpp: everything that is projected from the sublayer's input, queries, and the window row. */
void project_attention_input(const Batch &batch, const Layer &layer);
void make_queries(const Batch &batch, const Layer &layer);
void push_window_rows(const Batch &batch, const Layer &layer);

/* compressor.cpp: compressed rows of windows that close in this batch, for attention and for the indexer. */
void compress(const Batch &batch, const Layer &layer);

/* indexer.cpp. Whether the indexer has to choose; if not, every query of the batch sees every row it may see. */
bool indexer_chooses(const Batch &batch, int64_t layer);
void select_rows(const Batch &batch, const Layer &layer);

/* attention.cpp: the attention sublayer, from streams to streams. */
void attention_sublayer(const Batch &batch, const Layer &layer);

/* router.cpp: expert ids and weights. */
void route(const Batch &batch, const Layer &layer);

/* experts.cpp. What the batch's tokens choose in a layer as far as their ids alone decide it: [tokens, used], or nothing. */
std::vector<int32_t> foreseen_ids(const Batch &batch, const LayerWeights &weights);

/* The FFN sublayer, from streams to streams. */
void expert_sublayer(const Batch &batch, const Layer &layer);

/* head.cpp. */
struct HeadRequest {
    int64_t            logits_rows; /* of the last tokens */
    float             *logits;      /* [logits_rows, vocab] or nullptr */
    std::span<float>   candidate_logit;
    std::span<int32_t> candidate_id;

    /* Rows of logits that are computed: candidates alone need the last one. */
    int64_t rows() const { return logits_rows > 0 ? logits_rows : 1; }
};
/* Computes what is asked for. Candidates, and whether each row is finite, are left in work.results; of the logits only those
 * are handed over that must make room for others. */
void run_head(const Batch &batch, const HeadWeights &weights, const HeadRequest &request);
/* Hands the others over, once they are there. */
void fetch_last_logits(const Batch &batch, const HeadRequest &request);

} // namespace ds4::model
