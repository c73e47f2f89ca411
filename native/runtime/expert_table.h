/* The address of every routed expert. Kernels find experts only through this table, so where an expert lives, and that it
 * may move between steps, is nobody else's business. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/ops.h"

namespace ds4::runtime {

class ExpertTable {
public:
    ExpertTable(size_t layer_count, size_t expert_count)
        : expert_count_(expert_count), entries_(layer_count * expert_count) {}

    backend::ExpertAddress &at(size_t layer, size_t expert) { return entries_[layer * expert_count_ + expert]; }

    /* [expert_count] entries of one layer. */
    const backend::ExpertAddress *layer(size_t layer) const { return entries_.data() + layer * expert_count_; }

private:
    size_t                              expert_count_;
    std::vector<backend::ExpertAddress> entries_;
};

} // namespace ds4::runtime
