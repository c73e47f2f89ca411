/* y = W x for one to eight tokens: as fast as the matrices can be read.
 *
 * Two blocks for each multiprocessor, each with rows of one matrix only. A block first rounds the inputs into
 * its shared memory: every block does the same work, but that costs less than a kernel of its own, and the first rows of
 * weights are already on their way. Then each group of 32 lanes takes rows: a lane has one chain (or, for units of 256
 * values, an eighth of one), and about 128 bytes of weights are in flight per lane. */
#include "backend/gpu/project.h"

#include <algorithm>

namespace ds4::backend::gpu {

namespace {

constexpr unsigned kThreads = 512;
constexpr int      kGroups = kThreads / kLanes;
constexpr int64_t  kBlocksPerMultiprocessor = 2;
constexpr int64_t  kStep = 1024; /* values of a row that a group takes at once */

/* Floats in shared memory leave 4 out after every 32, so that lanes with neighbouring units meet different banks. */
constexpr int kPaddedPiece = 36;
constexpr int kMostRows = 4;

int64_t pieces_of(int64_t columns) { return (columns + 31) / 32; }

/* Of one token's inputs in shared memory, a multiple of 16. */
size_t input_bytes(Inputs inputs, int64_t columns) {
    switch (inputs) {
    case Inputs::floats: return static_cast<size_t>(pieces_of(columns)) * kPaddedPiece * 4;
    case Inputs::bytes_32: return static_cast<size_t>(columns + (columns / 32 * 4 + 15) / 16 * 16);
    default: return static_cast<size_t>(columns + (columns / 256 * 4 + 15) / 16 * 16 + columns / 8);
    }
}

/* ---- units of bytes ------------------------------------------------------------------------------- */

/* Inputs of up to `tokens` tokens in shared memory. */
struct ByteInputs {
    const uint32_t *words;
    const float    *d;
    const int16_t  *sums;
    int             stride; /* bytes from token to token */

