/* The residual streams in front of a sublayer and of the head: mixing weights from the streams themselves, collapse, norm.
 * All of it float32, whatever the arithmetic of the rest: these few values steer everything.
 *
 * Two kernels. The first multiplies slices of the streams by fn, many blocks for one token (stream_mixes.cu); the second, a
 * block per token, adds the slices up and uses what comes out. Both are the same for any number of tokens. */
#include "backend/gpu/gpu_ops.h"
#include "backend/gpu/row_norm.h"
#include "backend/gpu/sinkhorn.h"
#include "backend/gpu/stream_mixes.h"

namespace ds4::backend::gpu {

namespace {

struct CollapseShape {
    int64_t tokens;
    int64_t width;
    int32_t hc;
    int32_t slices;
    int32_t values;
    int32_t balance_blocks; /* the first blocks of the grid: a group per token balances its mixing matrix */
    int32_t sinkhorn_iterations;
    float   hc_epsilon;
    float   rms_epsilon;
};

struct CollapsePointers {
    const float *streams;  /* [tokens, hc, width] */
    const float *partials; /* [tokens, slices, values] */
    const float *base;
    const float *scale;
    const float *norm; /* [width] */
    float       *x;    /* out [tokens, width] */
    float       *post; /* out [tokens, hc] */
    float       *comb; /* out [tokens, hc, hc] */
};

/* A value of all slices. A slice is added to the one four in front of it, so that only every fourth addition waits. */
DS4_DEVICE float sum_of_slices(const float *partials, const CollapseShape &shape, int value) {
    constexpr int kAtOnce = 32;
    float         chain[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    int           first = 0;
    partials += value;
    for (; first + kAtOnce <= shape.slices; first += kAtOnce) {
        float part[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            part[i] = partials[(first + i) * shape.values];
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            chain[i % 4] += part[i];
        }
    }
    for (; first < shape.slices; first += 4) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            chain[i] += first + i < shape.slices ? partials[(first + i) * shape.values] : 0.0f;
        }
    }
    return (chain[0] + chain[1]) + (chain[2] + chain[3]);
}

DS4_DEVICE float inverse_rms_of_streams(float squares, const CollapseShape &shape) {
    return 1.0f / sqrtf(squares / static_cast<float>(shape.hc * shape.width) + shape.rms_epsilon);
}

DS4_DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

/* post and comb of a token, by a group. shared: [hc * hc] of the group, not used with four streams. */
template <int fixed_hc>
DS4_DEVICE void balance_token(const CollapsePointers &at, const CollapseShape &shape, int64_t token, float *shared) {
    const int    hc = fixed_hc != 0 ? fixed_hc : shape.hc;
    const float *partials = at.partials + token * shape.slices * shape.values;
    float       *post = at.post + token * hc;
    float       *comb = at.comb + token * hc * hc;
    if constexpr (fixed_hc == 4) { /* a value per lane */
        const int   kind = lane() < 4 ? 0 : lane() < 8 ? 1 : 2;
        const float scale = at.scale[kind];
        const float base = lane() < 24 ? at.base[lane()] : 0.0f;
        const float sum = sum_of_slices(partials, shape, lane());
        const float inverse = inverse_rms_of_streams(shuffle(sum, square_place(32)), shape);
        const float logit = sum * inverse * scale + base;
        float       matrix[4][4];
#pragma unroll
        for (int a = 0; a < 4; ++a) {
#pragma unroll
            for (int b = 0; b < 4; ++b) {
                matrix[a][b] = shuffle(logit, 8 + 4 * a + b);
            }
        }
        balance_four(matrix, shape.sinkhorn_iterations, shape.hc_epsilon);
        if (kind == 1) {
            post[lane() - 4] = 2.0f * sigmoid(logit);
        }
#pragma unroll
        for (int a = 0; a < 4; ++a) {
            if (lane() == a) {
                reinterpret_cast<float4 *>(comb)[a] = make_float4(matrix[a][0], matrix[a][1], matrix[a][2], matrix[a][3]);
            }
        }
    } else {
        const float inverse = inverse_rms_of_streams(sum_of_slices(partials, shape, square_place(shape.values)), shape);
        if (lane() < hc) {
            const int i = hc + lane();
            post[lane()] = 2.0f * sigmoid(sum_of_slices(partials, shape, i) * inverse * at.scale[1] + at.base[i]);
        }
        for (int i = lane(); i < hc * hc; i += kLanes) {
            shared[i] = sum_of_slices(partials, shape, 2 * hc + i) * inverse * at.scale[2] + at.base[2 * hc + i];
        }
        sync_group();
        balance_any(shared, hc, shape.sinkhorn_iterations, shape.hc_epsilon);
        for (int i = lane(); i < hc * hc; i += kLanes) {
            comb[i] = shared[i];
        }
    }
}

/* The weights of the streams in the collapse, by the first group of a block. shared: [hc], visible after sync_block. */
DS4_DEVICE void gate_streams(const CollapsePointers &at, const CollapseShape &shape, int64_t token, float *shared) {
    const float *partials = at.partials + token * shape.slices * shape.values;
    /* The lane behind the last gate adds up the squares. Of at most 16 streams. */
    const bool  has_gate = lane() < shape.hc;
    const float scale = at.scale[0];
    const float base = has_gate ? at.base[lane()] : 0.0f;
    const float sum = sum_of_slices(partials, shape, has_gate ? lane() : square_place(shape.values));
    const float inverse = inverse_rms_of_streams(shuffle(sum, shape.hc), shape);
    if (has_gate) {
        shared[lane()] = sigmoid(sum * inverse * scale + base) + shape.hc_epsilon;
    }
}

constexpr unsigned kMostThreads = 512;
constexpr int      kMostStreams = 16; /* more are refused when a model is opened */

/* x[t] = norm * RMS norm of sum_s gate[s] * streams[t, s], post[t] and comb[t]
 *
 * The mixing matrix is a long chain of short steps and the collapse a wide one, so they have blocks of their own. A block
 * collapses a token, all of its streams in registers: `vectors` times four columns a thread. They are read before the wait
 * for the mixes, as mix_streams allows. */
template <int fixed_hc, int vectors>
DS4_KERNEL __launch_bounds__(kMostThreads) hc_collapse(CollapsePointers at, CollapseShape shape) {
    __shared__ float gates[kMostStreams];
    if (static_cast<int>(blockIdx.x) < shape.balance_blocks) {
        constexpr int    kRoom = fixed_hc == 4 ? 1 : kMostStreams * kMostStreams;
        __shared__ float matrices[kMostThreads / kLanes][kRoom];
        wait_for_inputs();
        let_next_start();
        const int64_t token = static_cast<int64_t>(blockIdx.x) * groups() + group();
        if (token < shape.tokens) {
            balance_token<fixed_hc>(at, shape, token, matrices[group()]);
        }
        return;
    }
    const int64_t token = static_cast<int64_t>(blockIdx.x) - shape.balance_blocks;
    if constexpr (vectors != 0) {
        constexpr int hc = fixed_hc;
        const int     thread = static_cast<int>(threadIdx.x);
        const int     threads = static_cast<int>(blockDim.x);
        const int     count = static_cast<int>(shape.width / 4);
        const auto   *streams = reinterpret_cast<const float4 *>(at.streams + token * hc * shape.width);
        float4        own[vectors][hc], factor[vectors];
#pragma unroll
        for (int i = 0; i < vectors; ++i) {
            const int column = thread + i * threads;
#pragma unroll
            for (int s = 0; s < hc; ++s) {
                own[i][s] = column < count ? streams[s * count + column] : float4{};
            }
            factor[i] = column < count ? reinterpret_cast<const float4 *>(at.norm)[column] : float4{};
        }
        wait_for_inputs();
        let_next_start();
        if (group() == 0) {
            gate_streams(at, shape, token, gates);
        }
        sync_block();

        float4 mixed[vectors];
        float  squares = 0.0f;
#pragma unroll
        for (int i = 0; i < vectors; ++i) {
            float4 sum{};
#pragma unroll
            for (int s = 0; s < hc; ++s) {
                const float gate = gates[s];
                sum.x = fmaf(gate, own[i][s].x, sum.x);
                sum.y = fmaf(gate, own[i][s].y, sum.y);
                sum.z = fmaf(gate, own[i][s].z, sum.z);
                sum.w = fmaf(gate, own[i][s].w, sum.w);
            }
            squares = fmaf(sum.x, sum.x, squares);
            squares = fmaf(sum.y, sum.y, squares);
            squares = fmaf(sum.z, sum.z, squares);
            squares = fmaf(sum.w, sum.w, squares);
            mixed[i] = sum;
        }
        const float inverse = inverse_rms_of_block(squares, shape.width, shape.rms_epsilon);
        auto       *to = reinterpret_cast<float4 *>(at.x + token * shape.width);
#pragma unroll
        for (int i = 0; i < vectors; ++i) {
            const int column = thread + i * threads;
            if (column < count) {
                to[column] = make_float4(mixed[i].x * inverse * factor[i].x, mixed[i].y * inverse * factor[i].y,
                                         mixed[i].z * inverse * factor[i].z, mixed[i].w * inverse * factor[i].w);
            }
        }
    } else {
        wait_for_inputs();
        let_next_start();
        if (group() == 0) {
            gate_streams(at, shape, token, gates);
        }
        sync_block();

        const float *streams = at.streams + token * shape.hc * shape.width;
        float       *to = at.x + token * shape.width;
        float        squares = 0.0f;
        for (int64_t i = threadIdx.x; i < shape.width; i += blockDim.x) {
            float sum = 0.0f;
            for (int s = 0; s < shape.hc; ++s) {
                sum = fmaf(gates[s], streams[s * shape.width + i], sum);
            }
            squares = fmaf(sum, sum, squares);
            to[i] = sum;
        }
        const float inverse = inverse_rms_of_block(squares, shape.width, shape.rms_epsilon);
        for (int64_t i = threadIdx.x; i < shape.width; i += blockDim.x) {
            to[i] = to[i] * inverse * at.norm[i];
        }
    }
}

void collapse_streams(const Stream &stream, const CollapsePointers &at, const CollapseShape &shape) {
    const unsigned threads = row_threads(shape.width);
    const int64_t  vectors = (shape.width / 4 + threads - 1) / threads;
    const auto     run = [&](auto kernel) {
        launch(stream, kernel, Grid{static_cast<unsigned>(shape.tokens + shape.balance_blocks)}, threads, 0, at, shape);
    };
    if (shape.hc != 4) {
        run(hc_collapse<0, 0>);
    } else if (shape.width % 4 != 0 || vectors > 4) {
        run(hc_collapse<4, 0>);
    } else if (vectors == 1) {
        run(hc_collapse<4, 1>);
    } else if (vectors == 2) {
        run(hc_collapse<4, 2>);
    } else {
        run(hc_collapse<4, 4>);
    }
}

/* What hc_pre and hc_head have in common. */
template <typename Args> CollapseShape collapse_shape(const Args &args, const MixShape &mixes) {
    CollapseShape shape{};
    shape.tokens = args.tokens;
    shape.width = args.width;
    shape.hc = static_cast<int32_t>(args.hc);
    shape.slices = mixes.slices;
    shape.values = mixes.values;
    shape.hc_epsilon = args.hc_epsilon;
    shape.rms_epsilon = args.rms_epsilon;
    return shape;
}

} // namespace

