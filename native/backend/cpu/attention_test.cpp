#include "backend/cpu/ops_test.h"

#include "backend/parity/attention.h"

namespace ds4::backend::cpu::test {

namespace {

std::vector<double> in_double(const parity::AttentionCase &in) {
    const parity::AttentionShape &shape = in.shape;
    std::vector<double>           want;
    for (int64_t t = 0; t < shape.tokens; ++t) {
        const int64_t              position = static_cast<int64_t>(shape.position) + t;
        std::vector<const float *> keys;
        for (int64_t p = std::max<int64_t>(0, position - shape.window + 1); p <= position; ++p) {
            keys.push_back(in.ring.data() + p % in.ring_rows * shape.dim);
        }
        const int64_t n = shape.top_k == 0 ? in.visible(t) : in.count[static_cast<size_t>(t)];
        for (int64_t i = 0; i < n; ++i) {
            const int64_t row = shape.top_k == 0 ? i : in.selected[static_cast<size_t>(t * shape.top_k + i)];
            keys.push_back(in.rows.data() + row * shape.dim);
        }
        for (int64_t h = 0; h < shape.heads; ++h) {
            const float        *query = in.q.data() + (t * shape.heads + h) * shape.dim;
            std::vector<double> weights;
            const auto          sink = static_cast<double>(in.sinks[static_cast<size_t>(h)]);
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
            turn(out, in.frequency, static_cast<uint64_t>(position), -1.0);
            want.insert(want.end(), out.begin(), out.end());
        }
    }
    return want;
}

} // namespace

TEST("attention over window and compressed rows equals the reference") {
    for (const parity::AttentionShape &shape : parity::kAttentionShapes) {
        if (!tried_on_cpu(shape.slow)) {
            continue;
        }
        const parity::AttentionCase in(shape);
        check_op(shape.name(), shape.tokens, Settings::one_arithmetic, 1e-11,
                 [&](Backend &backend, int64_t piece) { return in.run(backend, piece); }, [&](bool) { return in_double(in); });
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
