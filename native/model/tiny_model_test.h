/* For tests: a small random model of every kind of layer, made in a temporary file.
 *
 * Layers: 0 window only, hash routed; 1 ratio 4 with indexer; 2 ratio 6, an ordinary window length of no special meaning;
 * 3 ratio 4 again; 4 ratio 32. The window is shorter than any prompt, top-k smaller than the rows there are, so that
 * nothing is left out by being too short. Weights are F32, F16, BF16 and Q8_0 in turn. */
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/ops.h"
#include "model/catalogue.h"
#include "model/model.h"
#include "model/session.h"
#include "runtime/temporary_file_test.h"

namespace ds4::test {

/* Numbers that look random and are the same everywhere. */
class Noise {
public:
    explicit Noise(uint64_t seed) : state_(seed) {}

    uint64_t bits() {
        state_ += 0x9e3779b97f4a7c15u;
        uint64_t z = state_;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
    /* -1 to 1 */
    float value() { return static_cast<float>(static_cast<int64_t>(bits() >> 40) - (1 << 23)) / (1 << 23); }
    int64_t below(int64_t end) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(end)); }

private:
    uint64_t state_;
};

/* A positive normal float as F16, cut off. */
inline uint16_t to_f16(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const int32_t  exponent = static_cast<int32_t>((bits >> 23) & 255u) - 112;
    if (exponent <= 0) {
        return static_cast<uint16_t>(sign);
    }
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(exponent) << 10 | ((bits >> 13) & 1023u));
}

struct TinyOptions {
    bool     round_trips = true;
    uint32_t misalign = 0; /* bytes that each tensor starts after a 32-byte boundary */
};

struct OpenOptions {
    uint32_t                       threads = 1;
    bool                           exact = true;
    int64_t                        first = 0;
    int64_t                        last = 4;
    runtime::WeightPlan            plan = {};
    runtime::ExpertPlan            experts = {};
    std::function<std::unique_ptr<backend::Ops>(std::unique_ptr<backend::Ops>)> wrap = nullptr;
    std::function<backend::Backend(backend::Backend)> replace = nullptr; /* instead of the library's own */
};

class TinyModel {
public:
    explicit TinyModel(TinyOptions options = {}) {
        make_shape(options);
        const model::Shape checked = model::Shape::checked(shape);
        for (const model::ExpectedTensor &tensor : model::expected_tensors(checked, {0, 4, true, true})) {
            add(tensor, checked, options.misalign);
        }
    }

    /* Arguments as a caller would give them; tests change them before opening. */
    ds4_shape               shape{};
    std::vector<ds4_tensor> tensors;
    std::vector<std::byte>  bytes; /* of the weight file */

    ds4_tensor &tensor(uint32_t role, int32_t layer) {
        return *std::find_if(tensors.begin(), tensors.end(), [&](const ds4_tensor &candidate) {
            return candidate.role == role && candidate.layer == layer;
        });
    }
    std::byte *data(uint32_t role, int32_t layer) { return bytes.data() + tensor(role, layer).offset; }

    /* Makes a tensor another valid one: signs turned, or experts of a hash table shifted by one. */
    void turn_around(uint32_t role, int32_t layer) {
        const ds4_tensor        &turned = tensor(role, layer);
        const auto               type = static_cast<quant::Type>(turned.type);
        const quant::BlockLayout block = quant::block_layout(type);
        std::byte *const         to = data(role, layer);
        for (uint64_t at = 0; at < turned.bytes; at += static_cast<uint64_t>(block.bytes)) {
            if (type == quant::Type::i32) {
                to[at] = static_cast<std::byte>((static_cast<uint32_t>(to[at]) + 1) % shape.expert_count);
            } else {
                /* The highest byte of a number, or of a block's scale, has the sign. */
                to[at + (type == quant::Type::f32 ? 3 : 1)] ^= std::byte{0x80};
            }
        }
    }

    /* Writes the bytes to a file, once. */
    const std::string &path() {
        if (!file_) {
            file_ = std::make_unique<TemporaryFile>(bytes);
        }
        return file_->path();
    }

