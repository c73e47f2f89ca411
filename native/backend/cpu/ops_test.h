/* What the CPU's tests of the operations share: the settings to try, and references in double.
 *
 * A test gives check_op a function that runs its operation on a backend over a batch cut into pieces of so many tokens and
 * returns everything that was written. On each instruction set of the machine and with each arithmetic, the result token by
 * token on one thread is compared with the reference, and every other cut and number of threads with that result, bit by
 * bit. */
#pragma once

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "backend/cpu/instruction_set.h"
#include "backend/ops.h"
#include "backend/parity/guarded_host.h"
#include "backend/parity/matrices.h"
#include "check.h"

namespace ds4::backend::cpu::test {

using ds4::test::Random;
using parity::frequencies;
using parity::kWeightTypes;
using parity::OwnedMatrix;
using parity::random_matrix;
using parity::tried_on_cpu;

inline std::vector<uint32_t> instruction_sets() {
    std::vector<uint32_t> sets;
    for (uint32_t set = DS4_ISA_PLAIN; set <= widest_instruction_set(); ++set) {
        sets.push_back(set);
    }
    return sets;
}

inline Backend open(uint32_t threads, bool exact, uint32_t instruction_set) {
    Backend backend = open_backend({.device = 0, .threads = threads, .exact = exact, .instruction_set = instruction_set});
    backend.device = std::make_unique<parity::GuardedHost>();
    return backend;
}

enum class Settings { both_arithmetics, one_arithmetic };

/* Floats meet the same inputs in both. */
inline Settings settings_for(quant::Type type) {
    return quant::block_layout(type).values == 1 ? Settings::one_arithmetic : Settings::both_arithmetics;
}

/* run(backend, piece) -> std::vector<float>; reference(exact) -> std::vector<double> */
template <typename Run, typename Reference>
void check_op(const std::string &name, int64_t tokens, Settings settings, double tolerance, Run run, Reference reference) {
    for (int exact = 0; exact < (settings == Settings::both_arithmetics ? 2 : 1); ++exact) {
        const std::vector<double> right = reference(exact != 0);
        for (const uint32_t set : instruction_sets()) {
            const std::string        what = name + " " + instruction_set_name(set) + (exact != 0 ? " exact" : "");
            Backend                  alone = open(1, exact != 0, set);
            const std::vector<float> want = run(alone, 1);
            CHECK_NMSE(what, want, right, tolerance);

            for (const uint32_t threads : {1u, 2u, 3u}) {
                Backend backend = open(threads, exact != 0, set);
                for (const int64_t piece : {tokens, int64_t{7}}) {
                    if (piece <= tokens) {
                        CHECK_SAME_BITS(what + ", " + std::to_string(threads) + " threads, pieces of " + std::to_string(piece),
                                        run(backend, piece), want);
                    }
                }
            }
        }
    }
}

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

} // namespace ds4::backend::cpu::test
