#include "model/hash_table.h"

#include <cstring>

#include "failure.h"

namespace ds4::model {

void copy_hash_table(const std::byte *from, std::span<int32_t> to, int64_t used, int64_t expert_count,
                     const std::string &name) {
    std::memcpy(to.data(), from, to.size_bytes());
    const auto columns = static_cast<size_t>(used);
    for (size_t token = 0; token * columns < to.size(); ++token) {
        const std::span<const int32_t> ids = to.subspan(token * columns, columns);
        for (const int32_t id : ids) {
            if (id < 0 || id >= expert_count) {
                throw Failure(DS4_E_ARGUMENT, "tensor " + name + " routes token " + std::to_string(token) +
                                                  " to expert " + std::to_string(id) + " of " +
                                                  std::to_string(expert_count));
            }
        }
    }
}

} // namespace ds4::model
