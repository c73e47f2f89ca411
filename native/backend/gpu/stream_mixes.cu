/* Two ways through one kernel: with one token a block is a group, so that many multiprocessors fetch fn; with many a block
 * goes through several tokens, so that fn is read from registers. */
#include "backend/gpu/stream_mixes.h"

#include <algorithm>

#include "backend/gpu/embed.h"

namespace ds4::backend::gpu {

namespace {

constexpr int kSlice = 512; /* columns of one partial sum */
constexpr int kPart = kSlice / kLanes;
constexpr int kMixGroups = 3; /* of a block at most: the 24 rows of four streams, which then share their reads */

DS4_DEVICE float float_of(float value) { return value; }
DS4_DEVICE float float_of(uint16_t half) { return half_to_float(half); }

struct Bf16 {
    uint16_t bits;
};
DS4_DEVICE float float_of(Bf16 value) { return bf16_to_float(value.bits); }

template <typename Value> struct alignas(4 * sizeof(Value)) FourOf {
    Value value[4];
};

/* The lane's part of a slice: columns 128 j + 4 lane + i of it, in the order of j, then i. With `whole`, rows consist of
 * whole slices and may be read four values at a time; otherwise what lies beyond the end is 0. */
template <typename Value, bool whole>
DS4_DEVICE void load_part(const Value *row, int64_t first, int64_t columns, float (&part)[kPart]) {
#pragma unroll
    for (int j = 0; j < kPart / 4; ++j) {
        const int64_t at = first + 4 * (kLanes * j + lane());
        if constexpr (whole) {
            const auto four = *reinterpret_cast<const FourOf<Value> *>(row + at);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                part[4 * j + i] = float_of(four.value[i]);
            }
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                part[4 * j + i] = at + i < columns ? float_of(row[at + i]) : 0.0f;
            }
        }
    }
}

/* By value: an array of which an element is chosen by reference does not stay in registers. */
DS4_DEVICE float choose(bool second, float a, float b) { return second ? b : a; }

/* group_sum of eight values at once, in the same order of additions: a lane ends with that of value
 * 4 (lane & 1) + (lane & 2) + (lane >> 2 & 1). */
DS4_DEVICE float group_sum_of_eight(const float (&value)[8]) {
    float four[4], two[2];
    bool  upper = (lane() & 1) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        four[i] = choose(upper, value[i], value[i + 4]) + shuffle_xor(choose(upper, value[i + 4], value[i]), 1);
    }
    upper = (lane() & 2) != 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        two[i] = choose(upper, four[i], four[i + 2]) + shuffle_xor(choose(upper, four[i + 2], four[i]), 2);
    }
    upper = (lane() & 4) != 0;
    float one = choose(upper, two[0], two[1]) + shuffle_xor(choose(upper, two[1], two[0]), 4);
    one += shuffle_xor(one, 8);
    return one + shuffle_xor(one, 16);
}

/* partials[t, slice, :] = fn[:, slice] . streams[t, slice], and the squares of streams[t, slice]
 *
 * A group has eight rows of fn, one slice wide, in registers and goes through the block's tokens; the next token is on its
 * way while one is multiplied. `fn_is_new`: the kernel in front wrote fn. */
template <typename Value, bool whole>
DS4_KERNEL __launch_bounds__(kMixGroups *kLanes)
    hc_mix_partials(const float *streams, const Value *fn, int64_t row_values, bool fn_is_new, MixShape shape, float *partials) {
    const int     row_set = static_cast<int>(blockIdx.z) * groups() + group();
    const int64_t first = static_cast<int64_t>(blockIdx.y) * kSlice;
    if (fn_is_new) {
        wait_for_inputs();
    }
    float weights[kMixRows][kPart];
#pragma unroll
    for (int r = 0; r < kMixRows; ++r) {
        const int row = kMixRows * row_set + r;
        /* Places behind the last row are filled with something that nobody reads. */
        load_part<Value, whole>(fn + (row < shape.rows ? row : 0) * row_values, first, shape.columns, weights[r]);
    }
    if (!fn_is_new) {
        wait_for_inputs();
    }
    let_next_start(); /* not earlier: see mix_streams */
    if (row_set >= shape.row_sets) {
        return;
    }

    const int64_t begin = static_cast<int64_t>(blockIdx.x) * shape.tokens_per_block;
    const int64_t end = begin + shape.tokens_per_block < shape.tokens ? begin + shape.tokens_per_block : shape.tokens;
    const int     place = 4 * (lane() & 1) + (lane() & 2) + (lane() >> 2 & 1);
    float         next[kPart];
    load_part<float, whole>(streams + begin * shape.columns, first, shape.columns, next);
#pragma unroll 1
    for (int64_t token = begin; token < end; ++token) {
        float x[kPart];
#pragma unroll
        for (int i = 0; i < kPart; ++i) {
            x[i] = next[i];
        }
        if (token + 1 < end) {
            load_part<float, whole>(streams + (token + 1) * shape.columns, first, shape.columns, next);
        }
        float sums[kMixRows];
#pragma unroll
        for (int r = 0; r < kMixRows; ++r) {
            sums[r] = 0.0f;
        }
#pragma unroll
        for (int i = 0; i < kPart; ++i) {
#pragma unroll
            for (int r = 0; r < kMixRows; ++r) {
                sums[r] = fmaf(weights[r][i], x[i], sums[r]);
            }
        }
        float      *to = partials + (token * shape.slices + blockIdx.y) * shape.values;
        const float sum = group_sum_of_eight(sums);
        if (lane() < kMixRows) {
            to[kMixRows * row_set + place] = sum;
        }
        if (row_set == 0) {
            float squares = 0.0f;
#pragma unroll
            for (int i = 0; i < kPart; ++i) {
                squares = fmaf(x[i], x[i], squares);
            }
            squares = group_sum(squares);
            if (lane() == 0) {
                to[square_place(shape.values)] = squares;
            }
        }
    }
}

