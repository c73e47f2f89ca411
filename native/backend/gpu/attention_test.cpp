/* Attention on a card against the CPU's. */
#include <cmath>

#include "backend/gpu/parity_test.h"

namespace ds4::backend::gpu::test {

namespace {

struct Shape {
    int64_t  tokens, heads, dim, dims, window, ratio, top_k, spare_rows;
    uint64_t position;
};

/* Heads of 512 have kernels of their own, one for a few tokens and one for many. */
constexpr Shape kShapes[] = {
    {12, 2, 32, 16, 32, 0, 0, 0, 0},       {10, 3, 64, 32, 16, 4, 0, 0, 500},
    {9, 5, 72, 6, 8, 4, 6, 7, 200},        {5, 3, 20, 4, 16, 128, 0, 1000, 300},
    {4, 9, 21, 8, 5, 6, 0, 0, 3},          {4, 2, 128, 64, 8, 128, 0, 0, 100000},
    {3, 2, 32, 16, 8, 4, 0, 3000, 9000},   {5, 5, 512, 64, 3, 0, 0, 0, 0},
    {2, 18, 512, 64, 128, 128, 0, 0, 1000}, {16, 3, 512, 16, 40, 128, 30, 5, 100000},
};

/* Too slow on the emulated card: real heads, several segments of rows, positions where the window is just full. */
[[maybe_unused]] constexpr Shape kLargeShapes[] = {
    {40, 64, 512, 64, 128, 4, 512, 100, 4000}, {33, 64, 512, 64, 128, 128, 0, 0, 100000},
    {18, 70, 512, 64, 128, 4, 0, 0, 4081},     {70, 64, 512, 64, 128, 0, 0, 0, 100},
    {17, 128, 512, 64, 128, 4, 1024, 0, 9000},  {20, 64, 512, 64, 128, 4, 0, 2000, 10000},
};

/* For the kernels for a few tokens and for many, where the card is quick enough. */
#if defined(DS4_EMULATED)
constexpr int64_t kBatches[] = {1};
#else
constexpr int64_t kBatches[] = {1, 16};
#endif

struct Inputs {
    std::vector<float>   q, ring, rows, sinks, frequency;
    std::vector<int32_t> selected, count;
    int64_t              ring_rows, row_capacity;

    explicit Inputs(const Shape &shape) : selected(size(shape.tokens * std::max<int64_t>(shape.top_k, 1))), count(size(shape.tokens)) {
        Random     random(31);
        const auto end = static_cast<int64_t>(shape.position) + shape.tokens;
        ring_rows = shape.window + shape.tokens - 1;
        row_capacity = shape.ratio == 0 ? 0 : end / shape.ratio + shape.spare_rows;
        q = random.normals(shape.tokens * shape.heads * shape.dim, 2.0f);
        ring = random.normals(ring_rows * shape.dim);
        rows = random.normals(std::max<int64_t>(row_capacity, 1) * shape.dim);
        sinks = random.normals(shape.heads, 2.0f);
        frequency = frequencies(shape.dims);
        for (int64_t t = 0; shape.top_k != 0 && t < shape.tokens; ++t) {
            const int64_t visible = (static_cast<int64_t>(shape.position) + t + 1) / shape.ratio;
            const int64_t n = std::min(shape.top_k, visible);
            count[size(t)] = static_cast<int32_t>(n);
            for (int64_t i = 0; i < n; ++i) { /* spread over the rows, ascending */
                selected[size(t * shape.top_k + i)] = static_cast<int32_t>(i * visible / n);
            }
        }
    }

