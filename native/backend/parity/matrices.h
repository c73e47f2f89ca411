/* Weights of every type for the tests of the operations, in host memory and on a device. */
#pragma once

#include <bit>
#include <cmath>
#include <span>
#include <vector>

#include "backend/parity/place.h"
#include "check.h"
#include "quant/dequantise.h"

namespace ds4::backend::parity {

using ds4::test::Random;

using Types = std::span<const quant::Type>;

constexpr quant::Type kWeightTypes[] = {quant::Type::f32,  quant::Type::f16,  quant::Type::bf16, quant::Type::q8_0,
                                        quant::Type::mxfp4, quant::Type::q2_k, quant::Type::q4_k, quant::Type::q5_k,
                                        quant::Type::q6_k, quant::Type::iq2_xxs};
constexpr quant::Type kFloatTypes[] = {quant::Type::f32, quant::Type::f16, quant::Type::bf16};
constexpr quant::Type kTypesOf32[] = {quant::Type::q8_0, quant::Type::mxfp4};
constexpr quant::Type kF32[] = {quant::Type::f32};
constexpr quant::Type kF16[] = {quant::Type::f16};
constexpr quant::Type kBf16[] = {quant::Type::bf16};
constexpr quant::Type kQ8_0[] = {quant::Type::q8_0};
constexpr quant::Type kF32AndF16[] = {quant::Type::f32, quant::Type::f16};

/* A matrix with its memory. */
struct OwnedMatrix {
    std::vector<std::byte> bytes;
    Matrix                 matrix;

    /* Row r as float32. */
    std::vector<float> row(int64_t r) const {
        std::vector<float> values(static_cast<size_t>(matrix.columns));
        quant::dequantise_row(matrix.type, matrix.data + r * matrix.row_bytes, matrix.columns, values.data());
        return values;
    }
};

/* Random blocks whose float scales are ordinary numbers. */
inline OwnedMatrix random_matrix(quant::Type type, int64_t rows, int64_t columns, Random &random) {
    const quant::BlockLayout layout = quant::block_layout(type);
    OwnedMatrix              owned;
    const int64_t            row_bytes = columns / layout.values * layout.bytes;
    owned.bytes.resize(static_cast<size_t>(rows * row_bytes));
    const auto put = [&](int64_t at, uint32_t value, int64_t bytes) {
        for (int64_t i = 0; i < bytes; ++i) {
            owned.bytes[static_cast<size_t>(at + i)] = static_cast<std::byte>(value >> (8 * i));
        }
    };
    const auto scale_f16 = [&] { return 0x1000u + random.bits() % 0x0c00u; }; /* 2^-11 to 2^-8 */
    for (std::byte &byte : owned.bytes) {
        byte = static_cast<std::byte>(random.bits());
    }
    for (int64_t at = 0; at < rows * row_bytes; at += layout.bytes) {
        switch (type) {
        case quant::Type::f32: put(at, std::bit_cast<uint32_t>(random.normal()), 4); break;
        case quant::Type::bf16: put(at, std::bit_cast<uint32_t>(random.normal()) >> 16, 2); break;
        case quant::Type::f16: put(at, (random.bits() & 0x8000u) | (0x2800u + random.bits() % 0x1400u), 2); break;
        case quant::Type::q8_0:
        case quant::Type::iq2_xxs: put(at, scale_f16(), 2); break;
        case quant::Type::mxfp4: put(at, 118u + random.bits() % 4u, 1); break;
        case quant::Type::q2_k: put(at + 80, scale_f16() | scale_f16() << 16, 4); break;
        case quant::Type::q4_k:
        case quant::Type::q5_k: put(at, scale_f16() | scale_f16() << 16, 4); break;
        case quant::Type::q6_k: put(at + 208, scale_f16(), 2); break;
        default: break;
        }
    }
    owned.matrix = {type, RowLayout::file, rows, columns, row_bytes, owned.bytes.data()};
    return owned;
}

enum class Layout { file, arranged };

struct PlacedMatrix {
    Placed<std::byte> bytes;
    Matrix            matrix;
};

/* `arranged` is what Ops::arrange makes of it, which may be the layout of the file. */
inline PlacedMatrix place_matrix(Backend &backend, const OwnedMatrix &owned, Layout layout) {
    PlacedMatrix placed{place(backend, owned.bytes), owned.matrix};
    placed.matrix.data = placed.bytes.get();
    if (layout == Layout::arranged) {
        placed.matrix = backend.ops->arrange(placed.matrix);
    }
    return placed;
}

inline std::vector<float> frequencies(int64_t dims) {
    std::vector<float> values;
    for (int64_t i = 0; i < dims / 2; ++i) {
        values.push_back(static_cast<float>(std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(dims))));
    }
    return values;
}

} // namespace ds4::backend::parity
