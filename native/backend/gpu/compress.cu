/* Windows of tokens pooled into rows. Tokens go into rings of keys and gates, and when a window's last token is there, one
 * block pools the window from the rings: each thread takes a few channels of a part of the slots, and the parts are added
 * up in their order. How slots and channels are dealt out depends on the shape only, so that a window pooled while one
 * token is decoded has the same bits as one of a long prompt. */
#include "backend/gpu/gpu_ops.h"

#include <algorithm>

#include "backend/gpu/rope.h"
#include "backend/gpu/round_trip.h"
#include "backend/gpu/row_norm.h"
#include "backend/gpu/units.h"

namespace ds4::backend::gpu {

namespace {

constexpr int kMostThreads = 1024;
constexpr int kPutThreads = 256;

struct CompressJob {
    int64_t      tokens, ratio, ring_rows;
    Position     at;
    int32_t      halves, dim;
    Format       ape_format;
    RowRounding  rounding;
    int32_t      parts; /* of a window's slots */
    float        epsilon;
    const float *keys, *gates;
    const std::byte *ape;
    int64_t          ape_row_bytes;
    float           *key_ring, *gate_ring;
    const float     *norm;
    float           *rows;
};

/* ---- into the rings ------------------------------------------------------------------------------ */

constexpr bool one_by_one(Format format) {
    return format == Format::f32 || format == Format::f16 || format == Format::bf16;
}

/* Value `i` of a row of one of the formats above. */
DS4_DEVICE float value_at(Format format, const std::byte *row, int i) {
    switch (format) {
    case Format::f16: return half_to_float(reinterpret_cast<const uint16_t *>(row)[i]);
    case Format::bf16: return bf16_to_float(reinterpret_cast<const uint16_t *>(row)[i]);
    default: return reinterpret_cast<const float *>(row)[i];
    }
}

DS4_DEVICE void put_value(const CompressJob &job, int64_t from, int64_t to, float bias) {
    job.gate_ring[to] = bias + job.gates[from];
    job.key_ring[to] = job.keys[from];
}

/* A token's keys and gates, by a block; `ape_format` is one_by_one. */
DS4_DEVICE void put_token(const CompressJob &job, uint64_t position, int64_t token) {
    const int        width = job.halves * job.dim;
    const std::byte *ape = job.ape + static_cast<int64_t>(position % static_cast<uint64_t>(job.ratio)) * job.ape_row_bytes;
    const int64_t    to = static_cast<int64_t>(position % static_cast<uint64_t>(job.ring_rows)) * width;
    for (int i = static_cast<int>(threadIdx.x); i < width; i += static_cast<int>(blockDim.x)) {
        put_value(job, token * width + i, to + i, value_at(job.ape_format, ape, i));
    }
}

/* One block per token. */
DS4_KERNEL compress_put(CompressJob job) {
    wait_for_inputs();
    let_next_start();
    put_token(job, position_of(job.at) + blockIdx.x, blockIdx.x);
}

/* One block per token, for formats that are expanded 32 values at a time. */
template <Format format> DS4_KERNEL compress_put_pieces(CompressJob job) {
    wait_for_inputs();
    let_next_start();
    const int        width = job.halves * job.dim;
    const uint64_t   position = position_of(job.at) + blockIdx.x;
    const std::byte *ape = job.ape + static_cast<int64_t>(position % static_cast<uint64_t>(job.ratio)) * job.ape_row_bytes;
    const int64_t    to = static_cast<int64_t>(position % static_cast<uint64_t>(job.ring_rows)) * width;
    for (int piece = static_cast<int>(threadIdx.x); 32 * piece < width; piece += static_cast<int>(blockDim.x)) {
        float bias[32];
        floats<format>(ape, width, piece, bias);
        for (int i = 0; i < 32 && 32 * piece + i < width; ++i) {
            put_value(job, static_cast<int64_t>(blockIdx.x) * width + 32 * piece + i, to + 32 * piece + i, bias[i]);
        }
    }
}

/* ---- out of the rings ---------------------------------------------------------------------------- */

template <int width> struct Channels {
    float value[width];
};
DS4_DEVICE void load(const float *from, Channels<1> &to) { to.value[0] = *from; }
DS4_DEVICE void load(const float *from, Channels<4> &to) {
    const float4 four = *reinterpret_cast<const float4 *>(from);
    to = {{four.x, four.y, four.z, four.w}};
}

/* Where the slots of a window lie. With two halves a row pools the first half of the channels of the previous window's
 * tokens (there are none in front of window 0) and the second half of its own: slots are counted over both. */
struct Slots {
    int ratio, halves, dim, ring_rows;
    int ring_start; /* row of the first own token */
    int first, end;