    static size_t size(int64_t count) { return static_cast<size_t>(count); }
};

std::vector<float> run_on_cpu(const Shape &shape, Inputs &in, bool exact) {
    std::vector<float> out(in.q.size());
    cpu_ops(exact).attention({shape.tokens, shape.heads, shape.dim, shape.position, {in.frequency.data(), shape.dims},
                              in.q.data(), shape.window, in.ring_rows, in.ring.data(), shape.ratio,
                              shape.ratio == 0 ? nullptr : in.rows.data(), in.row_capacity,
                              shape.top_k == 0 ? nullptr : in.selected.data(), shape.top_k == 0 ? nullptr : in.count.data(),
                              shape.top_k, in.sinks.data(), out.data()});
    return out;
}

std::vector<float> run_on_card(Backend &backend, const Shape &shape, const Inputs &in, int64_t piece) {
    const int64_t width = shape.heads * shape.dim;
    const auto    q = place(backend, in.q), ring = place(backend, in.ring), rows = place(backend, in.rows);
    const auto    sinks = place(backend, in.sinks);
    const auto    selected = place(backend, in.selected), count = place(backend, in.count);
    const auto    out = room<float>(backend, in.q.size());
    int64_t       first = 0;
    for (const int64_t tokens : pieces(shape.tokens, piece)) {
        backend.ops->attention({tokens, shape.heads, shape.dim, shape.position + static_cast<uint64_t>(first),
                                {in.frequency.data(), shape.dims}, q.get() + first * width, shape.window, in.ring_rows,
                                ring.get(), shape.ratio, shape.ratio == 0 ? nullptr : rows.get(), in.row_capacity,
                                shape.top_k == 0 ? nullptr : selected.get() + first * shape.top_k,
                                shape.top_k == 0 ? nullptr : count.get() + first, shape.top_k, sinks.get(),
                                out.get() + first * width});
        first += tokens;
    }
    return out.read();
}

void check_shape(const Shape &shape) {
    Inputs in(shape);
    for (const bool exact : {false, true}) {
        Backend           backend = gpu(exact);
        const std::string name = "attention " + std::to_string(shape.heads) + " x " + std::to_string(shape.dim) + " at " +
                                 std::to_string(shape.position) + (exact ? " exact" : "");
        const std::vector<float> together = run_on_card(backend, shape, in, shape.tokens);
        /* With halves, queries, rows and probabilities lose what is below 2^-11 of them. */
        CHECK_NMSE(name, together, run_on_cpu(shape, in, exact), !exact && shape.dim == 512 ? 1e-6 : 1e-10);
        CHECK_SAME_BITS(name + " singly", run_on_card(backend, shape, in, 1), together);
        CHECK_SAME_BITS(name + " by 7", run_on_card(backend, shape, in, 7), together);
        if (shape.tokens > 32) {
            CHECK_SAME_BITS(name + " by 17", run_on_card(backend, shape, in, 17), together);
        }
    }
}

} // namespace

TEST("attention equals the CPU's, in the same bits however a batch is cut") {
    for (const Shape &shape : kShapes) {
        check_shape(shape);
    }
#if !defined(DS4_EMULATED)
    for (const Shape &shape : kLargeShapes) {
        check_shape(shape);
    }
#endif
}

TEST("in attention large logits neither overflow nor hide the sink") {
    for (const int64_t dim : {16, 512}) {
        for (const int64_t tokens : kBatches) {
            Shape  shape = {tokens, 2, dim, 2, 1, 0, 0, 0, 0};
            Inputs in(shape);
            in.frequency[0] = 0.0f;
            std::fill(in.q.begin(), in.q.end(), 0.0f);
            std::fill(in.ring.begin(), in.ring.end(), 0.0f);
            in.sinks = {0.0f, 60.0f};
            for (int64_t t = 0; t < tokens; ++t) { /* head 0: logit 1000; head 1: logit 0 against a sink of 60 */
                in.q[Inputs::size(2 * t * dim)] = 1000.0f * std::sqrt(static_cast<float>(dim));
                in.ring[Inputs::size(t * dim)] = 1.0f;
            }
            Backend                  backend = gpu(false);
            const std::vector<float> out = run_on_card(backend, shape, in, tokens);
            for (int64_t t = 0; t < tokens; ++t) {
                CHECK(out[Inputs::size(2 * t * dim)] == 1.0f);
                CHECK(out[Inputs::size((2 * t + 1) * dim)] > 0.0f && out[Inputs::size((2 * t + 1) * dim)] < 1e-25f);
            }
        }
    }
}

TEST("in attention not-a-number in a query stays in its head") {
    for (const int64_t dim : {32, 512}) {
        for (const int64_t tokens : kBatches) {
            const Shape shape = {tokens, 4, dim, 4, 8, 0, 0, 0, 7};
            Inputs      in(shape);
            in.q[Inputs::size(dim + 3)] = NAN;
            Backend                  backend = gpu(false);
            const std::vector<float> out = run_on_card(backend, shape, in, tokens);
            for (size_t i = 0; i < out.size(); ++i) {
                CHECK(std::isnan(out[i]) == (i / Inputs::size(dim) == 1));
            }
        }
    }
}

TEST("in attention values beyond what halves hold stay finite") {
    for (const int64_t tokens : kBatches) {
        const Shape shape = {tokens, 2, 512, 64, 8, 0, 0, 0, 100};
        Inputs      in(shape);
        for (size_t i = 5; i < in.ring.size(); i += 512) {
            in.ring[i] = 1e6f;
            in.ring[i + 1] = -1e30f;
        }
        Backend backend = gpu(false);
        for (const float value : run_on_card(backend, shape, in, tokens)) {
            CHECK(std::isfinite(value));
        }
    }
}

} // namespace ds4::backend::gpu::test
