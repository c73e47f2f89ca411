#include "model/weights.h"

#include <algorithm>

#include "failure.h"
#include "model/check_values.h"
#include "model/hash_table.h"
#include "quant/dequantise.h"
#include "runtime/carver.h"

namespace ds4::model {

namespace {

uint64_t value_count(const ExpectedTensor &tensor) {
    return static_cast<uint64_t>(tensor.columns) * static_cast<uint64_t>(tensor.rows);
}

int64_t row_bytes(quant::Type type, int64_t columns) {
    const quant::BlockLayout block = quant::block_layout(type);
    return columns / block.values * block.bytes;
}

runtime::WeightUse use_of(const ExpectedTensor &tensor, bool paging) {
    switch (tensor.kind) {
    case TensorKind::vector:
    case TensorKind::hash:
        return runtime::WeightUse::host;
    case TensorKind::experts:
        return runtime::WeightUse::routed_experts;
    case TensorKind::matrix:
        break;
    }
    if (tensor.role == DS4_ROLE_TOKEN_EMBEDDING) {
        return runtime::WeightUse::rows;
    }
    return paging && tensor.layer >= 0 ? runtime::WeightUse::paged : runtime::WeightUse::kernels;
}

/* Several pieces of an expert are read at a time, each by another thread; a piece should be large enough for a drive's full
 * rate, and its buffer small enough that all of them together do not matter. */
constexpr uint64_t kMostFetchBytes = 4u << 20;

runtime::WeightStore load(backend::Backend &backend, std::span<const ExpectedTensor> expected,
                          const WeightSources &sources, std::vector<quant::Type> &types,
                          runtime::Telemetry &telemetry) {
    std::vector<runtime::WeightRange> ranges;
    const std::vector<size_t>         matched = match_tensors(expected, sources.tensors, *backend.ops);
    for (size_t i = 0; i < matched.size(); ++i) {
        const ds4_tensor &tensor = sources.tensors[matched[i]];
        types.push_back(static_cast<quant::Type>(tensor.type));
        ranges.push_back({tensor.file, tensor.offset, tensor.bytes, tensor_name(expected[i].role, expected[i].layer),
                          use_of(expected[i], sources.page_slots > 0)});
    }
    return {*backend.device, sources.files, ranges, sources.plan, telemetry};
}

/* Whether a matrix is only ever multiplied by vectors. The others are read row by row or value by value, or by kernels of
 * their own that know the order of the file. */
bool may_be_arranged(const ExpectedTensor &tensor) {
    switch (tensor.role) {
    case DS4_ROLE_TOKEN_EMBEDDING:
    case DS4_ROLE_COMPRESSOR_APE:
    case DS4_ROLE_INDEXER_COMPRESSOR_APE:
    case DS4_ROLE_HC_ATTN_FN:
    case DS4_ROLE_HC_FFN_FN:
    case DS4_ROLE_OUTPUT_HC_FN:
        return false;
    default:
        return tensor.kind == TensorKind::matrix;
    }
}

} // namespace

Weights::Weights(backend::Backend &backend, const Shape &shape, const Slice &slice, const WeightSources &sources,
                 runtime::Telemetry &telemetry)
    : first_(slice.first), upload_(sources.plan.upload), expected_(expected_tensors(shape, slice)),
      store_(load(backend, expected_, sources, types_, telemetry)) {
    if (upload_.compare) {
        check_values(store_, expected_, types_, telemetry);
    }
    copy_small(*backend.device, shape, sources, telemetry);
    if (sources.page_slots > 0 || sources.plan.placement == runtime::WeightPlacement::stream_experts) {
        const runtime::LoadStep step(telemetry, DS4_STEP_READERS);
        queue_ = std::make_unique<runtime::FetchQueue>(*backend.device, sources.read_threads, kMostFetchBytes, telemetry);
        if (upload_.compare) {
            queue_->compare_copies();
        }
    }
    if (sources.page_slots > 0) {
        open_pager(*backend.device, slice, sources.page_slots, telemetry);
    }
    bind_matrices(*backend.ops, telemetry);
    if (slice.embedding) {
        embedding_ = matrix(DS4_ROLE_TOKEN_EMBEDDING, -1);
    }
    for (int64_t layer = slice.first; layer <= slice.last; ++layer) {
        layers_.push_back(bind_layer(shape, layer));
    }
    if (slice.head) {
        head_.hc = bind_hyper_connection(DS4_ROLE_OUTPUT_HC_FN, DS4_ROLE_OUTPUT_HC_BASE, DS4_ROLE_OUTPUT_HC_SCALE, -1);
        head_.norm = vector(DS4_ROLE_OUTPUT_NORM, -1);
        head_.output = matrix(DS4_ROLE_OUTPUT, -1);
    }
    place_experts(*backend.device, shape, slice, sources, telemetry);
    if (sources.warm) {
        store_.warm(telemetry);
    }
    store_.check_files(); /* slots may have been filled from a mapping */
}

void Weights::copy_small(backend::Device &device, const Shape &shape, const WeightSources &sources,
                         runtime::Telemetry &telemetry) {
    const runtime::LoadStep step(telemetry, DS4_STEP_WEIGHTS);
    copies_.resize(expected_.size());
    hash_tables_.resize(expected_.size());
    const auto place = [&](runtime::Carver carver) {
        for (size_t i = 0; i < expected_.size(); ++i) {
            if (expected_[i].kind == TensorKind::vector || expected_[i].kind == TensorKind::hash) {
                static_assert(sizeof(float) == sizeof(int32_t));
                copies_[i] = reinterpret_cast<const std::byte *>(carver.take<float>(value_count(expected_[i])));
            }
        }
        return carver.bytes();
    };
    small_ = device.allocate(place(runtime::Carver()), "norms and routing tables");
    place(runtime::Carver(small_.as<std::byte>()));

    /* Put together on the host, so that one copy brings all of them. */
    std::vector<std::byte> host(small_.bytes());
    std::vector<std::byte> raw;
    for (size_t i = 0; i < expected_.size(); ++i) {
        if (copies_[i] == nullptr) {
            continue;
        }
        std::byte *const to = host.data() + (copies_[i] - small_.as<std::byte>());
        const size_t     values = value_count(expected_[i]);
        raw.resize(values * sizeof(float)); /* no type that is allowed here is wider */
        store_.read(i, raw);
        if (expected_[i].kind == TensorKind::vector) {
            quant::dequantise_row(types_[i], raw.data(), expected_[i].columns, reinterpret_cast<float *>(to));
        } else {
            const std::span<int32_t> table(reinterpret_cast<int32_t *>(to), values);
            copy_hash_table(raw.data(), table, expected_[i].columns, shape.expert_count,
                            tensor_name(expected_[i].role, expected_[i].layer));
            if (sources.plan.placement == runtime::WeightPlacement::stream_experts) {
                hash_tables_[i].assign(table.begin(), table.end());
            }
        }
    }
    device.copy_in(small_.as<void>(), host.data(), host.size());
    if (upload_.compare) {
        std::vector<std::byte> got(host.size());
        device.copy_out(got.data(), small_.as<void>(), got.size());
        if (got != host) {
            throw Failure(DS4_E_DEVICE, "norms and routing tables differ in memory for " + device.info().name +
                                            " from those that were copied there");
        }
    }
}

/* A page is what the layer's ops read as it is in the file, in the order of the catalogue. */
void Weights::open_pager(backend::Device &device, const Slice &slice, uint32_t slots, runtime::Telemetry &telemetry) {
    std::vector<std::vector<runtime::PagePart>> pages(static_cast<size_t>(slice.layers()));
    for (size_t i = 0; i < expected_.size(); ++i) {
        if (use_of(expected_[i], true) == runtime::WeightUse::paged) {
            const uint64_t bytes = static_cast<uint64_t>(expected_[i].rows) *
                                   static_cast<uint64_t>(row_bytes(types_[i], expected_[i].columns));
            pages[static_cast<size_t>(expected_[i].layer - first_)].push_back({&store_.source(i), store_.offset(i), bytes});
        }
    }
    const runtime::LoadStep step(telemetry, DS4_STEP_PAGES);
    pager_ = std::make_unique<runtime::WeightPager>(device, *queue_, pages, slots, telemetry);
}

const std::byte *Weights::address(size_t tensor) const {
    const ExpectedTensor &wanted = expected_[tensor];
    if (pager_ == nullptr || use_of(wanted, true) != runtime::WeightUse::paged) {
        return store_.address(tensor);
    }
    size_t part = 0;
    for (size_t i = 0; i < tensor; ++i) {
        part += expected_[i].layer == wanted.layer && use_of(expected_[i], true) == runtime::WeightUse::paged ? 1 : 0;
    }
    return pager_->address(static_cast<size_t>(wanted.layer - first_), part);
}

void Weights::bind_matrices(backend::Ops &ops, runtime::Telemetry &telemetry) {
    const runtime::LoadStep step(telemetry, DS4_STEP_WEIGHTS);
    matrices_.resize(expected_.size());
    for (size_t i = 0; i < expected_.size(); ++i) {
        const ExpectedTensor &tensor = expected_[i];
        if (copies_[i] != nullptr) {
            continue;
        }
        matrices_[i] = {.type = types_[i],
                        .layout = backend::RowLayout::file,
                        .rows = tensor.rows,
                        .columns = tensor.columns,
                        .row_bytes = row_bytes(types_[i], tensor.columns),
                        .data = address(i)};
        if (may_be_arranged(tensor) && store_.owned_by_device(i)) {
            matrices_[i] = ops.arrange(matrices_[i]);
        }
    }
}

size_t Weights::find(uint32_t role, int64_t layer) const {
    const auto found = std::find_if(expected_.begin(), expected_.end(), [&](const ExpectedTensor &tensor) {
        return tensor.role == role && tensor.layer == layer;
    });
    if (found == expected_.end()) {
        throw Failure(DS4_E_INTERNAL, "the catalogue has no " + tensor_name(role, layer));
    }
    return static_cast<size_t>(found - expected_.begin());
}

const float *Weights::vector(uint32_t role, int64_t layer) const {
    return reinterpret_cast<const float *>(copies_[find(role, layer)]);
}

const int32_t *Weights::hash(uint32_t role, int64_t layer) const {
    return reinterpret_cast<const int32_t *>(copies_[find(role, layer)]);
}

HyperConnectionWeights Weights::bind_hyper_connection(uint32_t fn, uint32_t base, uint32_t scale, int64_t layer) const {
    return {matrix(fn, layer), vector(base, layer), vector(scale, layer)};
}

LayerWeights Weights::bind_layer(const Shape &shape, int64_t layer) const {
    LayerWeights bound;
    bound.hc_attn =
        bind_hyper_connection(DS4_ROLE_HC_ATTN_FN, DS4_ROLE_HC_ATTN_BASE, DS4_ROLE_HC_ATTN_SCALE, layer);
    bound.attn_norm = vector(DS4_ROLE_ATTN_NORM, layer);
    bound.q_a = matrix(DS4_ROLE_ATTN_Q_A, layer);
    bound.q_a_norm = vector(DS4_ROLE_ATTN_Q_A_NORM, layer);
    bound.q_b = matrix(DS4_ROLE_ATTN_Q_B, layer);
    bound.kv = matrix(DS4_ROLE_ATTN_KV, layer);
    bound.kv_norm = vector(DS4_ROLE_ATTN_KV_A_NORM, layer);
    bound.sinks = vector(DS4_ROLE_ATTN_SINKS, layer);
    bound.output_a = matrix(DS4_ROLE_ATTN_OUTPUT_A, layer);
    bound.output_b = matrix(DS4_ROLE_ATTN_OUTPUT_B, layer);

    if (shape.ratio(layer) != 0) {
        bound.compressor = {matrix(DS4_ROLE_COMPRESSOR_KV, layer), matrix(DS4_ROLE_COMPRESSOR_GATE, layer),
                            matrix(DS4_ROLE_COMPRESSOR_APE, layer), vector(DS4_ROLE_COMPRESSOR_NORM, layer)};
    }
    if (shape.has_indexer(layer)) {
        bound.indexer_compressor = {
            matrix(DS4_ROLE_INDEXER_COMPRESSOR_KV, layer), matrix(DS4_ROLE_INDEXER_COMPRESSOR_GATE, layer),
            matrix(DS4_ROLE_INDEXER_COMPRESSOR_APE, layer), vector(DS4_ROLE_INDEXER_COMPRESSOR_NORM, layer)};
        bound.indexer_q_b = matrix(DS4_ROLE_INDEXER_Q_B, layer);
        bound.indexer_proj = matrix(DS4_ROLE_INDEXER_PROJ, layer);
    }

    bound.hc_ffn = bind_hyper_connection(DS4_ROLE_HC_FFN_FN, DS4_ROLE_HC_FFN_BASE, DS4_ROLE_HC_FFN_SCALE, layer);
    bound.ffn_norm = vector(DS4_ROLE_FFN_NORM, layer);
    bound.router = matrix(DS4_ROLE_ROUTER, layer);
    if (shape.routes_by_hash(layer)) {
        bound.router_hash = hash(DS4_ROLE_ROUTER_HASH, layer);
        bound.router_hash_here = hash_tables_[find(DS4_ROLE_ROUTER_HASH, layer)];
    } else {
        bound.router_bias = vector(DS4_ROLE_ROUTER_BIAS, layer);
    }
    bound.gate_up_type = types_[find(DS4_ROLE_EXPERT_GATE, layer)];
    bound.down_type = types_[find(DS4_ROLE_EXPERT_DOWN, layer)];
    if (shape.expert_shared > 0) {
        bound.shared_gate = matrix(DS4_ROLE_SHARED_GATE, layer);
        bound.shared_up = matrix(DS4_ROLE_SHARED_UP, layer);
        bound.shared_down = matrix(DS4_ROLE_SHARED_DOWN, layer);
    }
    return bound;
}

void Weights::place_experts(backend::Device &device, const Shape &shape, const Slice &slice, const WeightSources &sources,
                            runtime::Telemetry &telemetry) {
    std::vector<runtime::ExpertLayer> layers;
    for (int64_t layer = slice.first; layer <= slice.last; ++layer) {
        runtime::ExpertLayer &matrices = layers.emplace_back();
        size_t                part = 0;
        for (const uint32_t role : {DS4_ROLE_EXPERT_GATE, DS4_ROLE_EXPERT_UP, DS4_ROLE_EXPERT_DOWN}) {
            const size_t           tensor = find(role, layer);
            const backend::Matrix &first = matrices_[tensor];
            matrices[part++] = {&store_.source(tensor), store_.offset(tensor),
                                static_cast<uint64_t>(first.rows) * static_cast<uint64_t>(first.row_bytes), first.data,
                                store_.pinned_address(tensor)};
        }
    }
    const runtime::LoadStep step(telemetry, DS4_STEP_SLOTS);
    experts_ = std::make_unique<runtime::ExpertStore>(device, queue_.get(), layers, static_cast<size_t>(shape.expert_count),
                                                      static_cast<size_t>(shape.expert_used), sources.experts, telemetry);
    if (!sources.leave_slots) {
        experts_->fill_slots(upload_);
    }
}

} // namespace ds4::model