void GpuOps::hc_pre(const HcPreArgs &args) {
    if (args.tokens == 0) {
        return;
    }
    const MixShape mixes = mix_shape(args.tokens, *args.fn, device_.facts().multiprocessors);
    std::byte     *memory = scratch(mix_bytes(mixes, *args.fn));
    mix_streams(stream_, args.streams, *args.fn, mixes, memory);

    CollapseShape shape = collapse_shape(args, mixes);
    const int64_t groups = row_threads(args.width) / kLanes;
    shape.balance_blocks = static_cast<int32_t>((args.tokens + groups - 1) / groups);
    shape.sinkhorn_iterations = static_cast<int32_t>(args.sinkhorn_iterations);
    collapse_streams(stream_,
                     {args.streams, reinterpret_cast<const float *>(memory), args.base, args.scale, args.norm, args.x,
                      args.post, args.comb},
                     shape);
}

void GpuOps::hc_head(const HcHeadArgs &args) {
    if (args.tokens == 0) {
        return;
    }
    const MixShape mixes = mix_shape(args.tokens, *args.fn, device_.facts().multiprocessors);
    std::byte     *memory = scratch(mix_bytes(mixes, *args.fn));
    mix_streams(stream_, args.streams, *args.fn, mixes, memory);

    const CollapseShape shape = collapse_shape(args, mixes);
    collapse_streams(stream_,
                     {args.streams, reinterpret_cast<const float *>(memory), args.base, args.scale, args.norm, args.x, nullptr,
                      nullptr},
                     shape);
}

size_t hc_scratch(const OpsLimits &limits) {
    return mix_bytes(limits.tokens, limits.hc * limits.width, 2 * limits.hc + limits.hc * limits.hc);
}

} // namespace ds4::backend::gpu
