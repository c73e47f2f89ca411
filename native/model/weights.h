/* The tensors of a slice as the graph uses them: matrices where the weight store has them, in the order of their bytes that
 * the backend likes best if they are its own; small vectors and hash tables as copies in the form that kernels read. */
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/ops.h"
#include "model/catalogue.h"
#include "model/shape.h"
#include "runtime/expert_store.h"
#include "runtime/fetch_queue.h"
#include "runtime/telemetry.h"
#include "runtime/weight_pager.h"
#include "runtime/weight_store.h"

namespace ds4::model {

struct HyperConnectionWeights {
    backend::Matrix fn;
    const float    *base = nullptr;
    const float    *scale = nullptr;
};

struct CompressorWeights {
    backend::Matrix kv;
    backend::Matrix gate;
    backend::Matrix ape;
    const float    *norm = nullptr;
};

struct LayerWeights {
    HyperConnectionWeights hc_attn;
    const float           *attn_norm = nullptr;
    backend::Matrix        q_a;
    const float           *q_a_norm = nullptr;
    backend::Matrix        q_b;
    backend::Matrix        kv;
    const float           *kv_norm = nullptr;
    const float           *sinks = nullptr;
    backend::Matrix        output_a;
    backend::Matrix        output_b;

    CompressorWeights compressor; /* layers with a ratio */
    CompressorWeights indexer_compressor;
    backend::Matrix   indexer_q_b; /* ratio 4 */
    backend::Matrix   indexer_proj;

    HyperConnectionWeights hc_ffn;
    const float           *ffn_norm = nullptr;
    backend::Matrix        router;
    const float           *router_bias = nullptr; /* [experts], layers that route by score */
    const int32_t         *router_hash = nullptr; /* [vocab, used], layers that route by token id */
    std::span<const int32_t> router_hash_here;    /* the same for the host, when experts are streamed */
    quant::Type            gate_up_type = quant::Type::f32;
    quant::Type            down_type = quant::Type::f32;
    backend::Matrix        shared_gate; /* with a shared expert */
    backend::Matrix        shared_up;
    backend::Matrix        shared_down;
};

struct HeadWeights {
    HyperConnectionWeights hc;
    const float           *norm = nullptr;
    backend::Matrix        output;
};

struct WeightSources {
    std::span<const runtime::WeightFile> files;
    std::span<const ds4_tensor>          tensors;
    runtime::WeightPlan                  plan;
    bool                                 warm;
    runtime::ExpertPlan                  experts = {};
    uint32_t                             page_slots = 0;   /* 0: no paging */
    uint32_t                             read_threads = 0; /* of streaming and paging; 0: as many as help */
    bool                                 leave_slots = false; /* experts in the mapping: until seed_experts */
};

class Weights {
public:
    /* Finds, checks and loads everything the slice needs; failures as match_tensors and WeightStore say. */
    Weights(backend::Backend &backend, const Shape &shape, const Slice &slice, const WeightSources &sources,
            runtime::Telemetry &telemetry);

    const backend::Matrix         &embedding() const { return embedding_; }
    const HeadWeights             &head() const { return head_; }
    const LayerWeights            &layer(int64_t layer) const { return layers_[static_cast<size_t>(layer - first_)]; }
    /* They move while the model is used; which layer of them is meant is counted from the first of the slice. */
    runtime::ExpertStore       &experts() const { return *experts_; }
    /* As ExpertStore::seed, read in the way in which the weights were. */
    size_t seed_experts(std::span<const runtime::ExpertId> wanted) { return experts_->seed(wanted, upload_); }
    /* nullptr without paging. Pages are layers, counted likewise. */
    runtime::WeightPager       *pager() const { return pager_.get(); }
    const runtime::WeightStore &store() const { return store_; }

private:
    size_t                 find(uint32_t role, int64_t layer) const;
    const backend::Matrix &matrix(uint32_t role, int64_t layer) const { return matrices_[find(role, layer)]; }
    const float           *vector(uint32_t role, int64_t layer) const;
    const int32_t         *hash(uint32_t role, int64_t layer) const;

    void                   copy_small(backend::Device &device, const Shape &shape, const WeightSources &sources,
                                      runtime::Telemetry &telemetry);
    void                   bind_matrices(backend::Ops &ops, runtime::Telemetry &telemetry);
    LayerWeights           bind_layer(const Shape &shape, int64_t layer) const;
    HyperConnectionWeights bind_hyper_connection(uint32_t fn, uint32_t base, uint32_t scale, int64_t layer) const;
    void                   open_pager(backend::Device &device, const Slice &slice, uint32_t slots, runtime::Telemetry &telemetry);
    const std::byte       *address(size_t tensor) const;
    void place_experts(backend::Device &device, const Shape &shape, const Slice &slice, const WeightSources &sources,
                       runtime::Telemetry &telemetry);

    int64_t                      first_;
    runtime::UploadOptions       upload_;
    std::vector<ExpectedTensor>  expected_;
    std::vector<quant::Type>     types_; /* of expected_ */
    runtime::WeightStore         store_;
    backend::Allocation          small_;
    std::vector<const std::byte *> copies_; /* of expected_: in small_, or nullptr */
    std::vector<std::vector<int32_t>> hash_tables_; /* of expected_: copies for the host, or empty */
    std::vector<backend::Matrix> matrices_; /* of expected_, where it is one; of experts, the first */
    backend::Matrix              embedding_;
    HeadWeights                  head_;
    std::vector<LayerWeights>    layers_;
    std::unique_ptr<runtime::FetchQueue>  queue_;
    std::unique_ptr<runtime::WeightPager> pager_;
    std::unique_ptr<runtime::ExpertStore> experts_;
};

} // namespace ds4::model