int64_t rounded_up(int64_t count, int64_t step) { return (count + step - 1) / step * step; }

size_t partial_bytes(int64_t tokens, int64_t columns, int64_t rows) {
    const int64_t values = rounded_up(rows, kMixRows) + kMixRows;
    return static_cast<size_t>(rounded_up(tokens * ((columns + kSlice - 1) / kSlice) * values, 64)) * sizeof(float);
}

bool is_float(quant::Type type) {
    return type == quant::Type::f32 || type == quant::Type::f16 || type == quant::Type::bf16;
}

template <typename Value>
void launch_mixes(const Stream &stream, const float *streams, const Matrix &fn, bool fn_is_new, const MixShape &shape,
                  float *partials) {
    const int32_t groups = shape.tokens_per_block == 1 ? 1 : std::min<int32_t>(shape.row_sets, kMixGroups);
    const Grid    grid{static_cast<unsigned>((shape.tokens + shape.tokens_per_block - 1) / shape.tokens_per_block),
                    static_cast<unsigned>(shape.slices), static_cast<unsigned>((shape.row_sets + groups - 1) / groups)};
    const bool    whole = fn.columns % kSlice == 0 && fn.row_bytes % static_cast<int64_t>(4 * sizeof(Value)) == 0 &&
                       reinterpret_cast<uintptr_t>(fn.data) % (4 * sizeof(Value)) == 0;
    const auto kernel = whole ? hc_mix_partials<Value, true> : hc_mix_partials<Value, false>;
    launch(stream, kernel, grid, static_cast<unsigned>(groups * kLanes), 0, streams,
           reinterpret_cast<const Value *>(fn.data), fn.row_bytes / static_cast<int64_t>(sizeof(Value)), fn_is_new, shape,
           partials);
}

} // namespace

MixShape mix_shape(int64_t tokens, const Matrix &fn, uint32_t multiprocessors) {
    MixShape shape{};
    shape.tokens = tokens;
    shape.columns = fn.columns;
    shape.rows = static_cast<int32_t>(fn.rows);
    shape.row_sets = static_cast<int32_t>((fn.rows + kMixRows - 1) / kMixRows);
    shape.slices = static_cast<int32_t>((fn.columns + kSlice - 1) / kSlice);
    shape.values = kMixRows * (shape.row_sets + 1);
    /* A few blocks for each multiprocessor, as they take turns in waiting; but no more tokens than it takes to forget the
     * cost of reading fn. */
    const int64_t blocks = 6 * static_cast<int64_t>(multiprocessors);
    shape.tokens_per_block = static_cast<int32_t>(std::clamp<int64_t>((tokens * shape.slices + blocks - 1) / blocks, 1, 64));
    return shape;
}

size_t mix_bytes(int64_t tokens, int64_t columns, int64_t rows) {
    return partial_bytes(tokens, columns, rows) + static_cast<size_t>(rows * columns) * sizeof(float);
}

size_t mix_bytes(const MixShape &shape, const Matrix &fn) {
    /* A type that the kernel does not read is expanded in front of it. */
    return is_float(fn.type) ? partial_bytes(shape.tokens, shape.columns, shape.rows)
                             : mix_bytes(shape.tokens, shape.columns, shape.rows);
}

void mix_streams(const Stream &stream, const float *streams, const Matrix &given, const MixShape &shape, std::byte *memory) {
    auto  *partials = reinterpret_cast<float *>(memory);
    Matrix fn = given;
    if (!is_float(given.type)) {
        auto *expanded = reinterpret_cast<float *>(memory + partial_bytes(shape.tokens, given.columns, given.rows));
        expand_rows(stream, given, nullptr, given.rows, 1, expanded);
        fn.type = quant::Type::f32;
        fn.row_bytes = fn.columns * static_cast<int64_t>(sizeof(float));
        fn.data = reinterpret_cast<const std::byte *>(expanded);
    }
    const bool is_new = fn.data != given.data;
    switch (fn.type) {
    case quant::Type::f16: launch_mixes<uint16_t>(stream, streams, fn, is_new, shape, partials); break;
    case quant::Type::bf16: launch_mixes<Bf16>(stream, streams, fn, is_new, shape, partials); break;
    default: launch_mixes<float>(stream, streams, fn, is_new, shape, partials); break;
    }
}

} // namespace ds4::backend::gpu
