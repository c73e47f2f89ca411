#include "model/shape.h"

#include <cmath>
#include <span>
#include <string>
#include <string_view>

#include "failure.h"

namespace ds4::model {

namespace {

/* Far above any real model, and small enough that the product of any three fits in 64 bits with room to spare. */
constexpr uint32_t kMostOfADimension = 1u << 18;
constexpr uint32_t kMostVocabulary = 1u << 24;
constexpr uint32_t kMostLayers = 1u << 12;
constexpr uint32_t kMostStreams = 16;
constexpr uint32_t kMostUsedExperts = 64;
constexpr uint32_t kMostSinkhornIterations = 1000;

class Problems {
public:
    void add(std::string problem) {
        if (!text_.empty()) {
            text_ += "; ";
        }
        text_ += problem;
    }

    void require(bool good, std::string_view problem) {
        if (!good) {
            add(std::string(problem));
        }
    }

    void between(std::string_view name, uint64_t value, uint64_t least, uint64_t most) {
        if (value < least || value > most) {
            add(std::string(name) + " is " + std::to_string(value) + ", must be " + std::to_string(least) + " to " +
                std::to_string(most));
        }
    }

    void positive(std::string_view name, float value) {
        if (!std::isfinite(value) || value <= 0.0f) {
            add(std::string(name) + " is " + std::to_string(value) + ", must be a number above 0");
        }
    }

