/* The feed-forward part for many tokens. Choices are sorted by expert on the device, so that an expert's weights meet all
 * the tokens that chose it in a few tiles, without asking the host. Results lie choice by choice, whatever the order of
 * work was, and are added in the choices' order at the end. */
#include "backend/gpu/experts.h"

#include <algorithm>

#include "backend/gpu/float_tiles.h"
#include "backend/gpu/thin_tile.h"
#include "backend/gpu/tiles.h"

namespace ds4::backend::gpu {

namespace {

/* ---- sorting --------------------------------------------------------------------------------------- */

constexpr int kSortThreads = 512;

/* Sorts the choices by expert, each expert's in their own order, and cuts them into tiles of up to `tile_width`. One block
 * per expert, and none waits for another: a block counts how many choices go before its own, and expert e's tiles begin at
 * slot first(e) / tile_width + e, where they have room whatever the experts in front of it have. `partly`: tiles of experts
 * whose turn it is not are empty.
 *
 * order: [choices]  tiles: [choices / tile_width + experts] */
template <bool partly>
DS4_KERNEL sort_choices(FeedForward job, int32_t tile_width, int32_t *order, ChoiceTile *tiles) {
    __shared__ int32_t before[kSortThreads / kLanes], own[kSortThreads / kLanes];
    const int32_t  expert = static_cast<int32_t>(blockIdx.x);
    const int32_t *ids = job.ids;
    const int32_t  choices = job.routed;
    wait_for_inputs();
    let_next_start();

    /* A group of lanes looks after one piece of the list. */
    const int32_t steps = (choices + kLanes * groups() - 1) / (kLanes * groups());
    const int32_t begin = group() * steps * kLanes + lane();
    int32_t       less = 0, equal = 0;
    for (int32_t step = 0; step < steps; ++step) {
        const int32_t choice = begin + step * kLanes;
        const int32_t id = choice < choices ? ids[choice] : INT32_MAX;
        less += __popc(ballot(id < expert));
        equal += __popc(ballot(id == expert));
    }
    if (lane() == 0) {
        before[group()] = less;
        own[group()] = equal;
    }
    sync_block();

    int32_t first = 0, count = 0, place = 0;
    for (int i = 0; i < groups(); ++i) {
        place += i < group() ? own[i] : 0;
        first += before[i];
        count += own[i];
    }
    place += first;
    for (int32_t step = 0; step < steps; ++step) {
        const int32_t  choice = begin + step * kLanes;
        const bool     mine = choice < choices && ids[choice] == expert;
        const uint32_t all = ballot(mine);
        if (mine) {
            order[place + __popc(all & ((1u << lane()) - 1u))] = choice;
        }
        place += __popc(all);
    }

    const int32_t slot = first / tile_width + expert;
    const int32_t next = (first + count) / tile_width + expert + 1;
    if (partly && !takes(job, expert)) {
        count = 0;
    }
    for (int32_t i = static_cast<int32_t>(threadIdx.x); slot + i < next; i += static_cast<int32_t>(blockDim.x)) {
        const int32_t done = i * tile_width;
        const int32_t rest = count - done;
        tiles[slot + i] = {expert, first + done, rest < 0 ? 0 : rest < tile_width ? rest : tile_width};
    }
}

/* out[t, row] = sum of its choices' parts in their order, then of the shared expert's. parts: [choices, rows] */
DS4_KERNEL add_parts(const float *parts, int32_t tokens, int32_t used, bool has_shared, int32_t rows, int64_t width,
                       float *out) {
    wait_for_inputs();
    let_next_start();
    const int64_t token = blockIdx.x;
    const float  *own = parts + token * used * rows;
    const float  *shared = parts + (static_cast<int64_t>(tokens) * used + token) * rows;
    for (int32_t row = static_cast<int32_t>(threadIdx.x); row < rows; row += static_cast<int32_t>(blockDim.x)) {
        float sum = own[row];
        for (int32_t i = 1; i < used; ++i) {
            sum += own[static_cast<int64_t>(i) * rows + row];
        }
        out[token * width + row] = has_shared ? sum + shared[row] : sum;
    }
}

/* ---- rounding -------------------------------------------------------------------------------------- */

/* 256 values of one row, from column `at` of `columns` on, by a group of 32 lanes. Column 0 is column `first` of out. */
DS4_DEVICE void quantise_part(Inputs inputs, const float *values, int32_t at, int32_t columns, const Activations &out,
                              int64_t row, int32_t first) {
    at += 4 * lane();
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const bool   has_a = at < columns, has_b = at + 128 < columns;
    const float4 a = has_a ? load_floats4(values + at) : zero;
    const float4 b = has_b ? load_floats4(values + at + 128) : zero;
    auto        *words = reinterpret_cast<uint32_t *>(out.q + row * out.columns + first + at);
    if (inputs == Inputs::bytes_32) {
        const RoundedQuad low = quantise_32(a), high = quantise_32(b);
        float            *d = out.d + static_cast<int64_t>((first + at) / 32) * out.d_stride + row;
        if (has_a) {
            words[0] = low.word;
            d[0] = low.d;
        }
        if (has_b) {
            words[32] = high.word;
            d[4 * out.d_stride] = high.d;
        }
    } else {
        const RoundedOctet rounded = quantise_256(a, b);
        const int          low = sum_of_16(rounded.first), high = sum_of_16(rounded.second);
        words[0] = rounded.first;
        words[32] = rounded.second;
        if (lane() % 4 == 0) {
            int16_t *sums = out.sums + row * (out.columns / 16) + (first + at) / 16;
            sums[0] = static_cast<int16_t>(low);
            sums[8] = static_cast<int16_t>(high);
        }
        if (lane() == 0) {
            out.d[static_cast<int64_t>((first + at) / 256) * out.d_stride + row] = rounded.d;
        }
    }
}

/* `partly`: only choices whose turn it is. The values of others are spent, or not there yet. */
template <bool partly>
DS4_KERNEL quantise_choices(FeedForward job, RowSlice slice, Inputs routed, Inputs shared) {
    wait_for_inputs();
    let_next_start();
    const int32_t parts = (slice.count + 255) / 256;
    const int64_t item = static_cast<int64_t>(blockIdx.x) * groups() + group();
    const int64_t choice = item / parts;
    if (choice >= job.routed + job.shared) {
        return;
    }
    const bool is_routed = choice < job.routed;
    if (partly && !(is_routed ? takes(job, job.ids[choice]) : job.begun == nullptr)) {
        return;
    }
    const Inputs inputs = is_routed ? routed : shared;
    if (inputs != Inputs::floats) {
        quantise_part(inputs, slice.values + choice * slice.count, static_cast<int32_t>(item % parts) * 256, slice.count,
                      is_routed ? job.inner_x.bytes : job.shared_inner_x.bytes, is_routed ? choice : choice - job.routed,
                      slice.first);
    }
}

/* ---- products -------------------------------------------------------------------------------------- */

/* The tiles of all kinds behind one face. */
template <Format format, int tokens> struct ByteProduct {
    using Tile = ByteTile<format, tokens>;
    static constexpr int kRows = Tile::kRows, kTokens = tokens;

    static int    stages(const CardFacts &card) { return Tile::stages_in(shared_bytes_of_two(card)); }
    static size_t shared_bytes(int stages) { return Tile::shared_bytes(stages); }

    template <typename InputRow, typename Store>
    static DS4_DEVICE void run(const WeightRows &weights, int64_t, int64_t first_row, const ProductInputs &x, int count,
                               int stages, std::byte *memory, InputRow input_row, Store store) {
        Tile::run(weights, first_row, x.bytes, count, stages, memory, input_row, store);
    }
};

/* Of the shared expert, for few tokens. */
struct ThinProduct {
    using Tile = ThinTile<4>;
    static constexpr int kRows = Tile::kRows, kTokens = Tile::kTokens;

