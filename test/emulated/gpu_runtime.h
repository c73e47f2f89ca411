/* A GPU for tests: kernels compiled as plain C++ and the vendor's runtime as functions of the same process.
 *
 * What it is stricter about than a card: every allocation ends at a page that may not be touched and begins as NaN, the
 * host may read device memory through copies only, streams do nothing before someone waits for them, groups and lanes run
 * in an order that changes from block to block, and a lane that does not reach its group's or block's meeting point is
 * reported. Included by backend/gpu/gpu.h. */
#pragma once

#include "emulated/lanes.h"
#include "emulated/runtime.h"
#include "emulated/vector_types.h"