    void stop_if_any() const {
        if (!text_.empty()) {
            throw Failure(DS4_E_ARGUMENT, "the model's hyper-parameters make no sense: " + text_);
        }
    }

private:
    std::string text_;
};

void check_dimensions(const ds4_shape &given, Problems &problems) {
    problems.between("layer_count", given.layer_count, 1, kMostLayers);
    problems.between("embedding", given.embedding, 1, kMostOfADimension);
    problems.between("vocab", given.vocab, 1, kMostVocabulary);
    problems.between("head_count", given.head_count, 1, kMostOfADimension);
    problems.between("head_dim", given.head_dim, 1, kMostOfADimension);
    problems.between("rope_dims", given.rope_dims, 2, kMostOfADimension);
    problems.between("q_rank", given.q_rank, 1, kMostOfADimension);
    problems.between("output_groups", given.output_groups, 1, kMostOfADimension);
    problems.between("output_rank", given.output_rank, 1, kMostOfADimension);
    problems.between("window", given.window, 1, kMostOfADimension);
    problems.between("expert_count", given.expert_count, 1, kMostOfADimension);
    problems.between("expert_used", given.expert_used, 1, kMostUsedExperts);
    problems.between("expert_shared", given.expert_shared, 0, 1);
    problems.between("expert_width", given.expert_width, 1, kMostOfADimension);
    problems.between("hc_count", given.hc_count, 1, kMostStreams);
    problems.between("sinkhorn_iterations", given.sinkhorn_iterations, 1, kMostSinkhornIterations);
    problems.between("hash_layers", given.hash_layers, 0, given.layer_count);
    problems.between("normalise_weights", given.normalise_weights, 0, 1);
    problems.between("round_trips", given.round_trips, 0, 1);
    problems.require(given.expert_used <= given.expert_count, "expert_used exceeds expert_count");
    problems.require(given.rope_dims % 2 == 0, "rope_dims is odd");
    problems.require(given.rope_dims <= given.head_dim, "rope_dims exceeds head_dim");
    problems.require(given.output_groups == 0 || given.head_count % given.output_groups == 0,
                     "head_count is no multiple of output_groups");
}

void check_numbers(const ds4_shape &given, Problems &problems) {
    problems.positive("rms_epsilon", given.rms_epsilon);
    problems.positive("hc_epsilon", given.hc_epsilon);
    problems.positive("rope_base", given.rope_base);
    problems.positive("expert_scale", given.expert_scale);
}

void check_compression(const ds4_shape &given, Problems &problems) {
    const std::span ratios(given.compress_ratio, given.layer_count);
    bool            any = false;
    bool            indexer = false;
    for (size_t layer = 0; layer < ratios.size(); ++layer) {
        any = any || ratios[layer] != 0;
        indexer = indexer || ratios[layer] == 4;
        if (ratios[layer] > kMostOfADimension) {
            problems.between("compress_ratio of layer " + std::to_string(layer), ratios[layer], 0, kMostOfADimension);
        }
    }
    if (any) {
        problems.positive("compress_rope_base", given.compress_rope_base);
        problems.require(given.compress_rope_base > 1.0f, "compress_rope_base must be above 1");
        problems.positive("yarn_factor", given.yarn_factor);
        problems.positive("yarn_beta_fast", given.yarn_beta_fast);
        problems.positive("yarn_beta_slow", given.yarn_beta_slow);
        problems.between("yarn_original_context", given.yarn_original_context, 1, uint64_t{1} << 40);
    }
    if (indexer) {
        problems.between("indexer_heads", given.indexer_heads, 1, kMostOfADimension);
        problems.between("indexer_dim", given.indexer_dim, 1, kMostOfADimension);
        problems.between("indexer_top_k", given.indexer_top_k, 1, kMostOfADimension);
        problems.require(given.rope_dims <= given.indexer_dim, "rope_dims exceeds indexer_dim");
        const bool power_of_two = (given.indexer_dim & (given.indexer_dim - 1)) == 0;
        problems.require(power_of_two || given.round_trips == 0,
                         "indexer_dim is no power of two, which the Hadamard transform needs");
    }
}

void check_clamps(std::string_view name, std::span<const float> clamps, Problems &problems) {
    for (size_t layer = 0; layer < clamps.size(); ++layer) {
        /* Infinity is a limit, too: none. */
        if (!(clamps[layer] > 0.0f)) {
            problems.add(std::string(name) + " of layer " + std::to_string(layer) + " is " +
                         std::to_string(clamps[layer]) + ", must be above 0");
        }
    }
}

} // namespace

Shape Shape::checked(const ds4_shape &given) {
    Problems problems;
    check_dimensions(given, problems);
    check_numbers(given, problems);
    problems.require(given.compress_ratio != nullptr, "compress_ratio is missing");
    problems.require(given.clamp_routed != nullptr, "clamp_routed is missing");
    problems.require(given.clamp_shared != nullptr, "clamp_shared is missing");
    problems.stop_if_any(); /* before the arrays are read: their length must be believable */
    check_compression(given, problems);
    check_clamps("clamp_routed", {given.clamp_routed, given.layer_count}, problems);
    check_clamps("clamp_shared", {given.clamp_shared, given.layer_count}, problems);
    problems.stop_if_any();

    return {
        .layer_count = given.layer_count,
        .embedding = given.embedding,
        .vocab = given.vocab,
        .head_count = given.head_count,
        .head_dim = given.head_dim,
        .rope_dims = given.rope_dims,
        .q_rank = given.q_rank,
        .output_groups = given.output_groups,
        .output_rank = given.output_rank,
        .window = given.window,
        .indexer_heads = given.indexer_heads,
        .indexer_dim = given.indexer_dim,
        .indexer_top_k = given.indexer_top_k,
        .expert_count = given.expert_count,
        .expert_used = given.expert_used,
        .expert_shared = given.expert_shared,
        .expert_width = given.expert_width,
        .hash_layers = given.hash_layers,
        .hc_count = given.hc_count,
        .sinkhorn_iterations = given.sinkhorn_iterations,
        .normalise_weights = given.normalise_weights != 0,
        .round_trips = given.round_trips != 0,
        .rms_epsilon = given.rms_epsilon,
        .hc_epsilon = given.hc_epsilon,
        .rope_base = given.rope_base,
        .compress_rope_base = given.compress_rope_base,
        .yarn_factor = given.yarn_factor,
        .yarn_beta_fast = given.yarn_beta_fast,
        .yarn_beta_slow = given.yarn_beta_slow,
        .expert_scale = given.expert_scale,
        .yarn_original_context = static_cast<int64_t>(given.yarn_original_context),
        .compress_ratio = {given.compress_ratio, given.compress_ratio + given.layer_count},
        .clamp_routed = {given.clamp_routed, given.clamp_routed + given.layer_count},
        .clamp_shared = {given.clamp_shared, given.clamp_shared + given.layer_count},
    };
}

Slice Slice::checked(const ds4_load_plan &plan, const Shape &shape) {
    if (plan.layer_first > plan.layer_last || plan.layer_last >= shape.layer_count) {
        throw Failure(DS4_E_ARGUMENT, "layers " + std::to_string(plan.layer_first) + " to " +
                                          std::to_string(plan.layer_last) + " are no slice of a model with " +
                                          std::to_string(shape.layer_count) + " layers");
    }
    if (plan.has_embedding > 1 || plan.has_head > 1) {
        throw Failure(DS4_E_ARGUMENT, "has_embedding and has_head must be 0 or 1");
    }
    if (plan.has_embedding == 1 && plan.layer_first != 0) {
        throw Failure(DS4_E_ARGUMENT, "a slice with the embedding must begin at layer 0, not " +
                                          std::to_string(plan.layer_first));
    }
    if (plan.has_head == 1 && plan.layer_last + 1 != shape.layer_count) {
        throw Failure(DS4_E_ARGUMENT, "a slice with the head must end at layer " +
                                          std::to_string(shape.layer_count - 1) + ", not " +
                                          std::to_string(plan.layer_last));
    }
    return {plan.layer_first, plan.layer_last, plan.has_embedding == 1, plan.has_head == 1};
}

} // namespace ds4::model
