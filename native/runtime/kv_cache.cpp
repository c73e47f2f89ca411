#include "runtime/kv_cache.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "runtime/checked_bytes.h"

namespace ds4::runtime {

namespace {

/* See the head of kv_cache.h. While a batch is written, kernels read at most history + chunk rows, hence the lower bound. */
uint64_t ring_rows(const KvShape &shape, uint64_t history) {
    const uint64_t chunk = shape.prefill_chunk;
    const uint64_t least = checked_add(chunk, history);
    return std::min(checked_add(least, chunk), std::max(least, shape.context));
}

Ring place_ring(Carver &carver, uint64_t rows, uint64_t width) {
    return {carver.take<float>(checked_multiply(rows, width)), rows, width};
}

CompressorState place_compressor(const KvShape &shape, Carver &carver, const KvLayerShape &layer, uint64_t row_width) {
    const uint64_t rows = ring_rows(shape, checked_multiply(layer.halves, layer.ratio) - 1);
    const uint64_t input_width = checked_multiply(layer.halves, row_width);

    CompressorState state;
    state.ratio = layer.ratio;
    state.halves = layer.halves;
    state.keys = place_ring(carver, rows, input_width);
    state.gates = place_ring(carver, rows, input_width);
    state.capacity = shape.context / layer.ratio;
    state.rows = carver.take<float>(checked_multiply(state.capacity, row_width));
    return state;
}

} // namespace

uint64_t KvCache::place(const KvShape &shape, Carver carver, std::vector<LayerKv> &layers) {
    layers.clear();
    for (const KvLayerShape &layer : shape.layers) {
        LayerKv kv;
        kv.window = place_ring(carver, ring_rows(shape, layer.window - 1), layer.row_width);
        if (layer.ratio != 0) {
            kv.attention = place_compressor(shape, carver, layer, layer.row_width);
            if (layer.indexer_width != 0) {
                kv.indexer = place_compressor(shape, carver, layer, layer.indexer_width);
            }
        }
        layers.push_back(kv);
    }
    return carver.bytes();
}

uint64_t KvCache::bytes_for(const KvShape &shape) {
    std::vector<LayerKv> layers;
    return place(shape, Carver(), layers);
}

uint64_t KvCache::largest_context(KvShape shape, uint64_t bytes) {
    const auto fits = [&](uint64_t context) {
        shape.context = context;
        try {
            return bytes_for(shape) <= bytes;
        } catch (const Failure &) {
            return false; /* more than 64 bits can say */
        }
    };
    uint64_t good = 0;
    uint64_t bad = shape.context;
    while (good + 1 < bad) {
        const uint64_t middle = good + (bad - good) / 2;
        (fits(middle) ? good : bad) = middle;
    }
    return good;
}

KvCache::KvCache(backend::Device &device, KvShape shape) : shape_(std::move(shape)) {
    memory_ = device.allocate(bytes_for(shape_), "the KV cache");
    place(shape_, Carver(memory_.as<std::byte>()), layers_);

    /* A ring as long as the context is never overwritten and limits nothing. */
    reach_ = std::numeric_limits<uint64_t>::max();
    for_each_tail(0, [this](const Ring &ring, uint64_t history, uint64_t, uint64_t) {
        if (ring.rows < shape_.context) {
            reach_ = std::min(reach_, ring.rows - history);
        }
    });
}

void KvCache::begin_write(uint64_t tokens) {
    const uint64_t end = position_ + tokens;
    if (end > reach_) {
        floor_ = std::max(floor_, end - reach_);
    }
}

void KvCache::go_back(uint64_t position) {
    position_ = position;
    if (position == 0) {
        floor_ = 0;
    }
}

void KvCache::restored(uint64_t position) {
    position_ = position;
    floor_ = position;
}

} // namespace ds4::runtime