    static ds4_load_plan plan(const OpenOptions &options) {
        ds4_load_plan plan{};
        plan.size = sizeof(plan);
        plan.layer_first = static_cast<uint32_t>(options.first);
        plan.layer_last = static_cast<uint32_t>(options.last);
        plan.has_embedding = options.first == 0;
        plan.has_head = options.last == 4;
        return plan;
    }

    std::shared_ptr<model::Model> open(const OpenOptions &options = {}) {
        backend::Backend backend = backend::open_backend({.threads = options.threads, .exact = options.exact});
        if (options.replace != nullptr) {
            backend = options.replace(std::move(backend));
        }
        if (options.wrap != nullptr) {
            backend.ops = options.wrap(std::move(backend.ops));
        }
        const model::Shape                     checked = model::Shape::checked(shape);
        const model::Slice                     slice = model::Slice::checked(plan(options), checked);
        const std::vector<runtime::WeightFile> files = {{path(), bytes.size()}};
        runtime::WeightPlan                    weights = options.plan;
        if (weights.placement == runtime::WeightPlacement::automatic && !backend.device->reads_host_memory()) {
            weights.placement = runtime::WeightPlacement::resident;
        }
        return std::make_shared<model::Model>(
            std::move(backend), checked, slice,
            model::WeightSources{
                .files = files, .tensors = tensors, .plan = weights, .warm = false, .experts = options.experts},
            telemetry);
    }

    std::shared_ptr<runtime::Telemetry> telemetry = std::make_shared<runtime::Telemetry>();

private:
    void make_shape(const TinyOptions &options) {
        shape.size = sizeof(shape);
        shape.layer_count = 5;
        shape.embedding = 32;
        shape.vocab = 64;
        shape.head_count = 4;
        shape.head_dim = 32;
        shape.rope_dims = 16;
        shape.q_rank = 32;
        shape.output_groups = 2;
        shape.output_rank = 32;
        shape.window = 8;
        shape.indexer_heads = 3;
        shape.indexer_dim = 32;
        shape.indexer_top_k = 5;
        shape.expert_count = 6;
        shape.expert_used = 2;
        shape.expert_shared = 1;
        shape.expert_width = 32;
        shape.hash_layers = 1;
        shape.hc_count = 4;
        shape.sinkhorn_iterations = 20;
        shape.normalise_weights = 1;
        shape.round_trips = options.round_trips ? 1 : 0;
        shape.rms_epsilon = 1e-6f;
        shape.hc_epsilon = 1e-6f;
        shape.rope_base = 10000.0f;
        shape.compress_rope_base = 160000.0f;
        shape.yarn_factor = 16.0f;
        shape.yarn_beta_fast = 32.0f;
        shape.yarn_beta_slow = 1.0f;
        shape.expert_scale = 1.5f;
        shape.yarn_original_context = 65536;
        shape.compress_ratio = ratios_.data();
        shape.clamp_routed = clamps_.data();
        shape.clamp_shared = clamps_.data();
    }

    static quant::Type type_of(const model::ExpectedTensor &tensor, size_t index) {
        if (tensor.kind == model::TensorKind::hash) {
            return quant::Type::i32;
        }
        if (tensor.kind == model::TensorKind::vector) {
            return index % 5 == 0 ? quant::Type::bf16 : quant::Type::f32;
        }
        if (tensor.kind == model::TensorKind::experts) {
            return quant::Type::q8_0;
        }
        constexpr quant::Type types[] = {quant::Type::f16, quant::Type::q8_0, quant::Type::f32, quant::Type::bf16};
        return types[index % 4];
    }

