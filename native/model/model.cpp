#include "model/model.h"

#include <string>
#include <utility>

#include "failure.h"

namespace ds4::model {

Model::Model(backend::Backend backend, Shape shape, Slice slice, const WeightSources &sources,
             std::shared_ptr<runtime::Telemetry> telemetry)
    : telemetry_(std::move(telemetry)), backend_(std::move(backend)), shape_(std::move(shape)), slice_(slice),
      ropes_(shape_), weights_(backend_, shape_, slice_, sources, *telemetry_) {
    /* Mapped weights count as loaded, read or not: there is nothing left to wait for. */
    telemetry_->set(DS4_WORD_BYTES_DONE, store().weight_bytes());
    note_free_memory();
}

void Model::note_free_memory() const {
    const backend::Device &device = *backend_.device;
    if (device.reads_host_memory()) {
        return;
    }
    try {
        const uint64_t least = telemetry_->get(DS4_WORD_DEVICE_LEAST_FREE_BYTES);
        const uint64_t now = device.info().free_bytes;
        if (now != 0 && (least == 0 || now < least)) {
            telemetry_->set(DS4_WORD_DEVICE_LEAST_FREE_BYTES, now);
        }
    } catch (const Failure &) {
        /* Whoever needs the device next will say what is wrong with it. */
    }
}

size_t Model::seed_experts(std::span<const runtime::ExpertId> wanted) {
    const auto                     first = static_cast<uint32_t>(slice_.first);
    std::vector<runtime::ExpertId> ids;
    for (const auto &[layer, expert] : wanted) {
        if (layer < slice_.first || layer > slice_.last) {
            throw Failure(DS4_E_ARGUMENT, "cannot seed an expert of layer " + std::to_string(layer) +
                                              ": this slice has the layers " + std::to_string(slice_.first) + " to " +
                                              std::to_string(slice_.last));
        }
        ids.push_back({layer - first, expert});
    }
    const runtime::PhaseScope phase(*telemetry_, DS4_PHASE_LOAD);
    telemetry_->set(DS4_WORD_LOAD_STEP, DS4_STEP_OTHER);
    const runtime::LoadStep   step(*telemetry_, DS4_STEP_SLOTS);
    telemetry_->set(DS4_WORD_BYTES_DONE, 0);
    telemetry_->set(DS4_WORD_BYTES_TOTAL, 0);
    telemetry_->poll_cancel("reading experts ahead of time");
    return weights_.seed_experts(ids);
}

std::vector<runtime::ExpertUse> Model::expert_uses() const {
    std::vector<runtime::ExpertUse> uses = weights_.experts().uses();
    for (runtime::ExpertUse &use : uses) {
        use.id.layer += static_cast<uint32_t>(slice_.first);
    }
    return uses;
}

} // namespace ds4::model
