/* One operation per file of this folder: the shapes with which the tests of every backend try it, inputs for each, and the
 * call. The CPU's tests compare what comes out with a reference in double, the GPU's and the simulated device's with the CPU's.
 * Here is what they share: memory of a device, batches cut into pieces, and shapes that are too slow somewhere. */
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/ops.h"

namespace ds4::backend::parity {

/* Where a shape takes so long that it is left out: on an emulated card, or in the CPU's tests, which run it on each
 * instruction set with several numbers of threads. A real card and the simulated device try every shape. */
enum class Slow { nowhere, emulated, cpu, both };

constexpr bool tried_on_cpu(Slow slow) {
    return slow == Slow::nowhere || slow == Slow::emulated;
}

constexpr bool tried_on_card([[maybe_unused]] Slow slow) {
#if defined(DS4_EMULATED)
    return slow == Slow::nowhere || slow == Slow::cpu;
#else
    return true;
#endif
}

/* With which arithmetic a card tries a shape; the CPU tries both. */
enum class Arithmetics { fast, both, exact };

constexpr bool tried_with(Arithmetics arithmetics, bool exact) {
    return arithmetics == Arithmetics::both || (arithmetics == Arithmetics::exact) == exact;
}

/* Allowed for sums of so many products of floats: the rounding errors of a sum grow with its length. */
constexpr double sum_tolerance(int64_t products) {
    return 1e-11 * std::max(1.0, static_cast<double>(products) / 2048.0);
}

/* Values in device memory. */
template <typename T> struct Placed {
    Device    *device = nullptr;
    Allocation memory;

    T     *get() const { return memory.as<T>(); }
    size_t size() const { return memory.bytes() / sizeof(T); }

    std::vector<T> read() const {
        std::vector<T> values(size());
        if (!values.empty()) {
            device->copy_out(values.data(), memory.as<T>(), memory.bytes());
        }
        return values;
    }
    void write(const std::vector<T> &values) {
        if (!values.empty()) {
            device->copy_in(memory.as<T>(), values.data(), values.size() * sizeof(T));
        }
    }
};

/* Room for `count` values, zeroed. */
template <typename T> Placed<T> room(Backend &backend, size_t count) {
    return {backend.device.get(), backend.device->allocate(count * sizeof(T), "a test")};
}

template <typename T> Placed<T> place(Backend &backend, const std::vector<T> &values) {
    Placed<T> placed = room<T>(backend, values.size());
    placed.write(values);
    return placed;
}

/* A batch cut into pieces of at most `piece` tokens. */
inline std::vector<int64_t> pieces(int64_t tokens, int64_t piece) {
    std::vector<int64_t> cut;
    for (int64_t rest = tokens; rest > 0; rest -= cut.back()) {
        cut.push_back(std::min(piece, rest));
    }
    return cut;
}

/* "9 x 4 x 128" */
inline std::string by(std::initializer_list<int64_t> dimensions) {
    std::string text;
    for (const int64_t dimension : dimensions) {
        text += (text.empty() ? "" : " x ") + std::to_string(dimension);
    }
    return text;
}

/* For tables that are read as one: ids as values, which are small. */
inline void append(std::vector<float> &values, const std::vector<int32_t> &more) {
    for (const int32_t value : more) {
        values.push_back(static_cast<float>(value));
    }
}

inline void append(std::vector<float> &values, const std::vector<float> &more) {
    values.insert(values.end(), more.begin(), more.end());
}

} // namespace ds4::backend::parity
