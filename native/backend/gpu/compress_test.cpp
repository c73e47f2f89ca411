#include "backend/gpu/parity_test.h"

#include <string>

namespace ds4::backend::gpu::test {

namespace {

struct Case {
    int64_t     tokens, ratio, halves, dim, dims;
    uint64_t    position;  /* where a window begins */
    int64_t     ring_rows; /* 0: as few as promised for `piece` tokens */
    RowRounding rounding;
    quant::Type ape;
};

struct Inputs {
    OwnedMatrix        ape;
    std::vector<float> keys, gates, norm, frequency, key_ring, gate_ring;
};

int64_t ring_rows_of(const Case &c, int64_t piece) {
    return c.ring_rows != 0 ? c.ring_rows : c.halves * c.ratio + piece - 1;
}

int64_t end_window(const Case &c) {
    return static_cast<int64_t>(c.position + static_cast<uint64_t>(c.tokens)) / c.ratio;
}

Inputs inputs_of(const Case &c) {
    Random        random(91);
    const int64_t width = c.halves * c.dim;
    return {random_matrix(c.ape, c.ratio, width, random),
            random.normals(c.tokens * width),
            random.normals(c.tokens * width, 2.0f),
            random.normals(c.dim),
            frequencies(c.dims),
            random.normals(c.ratio * width),
            random.normals(c.ratio * width, 2.0f)};
}

/* The ring as it stands at `position`: the window in front is in it, the rest is not a number. */
std::vector<float> ring_before(const Case &c, const std::vector<float> &last, int64_t ring_rows) {
    const int64_t      width = c.halves * c.dim;
    std::vector<float> ring(static_cast<size_t>(ring_rows * width), NAN);
    for (int64_t i = 0; i < c.ratio && c.position != 0 && c.halves > 1; ++i) {
        const auto row = (static_cast<int64_t>(c.position) - c.ratio + i) % ring_rows;
        std::copy_n(last.begin() + i * width, width, ring.begin() + row * width);
    }
    return ring;
}

std::vector<float> on_cpu(const Case &c, const Inputs &in) {
    const int64_t      ring_rows = ring_rows_of(c, c.tokens);
    std::vector<float> key_ring = ring_before(c, in.key_ring, ring_rows);
    std::vector<float> gate_ring = ring_before(c, in.gate_ring, ring_rows);
    std::vector<float> rows(static_cast<size_t>(end_window(c) * c.dim));
    cpu::CpuOps        ops = cpu_ops(false);
    ops.compress({c.tokens, c.ratio, c.halves, c.dim, c.position, in.keys.data(), in.gates.data(), &in.ape.matrix, ring_rows,
                  key_ring.data(), gate_ring.data(), in.norm.data(), 1e-6f, {in.frequency.data(), c.dims}, c.rounding,
                  rows.data()});
    return rows;
}

/* All rows, zero where none was written. */
std::vector<float> on_gpu(const Case &c, const Inputs &in, int64_t piece) {
    const int64_t width = c.halves * c.dim;
    const int64_t ring_rows = ring_rows_of(c, piece);
    Backend       backend = gpu(false);
    const auto    ape = place_matrix(backend, in.ape, Layout::file);
    const auto    keys = place(backend, in.keys);
    const auto    gates = place(backend, in.gates);
    const auto    norm = place(backend, in.norm);
    const auto    key_ring = place(backend, ring_before(c, in.key_ring, ring_rows));
    const auto    gate_ring = place(backend, ring_before(c, in.gate_ring, ring_rows));
    const auto    rows = room<float>(backend, static_cast<size_t>(end_window(c) * c.dim));
    int64_t       first = 0;
    for (const int64_t count : pieces(c.tokens, piece)) {
        backend.ops->compress({count, c.ratio, c.halves, c.dim, c.position + static_cast<uint64_t>(first),
                               keys.get() + first * width, gates.get() + first * width, &ape.matrix, ring_rows, key_ring.get(),
                               gate_ring.get(), norm.get(), 1e-6f, {in.frequency.data(), c.dims}, c.rounding, rows.get()});
        first += count;
    }
    return rows.read();
}

double tolerance_of(RowRounding rounding) {
    /* A value next to a boundary of the small format may fall to the other side. */
    return rounding == RowRounding::none ? 1e-11 : rounding == RowRounding::fp8 ? 1e-5 : 1e-3;
}

void check_case(const Case &c) {
    const std::string        name = "compress ratio " + std::to_string(c.ratio) + " dim " + std::to_string(c.dim) + " at " +
                             std::to_string(c.position) + " " + quant::type_name(c.ape);
    const Inputs             in = inputs_of(c);
    const std::vector<float> got = on_gpu(c, in, c.tokens);
    CHECK_NMSE(name, got, on_cpu(c, in), tolerance_of(c.rounding));
    for (const int64_t piece : {1, 7}) {
        CHECK_SAME_BITS(name + " in pieces of " + std::to_string(piece), on_gpu(c, in, piece), got);
    }
}

} // namespace

TEST("windows are pooled as on the processor, whatever the batches") {
    check_case({23, 4, 2, 64, 32, 0, 0, RowRounding::none, quant::Type::f16});
    check_case({22, 4, 2, 128, 64, 0, 0, RowRounding::hadamard_fp4, quant::Type::f32});
    check_case({9, 4, 2, 512, 64, 0, 0, RowRounding::fp8, quant::Type::f16});
    check_case({25, 6, 1, 50, 20, 0, 0, RowRounding::none, quant::Type::bf16});
    check_case({20, 6, 2, 33, 2, 12, 0, RowRounding::none, quant::Type::f32});
    check_case({129, 128, 1, 512, 64, 0, 0, RowRounding::fp8, quant::Type::f16});
    check_case({260, 128, 1, 32, 16, 0, 0, RowRounding::none, quant::Type::f32});
}

TEST("windows wrap around the end of the rings anywhere") {
    for (const int64_t ring_rows : {23, 24, 29, 30}) {
        check_case({16, 4, 2, 32, 8, 1u << 12, ring_rows, RowRounding::none, quant::Type::f32});
    }
}

TEST("the position bias may have any weight type") {
    for (const quant::Type type : kWeightTypes) {
        check_case({9, 4, 2, 128, 64, 4, 0, RowRounding::none, type});
    }
}

TEST("a row wider than a block and a long window of few channels") {
    check_case({5, 4, 1, 1030, 64, 0, 0, RowRounding::none, quant::Type::f32});
    check_case({5, 4, 2, 4224, 64, 0, 0, RowRounding::fp8, quant::Type::f32});
    check_case({256, 256, 1, 4, 4, 0, 0, RowRounding::hadamard_fp4, quant::Type::f32});
}

TEST("a batch in the middle of the sequence writes only the rows of its own windows") {
    constexpr int64_t        dim = 32, width = 64;
    Random                   random(42);
    Backend                  backend = gpu(false);
    const OwnedMatrix        owned = random_matrix(quant::Type::f32, 4, width, random);
    const auto               ape = place_matrix(backend, owned, Layout::file);
    const auto               keys = place(backend, random.normals(6 * width));
    const auto               key_ring = place(backend, random.normals(13 * width));
    const auto               gate_ring = place(backend, random.normals(13 * width));
    const auto               norm = place(backend, std::vector<float>(dim, 1.0f));
    const std::vector<float> frequency = frequencies(8);
    const auto               rows = place(backend, std::vector<float>(10 * dim, 7.0f));

    /* Positions 10 to 15 close windows 2 (8 to 11) and 3 (12 to 15). */
    backend.ops->compress({6, 4, 2, dim, 10, keys.get(), keys.get(), &ape.matrix, 13, key_ring.get(), gate_ring.get(),
                           norm.get(), 1e-6f, {frequency.data(), 8}, RowRounding::none, rows.get()});

    const std::vector<float> got = rows.read();
    for (int64_t r = 0; r < 10; ++r) {
        const bool written = got[static_cast<size_t>(r * dim)] != 7.0f;
        CHECK(written == (r == 2 || r == 3));
    }
}

} // namespace ds4::backend::gpu::test
