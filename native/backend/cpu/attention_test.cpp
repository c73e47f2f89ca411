#include "backend/cpu/ops_test.h"

namespace ds4::backend::cpu::test {

namespace {

struct Shape {
    int64_t  tokens, heads, dim, dims, window, ratio, top_k;
    uint64_t position;
};

/* The fixtures' head sizes and the real one; empty and full windows; all rows and selected rows; ends of tiles. */
constexpr Shape kShapes[] = {
    {12, 8, 64, 32, 32, 0, 0, 0},     {10, 4, 512, 64, 128, 4, 0, 500},  {9, 5, 72, 6, 8, 4, 6, 200},
    {8, 64, 512, 64, 128, 4, 64, 1000}, {5, 3, 20, 4, 16, 128, 0, 300},
};

} // namespace

TEST("attention over window and compressed rows equals the reference") {
    for (const Shape &shape : kShapes) {
        const int64_t            width = shape.heads * shape.dim;
        const int64_t            ring_rows = shape.window + shape.tokens;
        const auto               end = static_cast<int64_t>(shape.position) + shape.tokens;
        const int64_t            all_rows = shape.ratio == 0 ? 0 : end / shape.ratio;
        Random                   random(31);
        const std::vector<float> q = random.normals(shape.tokens * width, 2.0f);
        const std::vector<float> ring = random.normals(ring_rows * shape.dim);
        const std::vector<float> rows = random.normals(std::max<int64_t>(all_rows, 1) * shape.dim);
        const std::vector<float> sinks = random.normals(shape.heads, 2.0f);
        const std::vector<float> frequency = frequencies(shape.dims);

        const auto visible = [&](int64_t t) {
            return shape.ratio == 0 ? 0 : (static_cast<int64_t>(shape.position) + t + 1) / shape.ratio;
        };
        std::vector<int32_t> selected(static_cast<size_t>(shape.tokens * std::max<int64_t>(shape.top_k, 1)));
        std::vector<int32_t> count(static_cast<size_t>(shape.tokens));
        for (int64_t t = 0; shape.top_k != 0 && t < shape.tokens; ++t) {
            const int64_t n = std::min(shape.top_k, visible(t));
            count[static_cast<size_t>(t)] = static_cast<int32_t>(n);
            for (int64_t i = 0; i < n; ++i) { /* spread over the rows, ascending */
                selected[static_cast<size_t>(t * shape.top_k + i)] = static_cast<int32_t>(i * visible(t) / n);
            }
        }

        const auto run = [&](Ops &ops, const std::vector<int64_t> &pieces) {
            std::vector<float> out(q.size());
            int64_t            first = 0;
            for (const int64_t piece : pieces) {
                ops.attention({piece, shape.heads, shape.dim, shape.position + static_cast<uint64_t>(first),
                               {frequency.data(), shape.dims}, q.data() + first * width, shape.window, ring_rows,
                               ring.data(), shape.ratio, shape.ratio == 0 ? nullptr : rows.data(),
                               static_cast<int64_t>(rows.size()) / shape.dim,
                               shape.top_k == 0 ? nullptr : selected.data() + first * shape.top_k,
                               shape.top_k == 0 ? nullptr : count.data() + first, shape.top_k, sinks.data(),
                               out.data() + first * width});
                first += piece;
            }
            return out;
        };
        check_op("attention dim " + std::to_string(shape.dim), shape.tokens, Settings::one_arithmetic, 1e-11, run, [&](bool) {
            std::vector<double> want;
            for (int64_t t = 0; t < shape.tokens; ++t) {
                const int64_t              position = static_cast<int64_t>(shape.position) + t;
                std::vector<const float *> keys;
                for (int64_t p = std::max<int64_t>(0, position - shape.window + 1); p <= position; ++p) {
                    keys.push_back(ring.data() + p % ring_rows * shape.dim);
                }
                const int64_t n = shape.top_k == 0 ? visible(t) : count[static_cast<size_t>(t)];
                for (int64_t i = 0; i < n; ++i) {
                    const int64_t row = shape.top_k == 0 ? i : selected[static_cast<size_t>(t * shape.top_k + i)];
                    keys.push_back(rows.data() + row * shape.dim);
                }
                for (int64_t h = 0; h < shape.heads; ++h) {
                    const float        *query = q.data() + (t * shape.heads + h) * shape.dim;
                    std::vector<double> weights;
                    const auto          sink = static_cast<double>(sinks[static_cast<size_t>(h)]);
                    double              top = sink;
                    for (const float *key : keys) {
                        double z = 0.0;
                        for (int64_t i = 0; i < shape.dim; ++i) {
                            z += static_cast<double>(query[i]) * static_cast<double>(key[i]);
                        }
                        weights.push_back(z / std::sqrt(static_cast<double>(shape.dim)));
                        top = std::max(top, weights.back());
                    }
                    double              total = std::exp(sink - top);
                    std::vector<double> out(static_cast<size_t>(shape.dim));
                    for (size_t j = 0; j < keys.size(); ++j) {
                        const double w = std::exp(weights[j] - top);
                        total += w;
                        for (size_t i = 0; i < out.size(); ++i) {
                            out[i] += w * static_cast<double>(keys[j][i]);
                        }
                    }
                    for (double &value : out) {
                        value /= total;
                    }
                    turn(out, frequency, static_cast<uint64_t>(position), -1.0);
                    want.insert(want.end(), out.begin(), out.end());
                }
            }
            return want;
        });
    }
}

TEST("large logits neither overflow nor hide the sink") {
    for (const uint32_t set : instruction_sets()) {
        constexpr int64_t        dim = 16;
        const std::vector<float> frequency(1, 0.0f);
        std::vector<float>       q(2 * dim, 0.0f);
        q[0] = 4000.0f; /* head 0: logit 1000; head 1: logit 0 against a sink of 60 */
        std::vector<float> ring(dim, 0.0f);
        ring[0] = 1.0f;
        const std::vector<float> sinks = {0.0f, 60.0f};
        std::vector<float>       out(2 * dim);
        Backend                  backend = open(1, false, set);

        backend.ops->attention({1, 2, dim, 0, {frequency.data(), 2}, q.data(), 8, 1, ring.data(), 0, nullptr, 0, nullptr,
                                nullptr, 0, sinks.data(), out.data()});

        CHECK(out[0] == 1.0f);
        CHECK(out[dim] > 0.0f && out[dim] < 1e-25f);
    }
}

TEST("not-a-number in a query stays in its head") {
    for (const uint32_t set : instruction_sets()) {
        constexpr int64_t        dim = 32;
        Random                   random(32);
        const std::vector<float> frequency = frequencies(4);
        std::vector<float>       q = random.normals(4 * dim);
        q[dim + 3] = NAN;
        const std::vector<float> ring = random.normals(8 * dim);
        const std::vector<float> sinks(4, 0.0f);
        std::vector<float>       out(4 * dim);
        Backend                  backend = open(1, false, set);

        backend.ops->attention({1, 4, dim, 7, {frequency.data(), 4}, q.data(), 8, 8, ring.data(), 0, nullptr, 0, nullptr,
                                nullptr, 0, sinks.data(), out.data()});

        for (size_t i = 0; i < dim; ++i) {
            CHECK(std::isfinite(out[i]));
            CHECK(std::isnan(out[dim + i]));
            CHECK(std::isfinite(out[2 * dim + i]));
        }
    }
}

} // namespace ds4::backend::cpu::test
