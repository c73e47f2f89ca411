/* Element types of GGUF tensors, with the numbers of the file format. */
#pragma once

#include <cstddef>
#include <cstdint>

namespace ds4::quant {

enum class Type : uint32_t {
    f32 = 0,
    f16 = 1,
    q8_0 = 8,
    q2_k = 10,
    q4_k = 12,
    q5_k = 13,
    q6_k = 14,
    iq2_xxs = 16,
    i32 = 26,
    bf16 = 30,
    mxfp4 = 39,
};

/* Blocks lie back to back along a row. */
struct BlockLayout {
    int64_t values; /* per block; a row holds a whole number of blocks */
    int64_t bytes;  /* per block */
};

/* {0, 0} for a type this library does not know. */
constexpr BlockLayout block_layout(Type type) {
    switch (type) {
    case Type::f32: return {1, 4};
    case Type::f16: return {1, 2};
    case Type::bf16: return {1, 2};
    case Type::i32: return {1, 4};
    case Type::q8_0: return {32, 34};
    case Type::mxfp4: return {32, 17};
    case Type::q2_k: return {256, 84};
    case Type::q4_k: return {256, 144};
    case Type::q5_k: return {256, 176};
    case Type::q6_k: return {256, 210};
    case Type::iq2_xxs: return {256, 66};
    }
    return {0, 0};
}

constexpr const char *type_name(Type type) {
    switch (type) {
    case Type::f32: return "F32";
    case Type::f16: return "F16";
    case Type::bf16: return "BF16";
    case Type::i32: return "I32";
    case Type::q8_0: return "Q8_0";
    case Type::mxfp4: return "MXFP4";
    case Type::q2_k: return "Q2_K";
    case Type::q4_k: return "Q4_K";
    case Type::q5_k: return "Q5_K";
    case Type::q6_k: return "Q6_K";
    case Type::iq2_xxs: return "IQ2_XXS";
    }
    return "unknown";
}

} // namespace ds4::quant
