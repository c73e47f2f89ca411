/* Which tensors a slice of a deepseek4 model consists of, and the dimensions its hyper-parameters give them. */
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "backend/ops.h"
#include "model/shape.h"

namespace ds4::model {

enum class TensorKind {
    matrix,  /* [columns, rows], any type that the backend can apply */
    experts, /* [columns, rows, depth]: one matrix per expert, back to back */
    vector,  /* [columns], F32, F16 or BF16 */
    hash,    /* [columns, rows], I32 */
};

struct ExpectedTensor {
    uint32_t   role;
    int64_t    layer; /* -1 outside layers */
    TensorKind kind;
    int64_t    columns;
    int64_t    rows = 1;
    int64_t    depth = 1;
};

std::vector<ExpectedTensor> expected_tensors(const Shape &shape, const Slice &slice);

/* The name that the tensor has in a GGUF file, for sentences. */
std::string tensor_name(uint32_t role, int64_t layer);

/* Finds each expected tensor in the table. Result: its index in `tensors`, in the order of `expected`. Tensors of other
 * layers, and ones that this slice does not use, are passed over.
 * Throws Failure(DS4_E_ARGUMENT) listing what is missing, there twice, or of wrong dimensions or bytes, and
 * Failure(DS4_E_UNSUPPORTED) listing every tensor whose type the backend cannot apply. */
std::vector<size_t> match_tensors(std::span<const ExpectedTensor> expected, std::span<const ds4_tensor> tensors,
                                  const backend::Ops &ops);

} // namespace ds4::model
