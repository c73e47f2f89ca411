/* Any weight row to float32. The order of the multiplications is part of the format: results are equal, bit for bit, to
 * the reference vectors in test/fixtures/dequant. */
#pragma once

#include <cstddef>
#include <cstdint>

#include "quant/type.h"

namespace ds4::quant {

/* `values` is a multiple of the type's block. Throws Failure(DS4_E_UNSUPPORTED) for a type that holds no weights. */
void dequantise_row(Type type, const std::byte *row, int64_t values, float *out);

/* Whether dequantise_row knows the type. */
bool is_weight_type(Type type);

void dequantise_f16(const std::byte *row, int64_t values, float *out);
void dequantise_bf16(const std::byte *row, int64_t values, float *out);
void dequantise_q8_0(const std::byte *row, int64_t values, float *out);
void dequantise_mxfp4(const std::byte *row, int64_t values, float *out);
void dequantise_q2_k(const std::byte *row, int64_t values, float *out);
void dequantise_q4_k(const std::byte *row, int64_t values, float *out);
void dequantise_q5_k(const std::byte *row, int64_t values, float *out);
void dequantise_q6_k(const std::byte *row, int64_t values, float *out);
void dequantise_iq2_xxs(const std::byte *row, int64_t values, float *out);

} // namespace ds4::quant