    /* Of channel 0. */
    DS4_DEVICE int64_t offset(int slot) const {
        const int half = slot / ratio;
        int       row = ring_start + slot % ratio - (half + 1 < halves ? ratio : 0);
        row += row < 0 ? ring_rows : row >= ring_rows ? -ring_rows : 0;
        return (static_cast<int64_t>(row) * halves + half) * dim;
    }
};

DS4_DEVICE Slots slots_of(const CompressJob &job, uint64_t window) {
    const int      ratio = static_cast<int>(job.ratio);
    const uint64_t start = window * static_cast<uint64_t>(job.ratio) % static_cast<uint64_t>(job.ring_rows);
    return {ratio, job.halves, job.dim, static_cast<int>(job.ring_rows), static_cast<int>(start),
            window == 0 ? (job.halves - 1) * ratio : 0, job.halves * ratio};
}

/* Softmax over the slots, per channel: highest [parts, dim], then totals and mixed [parts, dim]. `width` channels a thread,
 * which divides dim. */
template <int width>
DS4_DEVICE void pool(const CompressJob &job, const Slots &slots, float *highest, float *totals, float *mixed) {
    constexpr int kAtOnce = 4; /* what 64 registers hold */
    const int     units = job.dim / width;
    const int     columns = static_cast<int>(blockDim.x) / job.parts;
    const int     column = static_cast<int>(threadIdx.x) % columns;
    const int     part = static_cast<int>(threadIdx.x) / columns;
    const int     share = (slots.end - slots.first + job.parts - 1) / job.parts;
    const int     first = slots.first + part * share;
    const int     end = min(first + share, slots.end);
    const bool    takes_part = part < job.parts;

    for (int unit = column; takes_part && unit < units; unit += columns) {
        float most[width];
        for (int i = 0; i < width; ++i) {
            most[i] = -INFINITY;
        }
        for (int slot = first; slot < end; slot += kAtOnce) {
            Channels<width> gates[kAtOnce];
#pragma unroll
            for (int s = 0; s < kAtOnce; ++s) { /* slots that are missing repeat the last one */
                load(job.gate_ring + slots.offset(min(slot + s, end - 1)) + unit * width, gates[s]);
            }
#pragma unroll
            for (int s = 0; s < kAtOnce; ++s) {
                for (int i = 0; i < width; ++i) {
                    most[i] = gates[s].value[i] > most[i] ? gates[s].value[i] : most[i];
                }
            }
        }
        for (int i = 0; i < width; ++i) {
            highest[part * job.dim + unit * width + i] = most[i];
        }
    }
    sync_block();

    for (int unit = column; takes_part && unit < units; unit += columns) {
        float most[width], total[width], sum[width];
        for (int i = 0; i < width; ++i) {
            most[i] = highest[unit * width + i];
            total[i] = 0.0f;
            sum[i] = 0.0f;
        }
        for (int other = 1; other < job.parts; ++other) {
            for (int i = 0; i < width; ++i) {
                most[i] = fmaxf(most[i], highest[other * job.dim + unit * width + i]);
            }
        }
        for (int slot = first; slot < end; slot += kAtOnce) {
            Channels<width> gates[kAtOnce], keys[kAtOnce];
#pragma unroll
            for (int s = 0; s < kAtOnce; ++s) {
                const int64_t offset = slots.offset(min(slot + s, end - 1)) + unit * width;
                load(job.gate_ring + offset, gates[s]);
                load(job.key_ring + offset, keys[s]);
            }
#pragma unroll
            for (int s = 0; s < kAtOnce; ++s) {
                for (int i = 0; i < width && slot + s < end; ++i) {
                    const float weight = expf(gates[s].value[i] - most[i]);
                    total[i] += weight;
                    sum[i] = fmaf(weight, keys[s].value[i], sum[i]);
                }
            }
        }
        for (int i = 0; i < width; ++i) {
            totals[part * job.dim + unit * width + i] = total[i];
            mixed[part * job.dim + unit * width + i] = sum[i];
        }
    }
}

/* The row of a window whose tokens are all in the rings, by a block. shared: [3, parts, dim] */
DS4_DEVICE void make_row(const CompressJob &job, const RopeTable &rope, uint64_t window, float *shared) {
    const int    thread = static_cast<int>(threadIdx.x);
    const int    threads = static_cast<int>(blockDim.x);
    const int    dim = job.dim;
    const Slots  slots = slots_of(job, window);
    float *const row = shared; /* where the highest gates were */
    float *const totals = shared + job.parts * dim;
    float *const mixed = totals + job.parts * dim;
    if (dim % 4 == 0) {
        pool<4>(job, slots, shared, totals, mixed);
    } else {
        pool<1>(job, slots, shared, totals, mixed);
    }
    sync_block();

    float squares = 0.0f;
    for (int i = thread; i < dim; i += threads) {
        float total = 0.0f, sum = 0.0f;
        for (int part = 0; part < job.parts; ++part) {
            total += totals[part * dim + i];
            sum += mixed[part * dim + i];
        }
        row[i] = sum / total;
        squares = fmaf(row[i], row[i], squares);
    }
    const float factor = inverse_rms_of_block(squares, dim, job.epsilon);
    for (int i = thread; i < dim; i += threads) {
        row[i] = row[i] * factor * job.norm[i];
    }
    sync_block();

    const int plain = dim - 2 * rope.pairs;
    rotate(row + plain, rope, window * static_cast<uint64_t>(job.ratio), thread, threads);
    sync_block();
    switch (job.rounding) {
    case RowRounding::none: break;
    case RowRounding::fp8: fp8_round_trip(row, plain, group(), groups()); break;
    case RowRounding::hadamard_fp4:
        if (group() == 0) {
            hadamard(row, dim);
            fp4_round_trip(row, dim);
        }
        break;
    }
    sync_block();
    float *out = job.rows + static_cast<int64_t>(window) * dim;
    for (int i = thread; i < dim; i += threads) {
        out[i] = row[i];
    }
}

/* One token by one block. Whether it closes a window is seen on the device: a recorded step runs at any position. */
DS4_KERNEL __launch_bounds__(kMostThreads) compress_token(CompressJob job, RopeTable rope) {
    DS4_SHARED(float, shared);
    wait_for_inputs();
    let_next_start();
    const uint64_t position = position_of(job.at);
    const auto     ratio = static_cast<uint64_t>(job.ratio);
    put_token(job, position, 0);
    if ((position + 1) % ratio != 0) {
        return;
    }
    sync_block(); /* the block sees its own writes */
    make_row(job, rope, position / ratio, shared);
}

/* One block per window that can close in the batch. */
DS4_KERNEL __launch_bounds__(kMostThreads) compress_windows(CompressJob job, RopeTable rope) {
    DS4_SHARED(float, shared);
    wait_for_inputs();
    let_next_start();
    const uint64_t position = position_of(job.at);
    const auto     ratio = static_cast<uint64_t>(job.ratio);
    const uint64_t window = position / ratio + blockIdx.x;
    if (window < (position + static_cast<uint64_t>(job.tokens)) / ratio) {
        make_row(job, rope, window, shared);
    }
}

void put(const Stream &stream, const CompressJob &job) {
    const Grid each_token{static_cast<unsigned>(job.tokens)};
    const auto pieces = [&](void (*kernel)(CompressJob)) { launch(stream, kernel, each_token, kLanes, 0, job); };
    switch (job.ape_format) {
    case Format::f32:
    case Format::f16:
    case Format::bf16: launch(stream, compress_put, each_token, kPutThreads, 0, job); return;
    case Format::q8_0: pieces(compress_put_pieces<Format::q8_0>); return;
    case Format::q8_0_arranged: pieces(compress_put_pieces<Format::q8_0_arranged>); return;
    case Format::mxfp4: pieces(compress_put_pieces<Format::mxfp4>); return;
    case Format::q2_k: pieces(compress_put_pieces<Format::q2_k>); return;
    case Format::q4_k: pieces(compress_put_pieces<Format::q4_k>); return;
    case Format::q5_k: pieces(compress_put_pieces<Format::q5_k>); return;
    case Format::q6_k: pieces(compress_put_pieces<Format::q6_k>); return;
    case Format::iq2_xxs: pieces(compress_put_pieces<Format::iq2_xxs>); return;
    }
}

} // namespace

void GpuOps::compress(const CompressArgs &args) {
    if (args.tokens == 0) {
        return;
    }
    const int64_t units = args.dim % 4 == 0 ? args.dim / 4 : args.dim;
    const int64_t slots = args.halves * args.ratio;
    const int64_t parts = std::clamp<int64_t>(kMostThreads / units, 1, slots);
    const int64_t threads = std::min<int64_t>((units * parts + kLanes - 1) / kLanes * kLanes, kMostThreads);
    CompressJob   job{};
    job.tokens = args.tokens;
    job.ratio = args.ratio;
    job.ring_rows = args.ring_rows;
    job.at = at(args.position);
    job.halves = static_cast<int32_t>(args.halves);
    job.dim = static_cast<int32_t>(args.dim);
    job.ape_format = format_of(args.ape->type, args.ape->layout);
    job.rounding = args.rounding;
    job.parts = static_cast<int32_t>(parts);
    job.epsilon = args.epsilon;
    job.keys = args.keys;
    job.gates = args.gates;
    job.ape = args.ape->data;
    job.ape_row_bytes = args.ape->row_bytes;
    job.key_ring = args.key_ring;
    job.gate_ring = args.gate_ring;
    job.norm = args.norm;
    job.rows = args.rows;
    const RopeTable rope = rope_table(args.rope);
    const auto      shared_bytes = static_cast<size_t>(3 * parts * args.dim) * sizeof(float);
    if (args.tokens == 1 && one_by_one(job.ape_format)) {
        launch(stream_, compress_token, Grid{}, static_cast<unsigned>(threads), shared_bytes, job, rope);
        return;
    }
    put(stream_, job);
    launch(stream_, compress_windows, {static_cast<unsigned>(args.tokens / args.ratio + 1)}, static_cast<unsigned>(threads),
           shared_bytes, job, rope);
}

size_t compress_scratch(const OpsLimits &) {
    return 0;
}

} // namespace ds4::backend::gpu
