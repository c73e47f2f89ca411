#include "model/model.h"

#include <utility>

namespace ds4::model {

Model::Model(backend::Backend backend, Shape shape, Slice slice, const WeightSources &sources,
             std::shared_ptr<runtime::Telemetry> telemetry)
    : telemetry_(std::move(telemetry)), backend_(std::move(backend)), shape_(std::move(shape)), slice_(slice),
      ropes_(shape_), weights_(backend_, shape_, slice_, sources, *telemetry_) {
    /* Mapped weights count as loaded, read or not: there is nothing left to wait for. */
    telemetry_->set(DS4_WORD_BYTES_DONE, store().weight_bytes());
}

} // namespace ds4::model
