/* Whether stored weights are numbers at all: no file that a quantiser wrote has others, a damaged one may. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "quant/type.h"

namespace ds4::quant {

/* The first of `count` blocks that has a value which is infinite or not a number. Only what scales a
 * block is looked at. Nothing for types without floats. */
std::optional<int64_t> first_not_finite(Type type, const std::byte *blocks, int64_t count);

} // namespace ds4::quant
