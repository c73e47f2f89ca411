/* The arithmetic of ops.h on a GPU. Each operation is in the file of its name, with its kernels. */
#pragma once

#include <cstdint>
#include <map>
#include <span>

#include "backend/gpu/gpu_device.h"
#include "backend/gpu/launch.h"
#include "backend/ops.h"

namespace ds4::backend::gpu {

/* What changes from step to step, in device memory, so that a recorded step can run again. */
struct StepState {
    uint64_t position;
};

/* Where a kernel finds the position of its batch's first token. */
struct Position {
    const StepState *step;
    int64_t          offset;
};
DS4_DEVICE uint64_t position_of(Position at) { return at.step->position + static_cast<uint64_t>(at.offset); }

/* Rotation frequencies by value: a kernel's parameters are as near as registers. */
struct RopeTable {
    static constexpr int64_t kMostPairs = 64;
    float   frequency[kMostPairs];
    int32_t pairs;
};

enum class Turn : uint8_t; /* experts.h */

class GpuOps final : public Ops {
public:
    /* With `exact`, weights of every type are expanded to float32 and meet float32 activations. Otherwise quantised
     * weights meet 8-bit activations, rounded as quant/activation.h says, as on the CPU. */
    GpuOps(GpuDevice &device, bool exact);
    ~GpuOps() override;

    void embed(const EmbedArgs &args) override;
    void hc_pre(const HcPreArgs &args) override;
    void hc_post(const HcPostArgs &args) override;
    void hc_head(const HcHeadArgs &args) override;
    void project(const ProjectArgs &args) override;
    void grouped_project(const GroupedProjectArgs &args) override;
    void rms_norm(const RmsNormArgs &args) override;
    void query(const QueryArgs &args) override;
    void window(const WindowArgs &args) override;
    void compress(const CompressArgs &args) override;
    void indexer_query(const IndexerQueryArgs &args) override;
    void indexer_select(const IndexerSelectArgs &args) override;
    void attention(const AttentionArgs &args) override;
    void route(const RouteArgs &args) override;
    void experts(const ExpertsArgs &args) override;
    bool begin_experts(const ExpertsArgs &args) override;
    void best(const BestArgs &args) override;
    bool supports(quant::Type type) const override;

    bool     begin_step(const Step &step) override;
    void     end_step() override;
    void     abandon_step() noexcept override;
    void     pace() override;
    void     prepare(const OpsLimits &limits) override;
    uint64_t scratch_bytes(const OpsLimits &limits) const override;
    Matrix   arrange(const Matrix &matrix) override;

private:
    /* For a kernel that handles a batch at `position`. */
    Position at(uint64_t position) const;
    /* The device's copy of token ids of the step, or of any host array. */
    const int32_t *device_tokens(const int32_t *host, int64_t count);
    /* Throws Failure(DS4_E_UNSUPPORTED) for more pairs than a table holds. */
    static RopeTable rope_table(const Rope &rope);

    /* Device memory for one op's intermediates, 256-byte aligned, valid until the next op of the same stream asks. Grows;
     * what prepare reserved never has to. */
    std::byte *scratch(size_t bytes);
    /* The same, for activations in 8 bits (products.h), which other intermediates must not share. */
    std::byte *activation_scratch(size_t bytes);

    bool recording() const { return recording_; }

    /* What a step brings, in pinned memory and on the device: StepState, then token ids. */
    struct Staging {
        std::byte *data = nullptr;
        gpuEvent_t read = nullptr; /* the device has fetched it */
    };

    /* Whose inner values begin_experts has left in the scratch memories, until someone else asks for one. */
    struct BegunExperts {
        const int32_t *ids = nullptr;
        int64_t        tokens = 0;
    };

    void       run_experts(const ExpertsArgs &args, Turn turn);
    void       reserve_tokens(size_t count);
    void       upload_step();
    std::byte *grown(Allocation &allocation, size_t bytes, const char *what);
    void       forget_recorded() noexcept;
    void       free_all() noexcept;

    GpuDevice     &device_;
    bool           exact_;
    Stream         stream_; /* the device's; early_start as the card allows */
    Allocation     step_memory_; /* the step's StepState, one at position 0, token ids */
    size_t         token_capacity_ = 0;
    Allocation     other_tokens_; /* ids that are not of a step */
    Allocation     scratch_;
    Allocation     activation_scratch_;
    BegunExperts   begun_experts_;
    Staging        staging_[2];
    unsigned       steps_ = 0;
    Step           step_{};
    bool           in_step_ = false;
    bool           recording_ = false;
    gpuEvent_t     paced_[2] = {};
    unsigned       layers_issued_ = 0;
    std::map<uint64_t, gpuGraphExec_t> recorded_; /* by Step::shape; nullptr: seen once, not recorded yet */
};

/* Bytes of scratch each op needs at most; the largest is reserved. Beside each op. */
size_t hc_scratch(const OpsLimits &limits);
size_t compress_scratch(const OpsLimits &limits);
size_t indexer_scratch(const OpsLimits &limits);
size_t attention_scratch(const OpsLimits &limits);
size_t project_scratch(const OpsLimits &limits);
size_t project_activation_scratch(const OpsLimits &limits);
size_t experts_scratch(const OpsLimits &limits);
size_t experts_activation_scratch(const OpsLimits &limits);
size_t route_scratch(const OpsLimits &limits);
size_t best_scratch(const OpsLimits &limits);

} // namespace ds4::backend::gpu
