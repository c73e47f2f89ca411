/* The address of every routed expert. Kernels find experts only through this table, so where an expert lives, and that it
 * may move between steps, is nobody else's business. The host writes one copy, kernels read another in device memory. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/ops.h"

namespace ds4::runtime {

class ExpertTable {
public:
    ExpertTable(backend::Device &device, size_t layer_count, size_t expert_count)
        : device_(device), expert_count_(expert_count), entries_(layer_count * expert_count),
          is_new_(layer_count, true),
          mirror_(device.allocate((layer_count + 1) * row_bytes(), "the table of experts")) {}

    const backend::ExpertAddress &at(size_t layer, size_t expert) const { return entries_[layer * expert_count_ + expert]; }
    void                          set(size_t layer, size_t expert, const backend::ExpertAddress &address) {
        backend::ExpertAddress &known = entries_[layer * expert_count_ + expert];
        /* A row that stays as it is need not be published again, which would wait for all ops. */
        const bool is_same = known.gate == address.gate && known.up == address.up && known.down == address.down;
        is_new_[layer] = is_new_[layer] || !is_same;
        known = address;
    }

    /* Lets ops that are called from now on see what was written of a layer. */
    void publish(size_t layer) {
        if (is_new_[layer]) {
            device_.copy_in(row(layer), &entries_[layer * expert_count_], row_bytes());
            is_new_[layer] = false;
        }
    }
    void publish_all() {
        for (size_t layer = 0; layer < is_new_.size(); ++layer) {
            publish(layer);
        }
    }

    /* Device address of the [expert_count] entries of one layer. */
    const backend::ExpertAddress *layer(size_t layer) const { return row(layer); }

    /* A copy of one layer's entries as they are now, without those of `arriving`, for begin_experts; there is one such copy
     * for all layers. */
    const backend::ExpertAddress *present(size_t layer, std::span<const size_t> arriving) {
        const auto                          first = entries_.begin() + static_cast<std::ptrdiff_t>(layer * expert_count_);
        std::vector<backend::ExpertAddress> here(first, first + static_cast<std::ptrdiff_t>(expert_count_));
        for (const size_t expert : arriving) {
            here[expert] = {};
        }
        device_.copy_in(row(is_new_.size()), here.data(), row_bytes());
        return row(is_new_.size());
    }

private:
    size_t row_bytes() const { return expert_count_ * sizeof(backend::ExpertAddress); }
    backend::ExpertAddress *row(size_t layer) const {
        return mirror_.as<backend::ExpertAddress>() + layer * expert_count_;
    }

    backend::Device                    &device_;
    size_t                              expert_count_;
    std::vector<backend::ExpertAddress> entries_;
    std::vector<bool>                   is_new_;
    backend::Allocation                 mirror_;
};

} // namespace ds4::runtime
