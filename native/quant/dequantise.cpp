#include "quant/dequantise.h"

#include <cstring>
#include <string>

#include "failure.h"

namespace ds4::quant {

void dequantise_row(Type type, const std::byte *row, int64_t values, float *out) {
    switch (type) {
    case Type::f32: std::memcpy(out, row, static_cast<size_t>(values) * sizeof(float)); return;
    case Type::f16: dequantise_f16(row, values, out); return;
    case Type::bf16: dequantise_bf16(row, values, out); return;
    case Type::q8_0: dequantise_q8_0(row, values, out); return;
    case Type::mxfp4: dequantise_mxfp4(row, values, out); return;
    case Type::q2_k: dequantise_q2_k(row, values, out); return;
    case Type::q4_k: dequantise_q4_k(row, values, out); return;
    case Type::q5_k: dequantise_q5_k(row, values, out); return;
    case Type::q6_k: dequantise_q6_k(row, values, out); return;
    case Type::iq2_xxs: dequantise_iq2_xxs(row, values, out); return;
    case Type::i32: break;
    }
    throw Failure(DS4_E_UNSUPPORTED, std::string("cannot read a row of type ") + type_name(type) +
                                         " as weights: this library has no decoder for it; convert the model to one of "
                                         "F32, F16, BF16, Q8_0, Q2_K, Q4_K, Q5_K, Q6_K, IQ2_XXS or MXFP4");
}

bool is_weight_type(Type type) {
    return type != Type::i32 && block_layout(type).values != 0;
}

} // namespace ds4::quant
