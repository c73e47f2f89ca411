/* A loaded slice of a model on one backend. */
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/ops.h"
#include "model/graph.h"
#include "model/rope_tables.h"
#include "model/shape.h"
#include "model/weights.h"
#include "runtime/telemetry.h"

namespace ds4::model {

class Model {
public:
    Model(backend::Backend backend, Shape shape, Slice slice, const WeightSources &sources,
          std::shared_ptr<runtime::Telemetry> telemetry);
    Model(const Model &) = delete;
    Model &operator=(const Model &) = delete;

    const Shape                &shape() const { return shape_; }
    const Slice                &slice() const { return slice_; }
    const backend::Backend     &backend() const { return backend_; }
    const runtime::WeightStore &store() const { return weights_.store(); }
    /* Whether two steps of the same shape issue the same calls: not when weights come and go. */
    bool steps_repeat() const { return !weights_.experts().streams() && weights_.pager() == nullptr; }
    runtime::Telemetry         &telemetry() const { return *telemetry_; }
    Graph                       graph() const { return {shape_, slice_, weights_, ropes_, *telemetry_}; }

    /* Keeps the least of what the device says it has free, for the telemetry. */
    void note_free_memory() const;

    /* As ExpertStore has them, with layers counted from the first of the model. Seeding shows the load's phase and bytes.
     * Throws Failure(DS4_E_ARGUMENT) for a layer outside the slice. */
    size_t                          seed_experts(std::span<const runtime::ExpertId> wanted);
    std::vector<runtime::ExpertUse> expert_uses() const;

private:
    std::shared_ptr<runtime::Telemetry> telemetry_;
    backend::Backend                    backend_;
    Shape                               shape_;
    Slice                               slice_;
    RopeTables                          ropes_;
    Weights                             weights_;
};

} // namespace ds4::model
