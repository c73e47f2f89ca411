/* Rotation frequencies: plain ones for layers without compression, YaRN-scaled ones for layers with it. */
#pragma once

#include <vector>

#include "backend/ops.h"
#include "model/shape.h"

namespace ds4::model {

class RopeTables {
public:
    explicit RopeTables(const Shape &shape);

    backend::Rope for_ratio(int64_t ratio) const {
        const std::vector<float> &table = ratio == 0 ? plain_ : compressed_;
        return {table.data(), static_cast<int64_t>(2 * table.size())};
    }

private:
    std::vector<float> plain_;      /* [rope_dims / 2] */
    std::vector<float> compressed_; /* [rope_dims / 2] */
};

} // namespace ds4::model
