/* For tests: ops that tell somebody before each call, who may count, cancel or throw. */
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "backend/ops.h"

namespace ds4::test {

class WatchedOps : public backend::Ops {
public:
    WatchedOps(std::unique_ptr<backend::Ops> real, std::function<void()> before)
        : real_(std::move(real)), before_(std::move(before)) {}

    void embed(const backend::EmbedArgs &args) override { call(&Ops::embed, args); }
    void hc_pre(const backend::HcPreArgs &args) override { call(&Ops::hc_pre, args); }
    void hc_post(const backend::HcPostArgs &args) override { call(&Ops::hc_post, args); }
    void hc_head(const backend::HcHeadArgs &args) override { call(&Ops::hc_head, args); }
    void project(const backend::ProjectArgs &args) override { call(&Ops::project, args); }
    void grouped_project(const backend::GroupedProjectArgs &args) override { call(&Ops::grouped_project, args); }
    void rms_norm(const backend::RmsNormArgs &args) override { call(&Ops::rms_norm, args); }
    void query(const backend::QueryArgs &args) override { call(&Ops::query, args); }
    void window(const backend::WindowArgs &args) override { call(&Ops::window, args); }
    void compress(const backend::CompressArgs &args) override { call(&Ops::compress, args); }
    void indexer_query(const backend::IndexerQueryArgs &args) override { call(&Ops::indexer_query, args); }
    void indexer_select(const backend::IndexerSelectArgs &args) override { call(&Ops::indexer_select, args); }
    void attention(const backend::AttentionArgs &args) override { call(&Ops::attention, args); }
    void route(const backend::RouteArgs &args) override { call(&Ops::route, args); }
    void experts(const backend::ExpertsArgs &args) override { call(&Ops::experts, args); }
    void best(const backend::BestArgs &args) override { call(&Ops::best, args); }
    bool begin_experts(const backend::ExpertsArgs &args) override {
        before_();
        return real_->begin_experts(args);
    }
    bool supports(quant::Type type) const override { return real_->supports(type); }

    bool            begin_step(const backend::Step &step) override { return real_->begin_step(step); }
    void            end_step() override { real_->end_step(); }
    void            abandon_step() noexcept override { real_->abandon_step(); }
    void            pace() override { real_->pace(); }
    void            prepare(const backend::OpsLimits &limits) override { real_->prepare(limits); }
    uint64_t        scratch_bytes(const backend::OpsLimits &limits) const override { return real_->scratch_bytes(limits); }
    backend::Matrix arrange(const backend::Matrix &matrix) override { return real_->arrange(matrix); }

private:
    template <typename Args> void call(void (backend::Ops::*op)(const Args &), const Args &args) {
        before_();
        (real_.get()->*op)(args);
    }

    std::unique_ptr<backend::Ops> real_;
    std::function<void()>         before_;
};

} // namespace ds4::test