    void add(const model::ExpectedTensor &expected, const model::Shape &checked, uint32_t misalign) {
        const quant::Type        type = type_of(expected, tensors.size());
        const quant::BlockLayout block = quant::block_layout(type);
        const int64_t            values = expected.columns * expected.rows * expected.depth;
        bytes.resize((bytes.size() + 31) / 32 * 32 + misalign);

        ds4_tensor tensor{};
        tensor.size = sizeof(tensor);
        tensor.role = expected.role;
        tensor.layer = static_cast<int32_t>(expected.layer);
        tensor.type = static_cast<uint32_t>(type);
        tensor.dim_count = expected.depth > 1 ? 3 : expected.rows > 1 ? 2 : 1;
        tensor.dims[0] = static_cast<uint64_t>(expected.columns);
        tensor.dims[1] = static_cast<uint64_t>(expected.rows);
        tensor.dims[2] = static_cast<uint64_t>(expected.depth);
        tensor.dims[3] = 1;
        tensor.offset = bytes.size();
        tensor.bytes = static_cast<uint64_t>(values / block.values * block.bytes);
        bytes.resize(tensor.offset + tensor.bytes);
        fill(expected, type, bytes.data() + tensor.offset, values, checked);
        tensors.push_back(tensor);
    }

    /* Matrices of a size that keeps activations near 1, norm weights near 1, everything else up to 1. */
    void fill(const model::ExpectedTensor &expected, quant::Type type, std::byte *to, int64_t values,
              const model::Shape &checked) {
        if (expected.kind == model::TensorKind::hash) {
            for (int64_t row = 0; row < expected.rows; ++row) {
                const auto first = static_cast<int32_t>(noise_.below(checked.expert_count));
                const auto step = 1 + static_cast<int32_t>(noise_.below(checked.expert_count - 1));
                const int32_t ids[2] = {first, (first + step) % static_cast<int32_t>(checked.expert_count)};
                std::memcpy(to + row * 8, ids, sizeof(ids));
            }
            return;
        }
        const bool  vector = expected.kind == model::TensorKind::vector;
        const bool  norm = vector && expected.columns >= 32;
        const float scale = vector ? 0.5f : 2.0f / std::sqrt(static_cast<float>(expected.columns));
        const auto  next = [&] { return (norm ? 1.0f : 0.0f) + scale * noise_.value(); };
        for (int64_t i = 0; i < values; ++i) {
            put(type, to, i, next());
        }
    }

    void put(quant::Type type, std::byte *to, int64_t index, float value) {
        const auto write = [&](int64_t at, auto number) { std::memcpy(to + at, &number, sizeof(number)); };
        switch (type) {
        case quant::Type::f32: write(index * 4, value); return;
        case quant::Type::f16: write(index * 2, to_f16(value)); return;
        case quant::Type::bf16: write(index * 2, static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16)); return;
        default: break;
        }
        /* Q8_0: a scale of 1/256 fits every value that fill makes. */
        const int64_t block = index / 32 * 34;
        write(block, to_f16(1.0f / 256.0f));
        write(block + 2 + index % 32, static_cast<int8_t>(std::clamp(value * 256.0f, -127.0f, 127.0f)));
    }

    std::vector<uint32_t>          ratios_ = {0, 4, 6, 4, 32};
    std::vector<float>             clamps_ = std::vector<float>(5, 1.0f);
    Noise                          noise_{42};
    std::unique_ptr<TemporaryFile> file_;
};

/* Token ids that look random. */
inline std::vector<int32_t> tiny_tokens(size_t count, uint64_t seed = 7) {
    Noise                noise(seed);
    std::vector<int32_t> tokens(count);
    for (int32_t &token : tokens) {
        token = static_cast<int32_t>(noise.below(64));
    }
    return tokens;
}

constexpr size_t kTinyVocab = 64;

/* Evaluates tokens[first, end) in chunks; the logits of every one of them. */
inline std::vector<float> run(model::Session &session, std::span<const int32_t> tokens, size_t chunk) {
    std::vector<float> logits(tokens.size() * kTinyVocab);
    for (size_t done = 0; done < tokens.size();) {
        const size_t       count = std::min(chunk, tokens.size() - done);
        model::EvalRequest request{};
        request.tokens = tokens.subspan(done, count);
        request.position = session.position();
        request.logits = logits.data() + done * kTinyVocab;
        request.logits_rows = static_cast<int64_t>(count);
        session.eval(request);
        done += count;
    }
    return logits;
}

/* Bit for bit, so that -0 and NaN are no way around it. */
inline bool same_bits(std::span<const float> a, std::span<const float> b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

} // namespace ds4::test
