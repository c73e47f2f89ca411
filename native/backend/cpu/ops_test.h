/* What the tests of the operations share: the settings to try, and weights of every type.
 *
 * A test gives check_op a function that runs its operation over a batch cut into given pieces and returns everything that
 * was written. On each instruction set of the machine and with each arithmetic, the result token by token on one thread
 * is compared with a reference in double, and every other cut and number of threads with that result, bit by bit. */
#pragma once

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "backend/cpu/instruction_set.h"
#include "backend/ops.h"
#include "check.h"
#include "quant/dequantise.h"

namespace ds4::backend::cpu::test {

using ds4::test::Random;

inline std::vector<uint32_t> instruction_sets() {
    std::vector<uint32_t> sets;
    for (uint32_t set = DS4_ISA_PLAIN; set <= widest_instruction_set(); ++set) {
        sets.push_back(set);
    }
    return sets;
}

inline Backend open(uint32_t threads, bool exact, uint32_t instruction_set) {
    return open_backend({.device = 0, .threads = threads, .exact = exact, .instruction_set = instruction_set});
}

enum class Settings { both_arithmetics, one_arithmetic };

/* run(ops, pieces) -> std::vector<float>; reference(exact) -> std::vector<double> */
template <typename Run, typename Reference>
void check_op(const std::string &name, int64_t tokens, Settings settings, double tolerance, Run run, Reference reference) {
    for (const uint32_t set : instruction_sets()) {
        for (int exact = 0; exact < (settings == Settings::both_arithmetics ? 2 : 1); ++exact) {
            const std::string what = name + " " + instruction_set_name(set) + (exact != 0 ? " exact" : "");
            const std::vector<int64_t> singly(static_cast<size_t>(tokens), 1);
            Backend                    alone = open(1, exact != 0, set);
            const std::vector<float>   want = run(*alone.ops, singly);
            CHECK_NMSE(what, want, reference(exact != 0), tolerance);

            for (const uint32_t threads : {1u, 2u, 3u}) {
                Backend backend = open(threads, exact != 0, set);
                for (const int64_t piece : {tokens, int64_t{7}}) {
                    std::vector<int64_t> pieces;
                    for (int64_t rest = tokens; rest > 0; rest -= piece) {
                        pieces.push_back(std::min(piece, rest));
                    }
                    CHECK_SAME_BITS(what + ", " + std::to_string(threads) + " threads, pieces of " +
                                        std::to_string(piece),
                                    run(*backend.ops, pieces), want);
                }
            }
        }
    }
}

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

constexpr quant::Type kWeightTypes[] = {quant::Type::f32,  quant::Type::f16,  quant::Type::bf16, quant::Type::q8_0,
                                        quant::Type::mxfp4, quant::Type::q2_k, quant::Type::q4_k, quant::Type::q5_k,
                                        quant::Type::q6_k, quant::Type::iq2_xxs};

/* What a matrix of `type` makes of an input row: itself or, in the fast arithmetic, its 8-bit version. */
std::vector<double> seen_by(quant::Type type, bool exact, const float *x, int64_t columns);

/* matrix . x for each of `tokens` rows of x, in double: [tokens, rows] */
std::vector<double> multiply(const OwnedMatrix &matrix, bool exact, const std::vector<float> &x, int64_t tokens);

inline double rms_scale(const std::vector<double> &x, double epsilon) {
    double squares = 0.0;
    for (const double value : x) {
        squares += value * value;
    }
    return 1.0 / std::sqrt(squares / static_cast<double>(x.size()) + epsilon);
}

/* Turns the last 2 * frequencies.size() values by the angles of a position; direction -1 turns back. */
inline void turn(std::vector<double> &x, const std::vector<float> &frequencies, uint64_t position, double direction) {
    const size_t first = x.size() - 2 * frequencies.size();
    for (size_t i = 0; i < frequencies.size(); ++i) {
        const double angle = static_cast<double>(static_cast<float>(position) * frequencies[i]);
        const double a = x[first + 2 * i];
        const double b = x[first + 2 * i + 1];
        x[first + 2 * i] = a * std::cos(angle) - direction * b * std::sin(angle);
        x[first + 2 * i + 1] = direction * a * std::sin(angle) + b * std::cos(angle);
    }
}

inline std::vector<float> frequencies(int64_t dims) {
    std::vector<float> values;
    for (int64_t i = 0; i < dims / 2; ++i) {
        values.push_back(static_cast<float>(std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(dims))));
    }
    return values;
}

} // namespace ds4::backend::cpu::test
