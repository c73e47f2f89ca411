#include <cstdint>
#include <vector>

#include "backend/gpu/parity_test.h"

using namespace ds4;
using namespace ds4::backend;
using namespace ds4::backend::gpu::test;

namespace {

constexpr int64_t kHeads = 2, kDim = 64, kWidth = kHeads * kDim, kVocab = 20, kRing = 5;

/* A small evaluation whose results depend on token and position: the token's row, turned, and its way into a ring. */
class Evaluation {
public:
    explicit Evaluation(uint64_t seed)
        : backend(gpu::test::gpu(true)), random_(seed), rows_(random_.normals(kVocab * kWidth)),
          embedding_bytes_(place(backend, rows_)), norm_(place(backend, random_.normals(kDim))),
          q_(room<float>(backend, kMostTokens * kWidth)), ring_(room<float>(backend, kRing * kDim)) {
        embedding_ = {quant::Type::f32,       RowLayout::file, kVocab, kWidth, kWidth * int64_t{sizeof(float)},
                      reinterpret_cast<const std::byte *>(embedding_bytes_.get())};
    }

    void issue(uint64_t position, std::span<const int32_t> tokens) {
        const auto count = static_cast<int64_t>(tokens.size());
        const Rope rope{frequencies_.data(), 32};
        backend.ops->embed({.tokens = tokens, .embedding = &embedding_, .hc = 1, .streams = q_.get()});
        backend.ops->query({count, kHeads, kDim, position, rope, 1e-6f, q_.get()});
        backend.ops->window({count, kDim, position, rope, q_.get(), norm_.get(), 1e-6f, true, kRing, ring_.get()});
    }

    /* Whether the step was run again from its recording. */
    bool step(uint64_t position, const std::vector<int32_t> &tokens, uint64_t shape) {
        const bool again = backend.ops->begin_step({position, tokens, shape});
        if (!again) {
            issue(position, tokens);
        }
        backend.ops->end_step();
        return again;
    }

    std::vector<float> state() {
        std::vector<float> all = q_.read();
        const auto         ring = ring_.read();
        all.insert(all.end(), ring.begin(), ring.end());
        return all;
    }

    Backend backend;

private:
    static constexpr size_t kMostTokens = 40;

    Random             random_;
    std::vector<float> rows_, frequencies_ = frequencies(32);
    Placed<float>      embedding_bytes_, norm_, q_, ring_;
    Matrix             embedding_;
};

int32_t token_at(uint64_t position) {
    return static_cast<int32_t>(position * 7 % kVocab);
}

} // namespace

TEST("a step of a known shape is replayed at later positions with the bits of a plain one") {
    Evaluation stepped(1), plain(1);
    int        replays = 0;
    for (uint64_t position = 0; position < 12; ++position) {
        const std::vector<int32_t> tokens = {token_at(position)};
        replays += stepped.step(position, tokens, 9) ? 1 : 0;
        plain.issue(position, tokens);

        CHECK_SAME_BITS("state", stepped.state(), plain.state());
    }
    CHECK(replays == 10); /* the first runs plainly, the second is recorded */
}

TEST("steps of several shapes, of several tokens and of none that repeats mix") {
    Evaluation stepped(2), plain(2);
    uint64_t   position = 0;
    for (const size_t count : {1, 3, 1, 1, 1, 2, 1, 1, 1, 40, 1, 1, 1, 1}) {
        std::vector<int32_t> tokens;
        for (size_t i = 0; i < count; ++i) {
            tokens.push_back(token_at(position + i));
        }
        /* Batches wider than the ring would write a row twice. */
        const bool wide = count > kRing;
        if (wide) {
            stepped.backend.ops->prepare({.tokens = static_cast<int64_t>(count)});
        } else {
            stepped.step(position, tokens, position % 2 == 0 ? 4 : position % 3 == 0 ? 0 : 5);
            plain.issue(position, tokens);
        }
        CHECK_SAME_BITS("state", stepped.state(), plain.state());
        position += count;
    }
}

TEST("more shapes than are kept cost time and nothing else") {
    Evaluation stepped(3), plain(3);
    for (uint64_t position = 0; position < 60; ++position) {
        const std::vector<int32_t> tokens = {token_at(position)};
        stepped.step(position, tokens, 1 + position % 20);
        plain.issue(position, tokens);
    }
    CHECK_SAME_BITS("state", stepped.state(), plain.state());
}

TEST("an abandoned step leaves the next ones as they were") {
    Evaluation stepped(4), plain(4);
    for (uint64_t position = 0; position < 6; ++position) {
        const std::vector<int32_t> tokens = {token_at(position)};
        if (!stepped.backend.ops->begin_step({position, tokens, 1})) {
            stepped.issue(position, tokens);
        }
        stepped.backend.ops->abandon_step();

        stepped.step(position, tokens, 1);
        plain.issue(position, tokens);
        CHECK_SAME_BITS("state", stepped.state(), plain.state());
    }
}

TEST("ops outside a step and part of a step's tokens see their own position and ids") {
    Evaluation                 stepped(5), plain(5);
    const std::vector<int32_t> tokens = {3, 1, 4, 1, 5};

    stepped.backend.ops->begin_step({100, tokens, 0});
    stepped.issue(102, std::span(tokens).subspan(2));
    stepped.backend.ops->end_step();
    plain.issue(102, std::span(tokens).subspan(2));
    CHECK_SAME_BITS("inside", stepped.state(), plain.state());

    stepped.issue(7, std::span(tokens).first(2));
    plain.issue(7, std::span(tokens).first(2));
    CHECK_SAME_BITS("outside", stepped.state(), plain.state());
}

TEST("pacing waits for the card and changes nothing") {
    Evaluation paced(6), plain(6);
    for (uint64_t position = 0; position < 5; ++position) {
        const std::vector<int32_t> tokens = {token_at(position)};
        if (!paced.backend.ops->begin_step({position, tokens, 1})) {
            paced.issue(position, tokens);
            paced.backend.ops->pace();
        }
        paced.backend.ops->end_step();
        plain.issue(position, tokens);
    }
    CHECK_SAME_BITS("state", paced.state(), plain.state());
}

TEST("the kernels' own memory is told beforehand") {
    const Backend   backend = gpu::test::gpu(false);
    const OpsLimits small{.tokens = 8, .width = 64, .hc = 4, .heads = 2, .head_dim = 32, .widest_input = 256,
                          .widest_output = 256, .experts = 4, .used = 2, .expert_width = 64, .indexer_heads = 2,
                          .indexer_dim = 32, .top_k = 16, .window = 8, .row_capacity = 64, .vocab = 100,
                          .candidates = 10};
    OpsLimits large = small;
    large.tokens = 512;

    CHECK(backend.ops->scratch_bytes(small) > 0);
    CHECK(backend.ops->scratch_bytes(large) > backend.ops->scratch_bytes(small));
    backend.ops->prepare(small);
}

TEST("every weight type is supported and nothing else") {
    const Backend backend = gpu::test::gpu(false);
    for (const quant::Type type : kWeightTypes) {
        CHECK(backend.ops->supports(type));
    }
    CHECK(!backend.ops->supports(quant::Type::i32));
    CHECK(!backend.ops->supports(static_cast<quant::Type>(11)));
}

TEST("a rotation wider than the kernels know is refused") {
    Backend                  backend = gpu::test::gpu(true);
    const std::vector<float> wide = frequencies(256);
    auto                     q = room<float>(backend, 256);

    CHECK_FAILS(DS4_E_UNSUPPORTED, backend.ops->query({1, 1, 256, 0, {wide.data(), 256}, 1e-6f, q.get()}));
}
