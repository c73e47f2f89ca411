/* What the tests of the GPU's operations share: memory on the card, and the CPU's arithmetic to compare with. They see the
 * backend through ops.h and device.h only, so that the same test runs on the emulated card and on a real one. */
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/ops_test.h"
#include "backend/ops.h"
#include "check.h"

namespace ds4::backend::gpu::test {

using cpu::test::frequencies;
using cpu::test::kWeightTypes;
using cpu::test::OwnedMatrix;
using cpu::test::random_matrix;
using ds4::test::Random;

/* This library's device 0. */
inline Backend gpu(bool exact) {
    return open_backend({.device = 0, .exact = exact});
}

inline cpu::CpuOps cpu_ops(bool exact) {
    return cpu::CpuOps(1, exact ? cpu::CpuOps::Arithmetic::exact : cpu::CpuOps::Arithmetic::fast, DS4_ISA_PLAIN, nullptr);
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

/* A batch cut into pieces of at most `piece` tokens. */
inline std::vector<int64_t> pieces(int64_t tokens, int64_t piece) {
    std::vector<int64_t> cut;
    for (int64_t rest = tokens; rest > 0; rest -= cut.back()) {
        cut.push_back(std::min(piece, rest));
    }
    return cut;
}

} // namespace ds4::backend::gpu::test
