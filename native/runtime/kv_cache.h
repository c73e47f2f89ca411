/* What a session remembers of the tokens it has seen.
 *
 * Per layer: the last raw rows of the attention window; for compressed layers the keys and gates of windows that are still
 * open, and one row per closed window, for attention and, in ratio-4 layers, for the indexer.
 *
 * Raw rows, keys and gates live in rings: position p is at row p mod rows. Compressed rows are appended, and a query sees
 * those whose window closed at or before its own position. So a state is nothing but a position: going back means to say
 * a smaller number, as long as the rings still hold what that position needs.
 *
 * How many rows that takes. A state at position q needs `history` rows before q: window - 1 raw rows, and for a compressor
 * of overlap `halves` at most halves * ratio - 1 (the open window and, with overlap, the one before it). An evaluation of
 * up to C tokens at p writes rows p .. p + C - 1 even when it fails half-way. Afterwards p must stand, and so must the C
 * positions before it: rows p - C - history .. p + C - 1 live at once, which is 2 C + history rows. A ring never needs more
 * rows than the context has positions. */
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/device.h"
#include "runtime/carver.h"

namespace ds4::runtime {

/* What one layer keeps. */
struct KvLayerShape {
    uint64_t row_width;     /* of a raw or compressed row */
    uint64_t window;        /* raw rows a query sees, its own included */
    uint64_t ratio;         /* positions per compressed row; 0: none */
    uint64_t halves;        /* 2: windows overlap */
    uint64_t indexer_width; /* of an indexer row; 0: no indexer */
};

struct KvShape {
    std::vector<KvLayerShape> layers;
    uint64_t                  context = 0;       /* positions */
    uint64_t                  prefill_chunk = 0; /* most tokens of one evaluation */
};

/* Rows by position mod `rows`. */
struct Ring {
    float   *data = nullptr; /* [rows, width] */
    uint64_t rows = 0;
    uint64_t width = 0;

    float *row(uint64_t position) const { return data + position % rows * width; }
};

/* One compressor: inputs of open windows, rows of closed ones. */
struct CompressorState {
    Ring     keys;
    Ring     gates;
    float   *rows = nullptr; /* [capacity, row width] */
    uint64_t capacity = 0;   /* context / ratio */
    uint64_t ratio = 0;      /* 0: the layer has no such compressor */
    uint64_t halves = 0;
};

struct LayerKv {
    Ring            window;
    CompressorState attention;
    CompressorState indexer;
};

class KvCache {
public:
    /* Throws Failure(DS4_E_NO_MEMORY). */
    KvCache(backend::Device &device, KvShape shape);

    static uint64_t bytes_for(const KvShape &shape);
    /* The most positions whose cache fits into `bytes`; 0 if none. */
    static uint64_t largest_context(KvShape shape, uint64_t bytes);

    const KvShape &shape() const { return shape_; }
    const LayerKv &layer(size_t index) const { return layers_[index]; }
    uint64_t       bytes() const { return memory_.bytes(); }

    /* Tokens evaluated; the next one goes here. */
    uint64_t position() const { return position_; }

    /* To be called before the rings are written for `tokens` tokens at the present position. */
    void begin_write(uint64_t tokens);
    void advance(uint64_t tokens) { position_ += tokens; }

    /* Whether going back to `position` is exact without a checkpoint. */
    bool reaches(uint64_t position) const { return position == 0 || (position >= floor_ && position <= position_); }
    void go_back(uint64_t position);

    /* After a checkpoint put back the rows that `position` needs, and no more than those. */
    void restored(uint64_t position);

    /* Rows before `position` that a state at `position` needs, ring by ring in a fixed order:
     * visit(ring, history, first, end) with `history` the most there can ever be and [first, end) those at `position`. */
    template <typename Visit> void for_each_tail(uint64_t position, Visit &&visit) const;

private:
    static uint64_t place(const KvShape &shape, Carver carver, std::vector<LayerKv> &layers);

    KvShape              shape_;
    backend::Allocation  memory_;
    std::vector<LayerKv> layers_;
    uint64_t             position_ = 0;
    uint64_t             floor_ = 0; /* every state from here to position_ can be had */
    uint64_t             reach_ = 0; /* a state stays intact until `reach_` positions after it have been written */
};

template <typename Visit> void KvCache::for_each_tail(uint64_t position, Visit &&visit) const {
    const auto before = [position](uint64_t rows) { return position > rows ? position - rows : 0; };
    const auto visit_compressor = [&](const CompressorState &state) {
        if (state.ratio == 0) {
            return;
        }
        const uint64_t history = state.halves * state.ratio - 1;
        const uint64_t needed = (state.halves - 1) * state.ratio + position % state.ratio;
        visit(state.keys, history, before(needed), position);
        visit(state.gates, history, before(needed), position);
    };
    for (size_t i = 0; i < layers_.size(); ++i) {
        const uint64_t history = shape_.layers[i].window - 1;
        visit(layers_[i].window, history, before(history), position);
        visit_compressor(layers_[i].attention);
        visit_compressor(layers_[i].indexer);
    }
}

} // namespace ds4::runtime