    static int    stages(const CardFacts &) { return 1; }
    static size_t shared_bytes(int) { return Tile::kSharedBytes; }

    template <typename InputRow, typename Store>
    static DS4_DEVICE void run(const WeightRows &weights, int64_t, int64_t first_row, const ProductInputs &x, int count, int,
                               std::byte *memory, InputRow input_row, Store store) {
        Tile::run(weights, first_row, x.bytes, count, memory, input_row, store);
    }
};

template <Format format> struct FloatProduct {
    using Tile = FloatTile<format>;
    static constexpr int kRows = Tile::kRows, kTokens = Tile::kTokens;

    static int    stages(const CardFacts &) { return 1; }
    static size_t shared_bytes(int) { return Tile::kSharedBytes; }

    template <typename InputRow, typename Store>
    static DS4_DEVICE void run(const WeightRows &weights, int64_t columns, int64_t first_row, const ProductInputs &x,
                               int count, int, std::byte *memory, InputRow input_row, Store store) {
        Tile::run(weights, columns, first_row, count, memory,
                  [&](int token) { return x.floats + input_row(token) * columns; }, store);
    }
};

/* What a kernel does: both halves of an inner value one after the other, one of them, or down. */
enum class Work : uint8_t { gate_up, gate, up, down };

/* Choices of the routed experts as they were sorted, or all tokens with the shared expert, times the rows of the slice.
 * Blocks of one tile follow each other. */
template <typename Product>
DS4_KERNEL __launch_bounds__(kTileThreads, 2)
multiply_choices(FeedForward job, SortedChoices sorted, RowSlice slice, Work work, bool shared, int stages) {
    DS4_SHARED(std::byte, memory);
    wait_for_inputs();
    let_next_start();
    const int32_t blocks = (slice.count + Product::kRows - 1) / Product::kRows;
    const int32_t slot = static_cast<int32_t>(blockIdx.x) / blocks;
    const int64_t first_row = slice.first + static_cast<int32_t>(blockIdx.x) % blocks * Product::kRows;
    ChoiceTile    tile{0, slot * Product::kTokens, Product::kTokens};
    if (!shared) {
        tile = sorted.tiles[slot];
    } else if (job.tokens - tile.first < tile.count) {
        tile.count = job.tokens - tile.first;
    }
    if (tile.count == 0) {
        return;
    }
    /* Without an order the choices of the shared expert are its tokens. */
    const int32_t *order = shared ? nullptr : sorted.order + tile.first;
    const int32_t  divisor = shared || work == Work::down ? 1 : job.used;
    const auto     input_row = [&](int i) { return order == nullptr ? tile.first + i : order[i] / divisor; };
    const auto     choice_of = [&](int i) { return order == nullptr ? job.routed + tile.first + i : order[i]; };

    /* Gate comes before up, and gives an element to the same thread. */
    const Work first = work == Work::gate_up ? Work::gate : work;
    const Work last = work == Work::gate_up ? Work::up : work;
    for (Work now = first;; now = last) {
        const ExpertAddress *address = shared ? nullptr : job.table + tile.expert;
        WeightRows           weights{nullptr, 0, slice.first + slice.count};
        const ProductInputs *x = nullptr;
        if (now == Work::down) {
            weights.data = shared ? job.shared_down.data : address->down;
            weights.row_bytes = shared ? job.shared_down.row_bytes : job.down.row_bytes;
            x = shared ? &job.shared_inner_x : &job.inner_x;
        } else if (now == Work::gate) {
            weights.data = shared ? job.shared_gate.data : address->gate;
            weights.row_bytes = shared ? job.shared_gate.row_bytes : job.gate_up.row_bytes;
            x = shared ? &job.shared_x : &job.x;
        } else {
            weights.data = shared ? job.shared_up.data : address->up;
            weights.row_bytes = shared ? job.shared_up.row_bytes : job.gate_up.row_bytes;
            x = shared ? &job.shared_up_x : &job.x;
        }
        Product::run(weights, now == Work::down ? job.inner : job.width, first_row, *x, tile.count, stages, memory,
                     input_row, [&](int64_t row, int i, float value) {
                         const int32_t choice = choice_of(i);
                         float *to = slice.values + static_cast<int64_t>(choice) * slice.count + (row - slice.first);
                         if (now == Work::up) {
                             value = gated(*to, value, shared ? job.shared_clamp : job.clamp,
                                           shared ? 1.0f : job.weights[choice]);
                         }
                         *to = value;
                     });
        if (now == last) {
            break;
        }
    }
}

/* ---- which kernels --------------------------------------------------------------------------------- */

template <typename Product> struct Tag {
    using Type = Product;
};

/* Tiles of so many tokens: wide ones share the expansion of weights, but are half empty when an expert has few choices, and
 * their sums need more registers. */
constexpr int kNarrow = 16, kMiddle = 32, kWide = 64;

/* Calls with the tag of the product that takes weights of this format. */
template <int byte_tokens, typename Call> void with_product(Format format, bool exact, Call call) {
    if (inputs_of(format, exact) == Inputs::floats) {
        switch (format) {
        case Format::f32: return call(Tag<FloatProduct<Format::f32>>{});
        case Format::f16: return call(Tag<FloatProduct<Format::f16>>{});
        case Format::bf16: return call(Tag<FloatProduct<Format::bf16>>{});
        case Format::q8_0: return call(Tag<FloatProduct<Format::q8_0>>{});
        case Format::q8_0_arranged: return call(Tag<FloatProduct<Format::q8_0_arranged>>{});
        case Format::mxfp4: return call(Tag<FloatProduct<Format::mxfp4>>{});
        case Format::q2_k: return call(Tag<FloatProduct<Format::q2_k>>{});
        case Format::q4_k: return call(Tag<FloatProduct<Format::q4_k>>{});
        case Format::q5_k: return call(Tag<FloatProduct<Format::q5_k>>{});
        case Format::q6_k: return call(Tag<FloatProduct<Format::q6_k>>{});
        case Format::iq2_xxs: return call(Tag<FloatProduct<Format::iq2_xxs>>{});
        }
        return;
    }
    switch (format) {
    case Format::q8_0: return call(Tag<ByteProduct<Format::q8_0, byte_tokens>>{});
    case Format::q8_0_arranged: return call(Tag<ByteProduct<Format::q8_0_arranged, byte_tokens>>{});
    case Format::mxfp4: return call(Tag<ByteProduct<Format::mxfp4, byte_tokens>>{});
    case Format::q2_k: return call(Tag<ByteProduct<Format::q2_k, byte_tokens>>{});
    case Format::q4_k: return call(Tag<ByteProduct<Format::q4_k, byte_tokens>>{});
    case Format::q5_k: return call(Tag<ByteProduct<Format::q5_k, byte_tokens>>{});
    case Format::q6_k: return call(Tag<ByteProduct<Format::q6_k, byte_tokens>>{});
    case Format::iq2_xxs: return call(Tag<ByteProduct<Format::iq2_xxs, byte_tokens>>{});
    default: return;
    }
}

/* For tiles of this width, unless that is done. */
void sort(const Stream &stream, const FeedForward &job, int32_t tile_width, SortedChoices &sorted) {
    if (sorted.width == tile_width) {
        return;
    }
    sorted.width = tile_width;
    launch(stream, sorted.turn == Turn::all ? sort_choices<false> : sort_choices<true>,
           {static_cast<unsigned>(job.experts)}, kSortThreads, 0, job, tile_width, sorted.order, sorted.tiles);
}

template <typename Product>
void start(const Stream &stream, const CardFacts &card, const FeedForward &job, SortedChoices &sorted, const RowSlice &slice,
           Work work, bool shared) {
    int64_t tiles = (job.tokens + Product::kTokens - 1) / Product::kTokens;
    if (!shared) {
        sort(stream, job, Product::kTokens, sorted);
        tiles = job.routed / Product::kTokens + job.experts;
    }
    const int64_t blocks = tiles * ((slice.count + Product::kRows - 1) / Product::kRows);
    const int     stages = Product::stages(card);
    launch(stream, multiply_choices<Product>, {static_cast<unsigned>(blocks)}, kTileThreads, Product::shared_bytes(stages),
           job, sorted, slice, work, shared, stages);
}

void multiply(const Stream &stream, const CardFacts &card, const FeedForward &job, bool exact, SortedChoices &sorted,
              const RowSlice &slice, Format format, Work work, bool shared) {
    const auto call = [&](auto tag) {
        start<typename decltype(tag)::Type>(stream, card, job, sorted, slice, work, shared);
    };
    if (shared && !exact && format == Format::q8_0_arranged && job.tokens <= kThinTokens) {
        start<ThinProduct>(stream, card, job, sorted, slice, work, shared);
    } else if (!shared && job.routed <= kNarrow / 2 * static_cast<int64_t>(job.experts)) {
        with_product<kNarrow>(format, exact, call);
    } else if (!shared && job.routed <= kMiddle / 2 * static_cast<int64_t>(job.experts)) {
        with_product<kMiddle>(format, exact, call);
    } else {
        with_product<kWide>(format, exact, call);
    }
}

} // namespace

int64_t tile_slots(int64_t routed, int64_t experts) {
    return routed / kNarrow + experts;
}

void gate_up_many(const Stream &stream, const CardFacts &card, const FeedForward &job, bool exact, SortedChoices &sorted,
                  const RowSlice &slice) {
    multiply(stream, card, job, exact, sorted, slice, job.gate_up.format, Work::gate_up, false);
    if (job.shared == 0 || sorted.turn == Turn::rest) {
        return;
    }
    const Format gate = job.shared_gate.format, up = job.shared_up.format;
    if (gate == up) {
        multiply(stream, card, job, exact, sorted, slice, gate, Work::gate_up, true);
    } else {
        multiply(stream, card, job, exact, sorted, slice, gate, Work::gate, true);
        multiply(stream, card, job, exact, sorted, slice, up, Work::up, true);
    }
}

void quantise_inner(const Stream &stream, const FeedForward &job, bool exact, Turn turn, const RowSlice &slice) {
    constexpr int64_t kGroups = 4;
    const Inputs      routed = inputs_of(job.down.format, exact);
    const Inputs      shared = job.shared != 0 ? inputs_of(job.shared_down.format, exact) : routed;
    if (routed != Inputs::floats || shared != Inputs::floats) {
        const int64_t items = static_cast<int64_t>(job.routed + job.shared) * ((slice.count + 255) / 256);
        launch(stream, turn == Turn::all ? quantise_choices<false> : quantise_choices<true>,
               {static_cast<unsigned>((items + kGroups - 1) / kGroups)}, kGroups * kLanes, 0, job,
               slice, routed, shared);
    }
}

void down_many(const Stream &stream, const CardFacts &card, const FeedForward &job, bool exact, SortedChoices &sorted,
               const RowSlice &slice) {
    multiply(stream, card, job, exact, sorted, slice, job.down.format, Work::down, false);
    if (job.shared != 0) {
        multiply(stream, card, job, exact, sorted, slice, job.shared_down.format, Work::down, true);
    }
}

void add_choices(const Stream &stream, const FeedForward &job, const RowSlice &slice) {
    launch(stream, add_parts, {static_cast<unsigned>(job.tokens)}, 256, 0, slice.values, job.tokens, job.used,
           job.shared != 0, slice.count, static_cast<int64_t>(job.width), job.out + slice.first);
}

} // namespace ds4::backend::gpu
