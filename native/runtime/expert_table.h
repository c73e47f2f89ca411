/* The address of every routed expert. Kernels find experts only through this table, so where an expert lives, and that it
 * may move between steps, is nobody else's business. The host writes one copy, kernels read another in device memory. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/ops.h"

namespace ds4::runtime {

class ExpertTable {
public:
    ExpertTable(backend::Device &device, size_t layer_count, size_t expert_count)
        : device_(device), expert_count_(expert_count), entries_(layer_count * expert_count),
          mirror_(device.allocate(bytes(), "the table of experts")) {}

    backend::ExpertAddress &at(size_t layer, size_t expert) { return entries_[layer * expert_count_ + expert]; }

    /* Lets kernels see what was written. */
    void upload() { device_.copy_in(mirror_.as<void>(), entries_.data(), bytes()); }

    /* Device address of the [expert_count] entries of one layer. */
    const backend::ExpertAddress *layer(size_t layer) const {
        return mirror_.as<backend::ExpertAddress>() + layer * expert_count_;
    }

private:
    size_t bytes() const { return entries_.size() * sizeof(backend::ExpertAddress); }

    backend::Device                    &device_;
    size_t                              expert_count_;
    std::vector<backend::ExpertAddress> entries_;
    backend::Allocation                 mirror_;
};

} // namespace ds4::runtime
