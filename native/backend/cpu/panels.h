/* Quantised weights times 8-bit activations, for the instruction sets that have a way of their own. What the functions do
 * is told at struct Kernels. Declarations only: these names are the files' only ones that others can see. */
#pragma once

#include "backend/cpu/kernels.h"

namespace ds4::backend::cpu {

namespace avx2 {

constexpr int    kPanelRows = 8;
constexpr size_t kPanelScratchBytes = 24 * 1024;

size_t bytes_32(int64_t columns);
size_t bytes_256(int64_t columns);
void   quantise_32(const float *x, int64_t columns, std::byte *out);
void   quantise_256(const float *x, int64_t columns, std::byte *out);
void   multiply_32(const MultiplyJob &job);
void   multiply_256(const MultiplyJob &job);

} // namespace avx2

namespace avx512 {

constexpr int    kPanelRows = 16;
constexpr size_t kPanelScratchBytes = 48 * 1024;

size_t bytes_32(int64_t columns);
size_t bytes_256(int64_t columns);
void   quantise_32(const float *x, int64_t columns, std::byte *out);
void   quantise_256(const float *x, int64_t columns, std::byte *out);
void   multiply_32(const MultiplyJob &job);
void   multiply_256(const MultiplyJob &job);

} // namespace avx512

} // namespace ds4::backend::cpu
