#include "model/workspace.h"

#include <algorithm>

namespace ds4::model {

namespace {

constexpr int64_t kMostHeadRows = 16;

} // namespace

uint64_t Results::place(runtime::Carver carver, int64_t rows, int64_t candidates) {
    bad_layer = carver.take<int32_t>(1);
    finite = carver.take<int32_t>(static_cast<uint64_t>(rows));
    candidate_id = carver.take<int32_t>(static_cast<uint64_t>(candidates));
    candidate_logit = carver.take<float>(static_cast<uint64_t>(candidates));
    return carver.bytes();
}

uint64_t Workspace::place(const Shape &shape, const Slice &slice, int64_t chunk, runtime::Carver carver) {
    const auto take = [&](float *&array, int64_t rows, int64_t width) {
        array = carver.take<float>(runtime::checked_multiply(static_cast<uint64_t>(rows), static_cast<uint64_t>(width)));
    };
    const auto take_ids = [&](int32_t *&array, int64_t rows, int64_t width) {
        array =
            carver.take<int32_t>(runtime::checked_multiply(static_cast<uint64_t>(rows), static_cast<uint64_t>(width)));
    };
    int64_t halves = 0; /* 0: no layer of the slice has a compressor */
    bool    indexer = false;
    for (int64_t layer = slice.first; layer <= slice.last; ++layer) {
        halves = std::max(halves, shape.ratio(layer) == 0 ? 0 : shape.halves(layer));
        indexer = indexer || shape.has_indexer(layer);
    }

    take(streams, chunk, shape.hc_count * shape.embedding);
    take(x, chunk, shape.embedding);
    take(y, chunk, shape.embedding);
    take(post, chunk, shape.hc_count);
    take(comb, chunk, shape.hc_count * shape.hc_count);

    take(q_low, chunk, shape.q_rank);
    take(q, chunk, shape.head_count * shape.head_dim);
    take(kv, chunk, shape.head_dim);
    take(keys, chunk, halves * shape.head_dim);
    take(gates, chunk, halves * shape.head_dim);
    if (indexer) {
        take(indexer_keys, chunk, halves * shape.indexer_dim);
        take(indexer_gates, chunk, halves * shape.indexer_dim);
        take(indexer_q, chunk, shape.indexer_heads * shape.indexer_dim);
        take(indexer_weights, chunk, shape.indexer_heads);
        take_ids(selected, chunk, shape.indexer_top_k);
        take_ids(selected_count, chunk, 1);
    }
    take(attended, chunk, shape.head_count * shape.head_dim);
    take(output_low, chunk, shape.output_groups * shape.output_rank);

    take(router_logits, chunk, shape.expert_count);
    take_ids(expert_ids, chunk, slice.layers() * shape.expert_used);
    take(expert_weights, chunk, shape.expert_used);

    if (slice.head) {
        head_rows = std::min(chunk, kMostHeadRows);
        take(head_x, head_rows, shape.embedding);
        take(logits, head_rows, shape.vocab);
    }
    result_bytes_ = Results().place(runtime::Carver(), slice.head ? chunk : 0, slice.head ? shape.vocab : 0);
    result_block = carver.take<std::byte>(result_bytes_);
    return carver.bytes();
}

uint64_t Workspace::bytes_for(const Shape &shape, const Slice &slice, int64_t chunk) {
    return Workspace().place(shape, slice, chunk, runtime::Carver());
}

Workspace::Workspace(backend::Device &device, const Shape &shape, const Slice &slice, int64_t chunk)
    : memory_(device.allocate(bytes_for(shape, slice, chunk), "the activations of one chunk")) {
    place(shape, slice, chunk, runtime::Carver(memory_.as<std::byte>()));
    fetched.resize(result_bytes_);
}

} // namespace ds4::model
