/* The arithmetic of a simulated device: the CPU's, on memory that it finds behind the device's addresses. An op that is given
 * an address the device does not have fails with DS4_E_DEVICE before it touches anything. */
#pragma once

#include <optional>
#include <vector>

#include "backend/cpu/cpu_ops.h"
#include "backend/sim/sim_device.h"
#include "backend/sim/translation.h"

namespace ds4::backend::sim {

class SimOps final : public Ops {
public:
    SimOps(const SimDevice &device, std::unique_ptr<cpu::CpuOps> real) : device_(device), real_(std::move(real)) {}

    uint32_t threads() const { return real_->threads(); }

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
    void best(const BestArgs &args) override;
    bool begin_experts(const ExpertsArgs &args) override;

    bool begin_step(const Step &step) override;
    void end_step() override;
    void abandon_step() noexcept override;
    void pace() override;

    void     prepare(const OpsLimits &limits) override { real_->prepare(limits); }
    uint64_t scratch_bytes(const OpsLimits &limits) const override { return real_->scratch_bytes(limits); }
    Matrix   arrange(const Matrix &matrix) override;
    bool     supports(quant::Type type) const override { return real_->supports(type); }

private:
    /* What begin_experts was given and saw, until experts() ends it. */
    struct Begun {
        ExpertsArgs       args;
        std::vector<bool> present; /* [experts] */
    };

    /* Throws Failure(DS4_E_DEVICE) when experts() must be called next, and `op` is another. */
    Translation start(const char *op) const;

    /* Translates all but the table. Marks the experts that the ids choose. */
    void translate_experts(Translation &to, ExpertsArgs &args);
    /* A copy of the table in which the chosen entries are translated and the others are null. */
    enum class Missing { fails, stays_null };
    void translate_table(Translation &to, const char *name, const ExpertsArgs &args, const ExpertAddress *&table,
                         std::vector<ExpertAddress> &copy, Missing missing);
    void check_begun(Translation &to, const ExpertsArgs &args) const;

    const SimDevice             &device_;
    std::unique_ptr<cpu::CpuOps> real_;
    std::optional<Begun>         begun_;

    /* of the present op */
    std::vector<Projection>    projections_;
    std::vector<bool>          chosen_; /* [experts] */
    std::vector<ExpertAddress> table_;
    std::vector<ExpertAddress> begun_table_;
};

} // namespace ds4::backend::sim
