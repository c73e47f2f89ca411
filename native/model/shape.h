/* Hyper-parameters of a deepseek4 model, checked: after Shape::checked, arithmetic on them cannot wrap, and no kernel is
 * asked for something it has no meaning for. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "include/ds4.h"

namespace ds4::model {

struct Shape {
    int64_t layer_count;
    int64_t embedding;
    int64_t vocab;
    int64_t head_count;
    int64_t head_dim;
    int64_t rope_dims;
    int64_t q_rank;
    int64_t output_groups;
    int64_t output_rank;
    int64_t window;
    int64_t indexer_heads;
    int64_t indexer_dim;
    int64_t indexer_top_k;
    int64_t expert_count;
    int64_t expert_used;
    int64_t expert_shared;
    int64_t expert_width;
    int64_t hash_layers;
    int64_t hc_count;
    int64_t sinkhorn_iterations;
    bool    normalise_weights;
    bool    round_trips;
    float   rms_epsilon;
    float   hc_epsilon;
    float   rope_base;
    float   compress_rope_base;
    float   yarn_factor;
    float   yarn_beta_fast;
    float   yarn_beta_slow;
    float   expert_scale;
    int64_t yarn_original_context;

    std::vector<int64_t> compress_ratio; /* [layer_count] */
    std::vector<float>   clamp_routed;   /* [layer_count] */
    std::vector<float>   clamp_shared;   /* [layer_count] */

    /* Throws Failure(DS4_E_ARGUMENT) naming every value that makes no sense. `given` has this library's size. */
    static Shape checked(const ds4_shape &given);

    /* Ratio 4 is the one with overlapping windows and an indexer; any other ratio has neither. */
    int64_t ratio(int64_t layer) const { return compress_ratio[static_cast<size_t>(layer)]; }
    bool    has_indexer(int64_t layer) const { return ratio(layer) == 4; }
    int64_t halves(int64_t layer) const { return has_indexer(layer) ? 2 : 1; }
    bool    routes_by_hash(int64_t layer) const { return layer < hash_layers; }

    int64_t mix_count() const { return 2 * hc_count + hc_count * hc_count; }
};

/* The part of a model that this process evaluates. */
struct Slice {
    int64_t first; /* layers, both inclusive */
    int64_t last;
    bool    embedding; /* tokens come in; otherwise hidden states */
    bool    head;      /* logits go out */

    int64_t layers() const { return last - first + 1; }

    /* Throws Failure(DS4_E_ARGUMENT). */
    static Slice checked(const ds4_load_plan &plan, const Shape &shape);
};

} // namespace ds4::model
