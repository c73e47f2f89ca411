/* Looks through a model's file for values that are no numbers, before anything is computed with them. */
#pragma once

#include <span>

#include "model/catalogue.h"
#include "quant/type.h"
#include "runtime/telemetry.h"
#include "runtime/weight_store.h"

namespace ds4::model {

/* `tensors` and their `types` as the ranges of the store. Throws Failure(DS4_E_IO) with tensor, file and offset of the first
 * block that has one, or of what cannot be read; DS4_E_CANCELLED. */
void check_values(const runtime::WeightStore &store, std::span<const ExpectedTensor> tensors,
                  std::span<const quant::Type> types, runtime::Telemetry &telemetry);

} // namespace ds4::model