    DS4_DEVICE const uint32_t *words_of(int token) const {
        return reinterpret_cast<const uint32_t *>(reinterpret_cast<const std::byte *>(words) + token * stride);
    }
    DS4_DEVICE const float *d_of(int token) const {
        return reinterpret_cast<const float *>(reinterpret_cast<const std::byte *>(d) + token * stride);
    }
    DS4_DEVICE const int16_t *sums_of(int token) const {
        return reinterpret_cast<const int16_t *>(reinterpret_cast<const std::byte *>(sums) + token * stride);
    }
};

template <Inputs inputs, int tokens>
DS4_DEVICE ByteInputs take_bytes(const Part &part, int64_t columns, int given, std::byte *shared) {
    const int64_t scales = (columns / unit_values(inputs) * 4 + 15) / 16 * 16;
    const int     stride = static_cast<int>(columns + scales + (inputs == Inputs::bytes_256 ? columns / 8 : 0));
    for (int t = 0; t < tokens; ++t) {
        const float *x = part.x + (t < given ? t : given - 1) * part.x_stride;
        std::byte   *to = shared + t * stride;
        auto        *words = reinterpret_cast<uint32_t *>(to);
        auto        *d = reinterpret_cast<float *>(to + columns);
        if constexpr (inputs == Inputs::bytes_32) {
            quantise_row_32(x, columns, words, d);
        } else {
            quantise_row_256(x, columns, words, d, reinterpret_cast<int16_t *>(to + columns + scales));
        }
    }
    return {reinterpret_cast<const uint32_t *>(shared), reinterpret_cast<const float *>(shared + columns),
            reinterpret_cast<const int16_t *>(shared + columns + scales), stride};
}

/* What a lane does with its part of 1024 values of a row. Share<format>: load, then add to the chain. */
template <Format format> struct Share {
    using Unit = Bytes<format>;
    using Tables = typename Unit::Tables;
    struct Loaded {
        typename Unit::Raw raw;
    };
    static DS4_DEVICE int unit_of_lane() { return lane() / Unit::kShares; }
    static DS4_DEVICE int share_of_lane() { return lane() % Unit::kShares; }
    static constexpr int  kUnitsPerStep = 32 / Unit::kShares;

    static DS4_DEVICE Loaded load(const std::byte *row, int64_t columns, int units, int step) {
        const int unit = step * kUnitsPerStep + unit_of_lane();
        /* Lanes beyond the end load the last unit again and leave it out of the sum. */
        return {Unit::load(row, columns, unit < units ? unit : units - 1, share_of_lane())};
    }
    /* By all lanes of a group. */
    template <int tokens>
    static DS4_DEVICE void add(const Loaded &loaded, const Tables &tables, const ByteInputs &x, int units, int step,
                               float (&acc)[tokens]) {
        const int  unit = step * kUnitsPerStep + unit_of_lane();
        const bool inside = unit < units;
        const int  known = inside ? unit : units - 1;
        const int  share = share_of_lane();
        uint32_t   words[8];
        int        scale[2];
        Unit::expand(loaded.raw, share, tables, words, scale);
        const UnitScale unit_scale = Unit::scale(loaded.raw);
#pragma unroll
        for (int t = 0; t < tokens; ++t) {
            uint32_t inputs[8];
            share_inputs<Unit>(x.words_of(t) + known * 8 * Unit::kShares, share, inputs);
            int total = share_dot<Unit>(words, scale, inputs);
            int minima = 0;
            if constexpr (Unit::kShares == 8) {
                total = sum_of_eight(total);
                if constexpr (Unit::kMinima) {
                    const auto *sums = reinterpret_cast<const uint32_t *>(x.sums_of(t));
                    minima = sum_of_eight(add_minima(Unit::piece_minima(loaded.raw, share), sums[8 * known + share], 0));
                }
            }
            const float added = accumulate<Unit::kMinima>(acc[t], unit_scale, x.d_of(t)[known], static_cast<float>(total),
                                                          static_cast<float>(minima));
            acc[t] = inside ? added : acc[t];
        }
    }
    /* Where a lane's chain comes in the row's sum. */
    static DS4_DEVICE int chain_of_lane() { return lane(); }
};

/* Arranged Q8_0: neighbouring lanes read neighbouring 16 bytes, once in the first and once in the second half of the 1024
 * values. Two lanes have the halves of two units: each gives the other the half it needs and keeps one unit. */
template <> struct Share<Format::q8_0_arranged> {
    using Tables = NoTables;
    static constexpr int    kUnitsPerStep = 32;
    struct Loaded {
        uint4    first;
        uint4    second;
        uint16_t d;
    };
    static DS4_DEVICE int chain_of_lane() { return lane() / 2 + (lane() % 2 != 0 ? 16 : 0); }

    static DS4_DEVICE Loaded load(const std::byte *row, int64_t columns, int units, int step) {
        const int   last = units * 2 - 1;
        const int   quad = step * 64 + lane();
        const auto *quads = reinterpret_cast<const uint4 *>(row);
        const int   unit = step * 32 + chain_of_lane();
        return {load_once(quads + (quad < last ? quad : last)), load_once(quads + (quad + 32 < last ? quad + 32 : last)),
                load_half(row + columns + 2 * (unit < units ? unit : units - 1))};
    }
    static DS4_DEVICE int dot(const uint4 &a, const uint4 &b) {
        int sum = dot4(static_cast<int>(a.x), static_cast<int>(b.x), 0);
        sum = dot4(static_cast<int>(a.y), static_cast<int>(b.y), sum);
        sum = dot4(static_cast<int>(a.z), static_cast<int>(b.z), sum);
        return dot4(static_cast<int>(a.w), static_cast<int>(b.w), sum);
    }
    template <int tokens>
    static DS4_DEVICE void add(const Loaded &loaded, const Tables &, const ByteInputs &x, int units, int step,
                               float (&acc)[tokens]) {
        const bool      odd = lane() % 2 != 0;
        const int       last = units * 2 - 1;
        const int       quad = step * 64 + lane();
        const int       unit = step * 32 + chain_of_lane();
        const bool      inside = unit < units;
        const int       known = inside ? unit : units - 1;
        const UnitScale scale = {half_to_float(loaded.d), 0.0f};
#pragma unroll
        for (int t = 0; t < tokens; ++t) {
            const auto *quads = reinterpret_cast<const uint4 *>(x.words_of(t));
            const int   first = dot(loaded.first, quads[quad < last ? quad : last]);
            const int   second = dot(loaded.second, quads[quad + 32 < last ? quad + 32 : last]);
            const int   total = (odd ? second : first) + shuffle_xor(odd ? first : second, 1);
            const float added =
                accumulate<false>(acc[t], scale, x.d_of(t)[known], static_cast<float>(total), 0.0f);
            acc[t] = inside ? added : acc[t];
        }
    }
};

/* ---- units of floats ------------------------------------------------------------------------------ */

struct FloatInputs {
    const float *values; /* padded */
    int          stride; /* floats from token to token */
};

template <int tokens>
DS4_DEVICE FloatInputs take_floats(const Part &part, int64_t columns, int given, float *shared) {
    const int pieces = static_cast<int>((columns + 31) / 32);
    for (int t = 0; t < tokens; ++t) {
        const float *x = part.x + (t < given ? t : given - 1) * part.x_stride;
        float       *to = shared + t * pieces * kPaddedPiece;
        int          done = 0;
        if ((reinterpret_cast<uintptr_t>(x) & 15u) == 0) {
            constexpr int kAhead = 2; /* quads of a thread on their way at once */
            constexpr int kQuads = static_cast<int>(kThreads);
            const int     quads = static_cast<int>(columns / 4);
            for (int first = static_cast<int>(threadIdx.x); first < quads; first += kAhead * kQuads) {
                float4 v[kAhead];
#pragma unroll
                for (int i = 0; i < kAhead; ++i) {
                    const int quad = first + i * kQuads;
                    v[i] = load_floats4(x + 4 * (quad < quads ? quad : first));
                }
#pragma unroll
                for (int i = 0; i < kAhead; ++i) {
                    const int quad = first + i * kQuads;
                    if (quad < quads) {
                        *reinterpret_cast<float4 *>(to + quad / 8 * kPaddedPiece + quad % 8 * 4) = v[i];
                    }
                }
            }
            done = quads * 4;
        }
        for (int i = done + static_cast<int>(threadIdx.x); i < pieces * 32; i += static_cast<int>(kThreads)) {
            to[i / 32 * kPaddedPiece + i % 32] = i < columns ? x[i] : 0.0f;
        }
    }
    return {shared, pieces * kPaddedPiece};
}

template <Format format> struct FloatShare {
    using Tables = NoTables;
    static constexpr int    kUnitsPerStep = 32;
    using Loaded = PlainFloats<format>;
    static DS4_DEVICE int chain_of_lane() { return lane(); }

    static DS4_DEVICE Loaded load(const std::byte *row, int64_t columns, int units, int step) {
        const int unit = step * 32 + lane();
        return load_plain<format>(row, columns, unit < units ? unit : units - 1);
    }
    template <int tokens>
    static DS4_DEVICE void add(const Loaded &loaded, const Tables &, const FloatInputs &x, int units, int step,
                               float (&acc)[tokens]) {
        const int unit = step * 32 + lane();
        if (unit >= units) {
            return;
        }
#pragma unroll
        for (int t = 0; t < tokens; ++t) {
            const float *values = x.values + t * x.stride + unit * kPaddedPiece;
#pragma unroll
            for (int i = 0; i < 32; i += 4) {
                const float4 four = load_floats4(values + i);
                acc[t] = fmaf(loaded.value(i), four.x, acc[t]);
                acc[t] = fmaf(loaded.value(i + 1), four.y, acc[t]);
                acc[t] = fmaf(loaded.value(i + 2), four.z, acc[t]);
                acc[t] = fmaf(loaded.value(i + 3), four.w, acc[t]);
            }
        }
    }
};

template <Format format, Inputs inputs> struct ShareOf { using Type = Share<format>; };
template <Format format> struct ShareOf<format, Inputs::floats> { using Type = FloatShare<format>; };

/* ---- rows ------------------------------------------------------------------------------------------ */

/* Adds the chains of `count` sums, each lane one sum, and writes them. `room`: [rows * tokens][33] of this group. */
template <int rows, int tokens, Inputs inputs>
DS4_DEVICE void finish(const float (&acc)[rows][tokens], int chain, float *room, const Part &part, int64_t first,
                       int64_t last, int given) {
    static_assert(rows * tokens <= kLanes);
    const int place = inputs == Inputs::bytes_256 ? lane() / 8 : chain;
    if (inputs != Inputs::bytes_256 || lane() % 8 == 0) {
#pragma unroll
        for (int r = 0; r < rows; ++r) {
#pragma unroll
            for (int t = 0; t < tokens; ++t) {
                room[(r * tokens + t) * 33 + place] = acc[r][t];
            }
        }
    }
    sync_group();
    if (lane() < rows * tokens) {
        const int row = lane() / tokens, token = lane() % tokens;
        float     total = 0.0f;
#pragma unroll
        for (int c = 0; c < chains(inputs); ++c) {
            total += room[lane() * 33 + c];
        }
        if (first + row < last && token < given) {
            part.out[token * part.out_stride + first + row] = total;
        }
    }
    sync_group();
}

/* `rows` rows at a time, and of each `steps` times 1024 values. */
template <Format format, int tokens, int rows, int steps>
DS4_DEVICE void multiply_rows(const Part &part, int64_t columns, int64_t first_row, int64_t last_row, int given,
                              std::byte *shared, float *room) {
    constexpr Inputs kInputs = inputs_of(format, false);
    using One = typename ShareOf<format, kInputs>::Type;
    const int units = static_cast<int>((columns + unit_values(kInputs) - 1) / unit_values(kInputs));
    const int all_steps = (units + One::kUnitsPerStep - 1) / One::kUnitsPerStep;

    typename One::Loaded loaded[rows][steps];
    float                acc[rows][tokens] = {};
    int64_t              row = first_row + group() * rows;
    int                  step = 0;
    const auto           load = [&] {
#pragma unroll
        for (int r = 0; r < rows; ++r) {
            const int64_t known = row + r < last_row ? row + r : last_row - 1;
#pragma unroll
            for (int s = 0; s < steps; ++s) {
                if (step + s < all_steps) {
                    loaded[r][s] = One::load(part.data + known * part.row_bytes, columns, units, step + s);
                }
            }
        }
    };
    if (row < last_row) {
        load();
    }
    wait_for_inputs();
    let_next_start();

    typename One::Tables *tables = reinterpret_cast<typename One::Tables *>(shared);
    if constexpr (sizeof(typename One::Tables) > 1) {
        fill_tables(*tables);
        shared += sizeof(typename One::Tables);
    }
    const auto x = [&] {
        if constexpr (kInputs == Inputs::floats) {
            return take_floats<tokens>(part, columns, given, reinterpret_cast<float *>(shared));
        } else {
            return take_bytes<kInputs, tokens>(part, columns, given, shared);
        }
    }();
    sync_block();

    while (row < last_row) {
#pragma unroll
        for (int s = 0; s < steps; ++s) {
            if (step + s < all_steps) {
#pragma unroll
                for (int r = 0; r < rows; ++r) {
                    One::add(loaded[r][s], *tables, x, units, step + s, acc[r]);
                }
            }
        }
        const int64_t done = row;
        step += steps;
        const bool ended = step >= all_steps;
        if (ended) {
            step = 0;
            row += kGroups * rows;
        }
        if (row < last_row) {
            load();
        }
        if (ended) {
            finish<rows, tokens, kInputs>(acc, One::chain_of_lane(), room, part, done, last_row, given);
#pragma unroll
            for (int r = 0; r < rows; ++r) {
#pragma unroll
                for (int t = 0; t < tokens; ++t) {
                    acc[r][t] = 0.0f;
                }
            }
        }
    }
}

/* How many rows of how many steps a group has in flight. Units of floats take 4 times the registers. */
template <Format format, int tokens>
DS4_DEVICE void multiply_part(const Part &part, int64_t columns, int64_t first, int64_t last, int given,
                              std::byte *shared, float *room) {
    if constexpr (format == Format::f32) {
        multiply_rows<format, tokens, 1, 1>(part, columns, first, last, given, shared, room);
    } else if constexpr (inputs_of(format, false) == Inputs::floats || tokens > 1) {
        multiply_rows<format, tokens, tokens == 8 ? 1 : 2, 1>(part, columns, first, last, given, shared, room);
    } else if constexpr (format != Format::q8_0_arranged) {
        multiply_rows<format, tokens, 2, 1>(part, columns, first, last, given, shared, room);
    } else if (columns <= kStep) {
        multiply_rows<format, tokens, 4, 1>(part, columns, first, last, given, shared, room);
    } else {
        multiply_rows<format, tokens, 1, 4>(part, columns, first, last, given, shared, room);
    }
}

/* Formats of one kernel: a kernel with all of them needs more registers. */
enum class Choice { common, all };

template <Choice choice, int tokens> DS4_KERNEL __launch_bounds__(kThreads, tokens == 1 ? 2 : 1) project_rows(Parts parts, int given) {
    DS4_SHARED(std::byte, shared);
    /* Padding of the chains: [kGroups][rows * tokens][33] */
    __shared__ float room[kGroups][(tokens == 1 ? kMostRows : tokens == 8 ? 8 : 2 * tokens) * 33];

    const int     index = part_of_block(parts);
    const Part   &part = parts.part[index];
    const int     end = index + 1 < parts.count ? parts.part[index + 1].first_block : static_cast<int>(gridDim.x);
    const int64_t blocks = end - part.first_block;
    const int64_t block = static_cast<int64_t>(blockIdx.x) - part.first_block;
    const int64_t first = part.rows * block / blocks;
    const int64_t last = part.rows * (block + 1) / blocks;
    float        *sums = room[group()];

    switch (part.format) {
#define DS4_CASE(name)                                                                                                 \
    case Format::name: multiply_part<Format::name, tokens>(part, parts.columns, first, last, given, shared, sums); break
        DS4_CASE(q8_0_arranged);
        DS4_CASE(f16);
    default:
        if constexpr (choice == Choice::all) {
            switch (part.format) {
                DS4_CASE(f32);
                DS4_CASE(bf16);
                DS4_CASE(q8_0);
                DS4_CASE(mxfp4);
                DS4_CASE(q2_k);
                DS4_CASE(q4_k);
                DS4_CASE(q5_k);
                DS4_CASE(q6_k);
                DS4_CASE(iq2_xxs);
            default: break;
            }
        }
        break;
#undef DS4_CASE
    }
}

template <Choice choice> void start(const Stream &stream, const Parts &parts, int tokens, unsigned blocks, size_t bytes) {
    if (tokens == 1) {
        launch(stream, project_rows<choice, 1>, {blocks}, kThreads, bytes, parts, tokens);
    } else if (tokens == 2) {
        launch(stream, project_rows<choice, 2>, {blocks}, kThreads, bytes, parts, tokens);
    } else if (tokens <= 4) {
        launch(stream, project_rows<choice, 4>, {blocks}, kThreads, bytes, parts, tokens);
    } else {
        launch(stream, project_rows<choice, 8>, {blocks}, kThreads, bytes, parts, tokens);
    }
}

size_t table_bytes(Format format) { return format == Format::iq2_xxs ? sizeof(Iq2Tables) : 0; }

} // namespace

int64_t few_tokens(const CardFacts &card, int64_t columns, std::span<const Part> parts) {
    constexpr size_t kOfKernel = 20u << 10; /* room */
    const size_t     free = card.shared_bytes > kOfKernel ? card.shared_bytes - kOfKernel : 0;
    int64_t          tokens = 8;
    for (const Part &part : parts) {
        const size_t one = input_bytes(inputs_of(part.format, false), columns);
        while (tokens > 0 && static_cast<size_t>(tokens) * one + table_bytes(part.format) > free) {
            tokens /= 2;
        }
    }
    return tokens;
}

void project_few(const Stream &stream, const CardFacts &card, Parts parts, int64_t tokens) {
    const int rounded = tokens <= 2 ? static_cast<int>(tokens) : tokens <= 4 ? 4 : 8;
    int64_t   bytes_of_all = 0;
    size_t    shared_bytes = 0;
    bool      common = true;
    for (int i = 0; i < parts.count; ++i) {
        const Part &part = parts.part[i];
        bytes_of_all += part.rows * part.row_bytes;
        shared_bytes = std::max(shared_bytes, static_cast<size_t>(rounded) * input_bytes(inputs_of(part.format, false), parts.columns) +
                                                  table_bytes(part.format));
        common = common && (part.format == Format::q8_0_arranged || part.format == Format::f16);
    }
    /* Blocks by bytes; no more than a group of a block has something to do. */
    int64_t blocks = 0;
    for (int i = 0; i < parts.count; ++i) {
        Part         &part = parts.part[i];
        const int64_t fair = part.rows * part.row_bytes * kBlocksPerMultiprocessor * card.multiprocessors / std::max<int64_t>(bytes_of_all, 1);
        part.first_block = static_cast<int32_t>(blocks);
        blocks += std::clamp<int64_t>(fair, 1, std::max<int64_t>(part.rows, 1));
    }
    if (common) {
        start<Choice::common>(stream, parts, static_cast<int>(tokens), static_cast<unsigned>(blocks), shared_bytes);
    } else {
        start<Choice::all>(stream, parts, static_cast<int>(tokens), static_cast<unsigned>(blocks), shared_bytes);
    }
}

} // namespace ds4::backend::gpu
