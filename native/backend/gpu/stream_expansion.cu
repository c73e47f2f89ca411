/* The residual streams behind a sublayer. */
#include "backend/gpu/gpu_ops.h"

namespace ds4::backend::gpu {

namespace {

constexpr int kMostStreams = 16; /* more are refused when a model is opened */

struct ExpandPointers {
    float       *streams; /* in place [tokens, hc, width] */
    const float *y;       /* [tokens, width] */
    const float *post;    /* [tokens, hc] */
    const float *comb;    /* [tokens, hc, hc] */
    int32_t     *bad_layer;
};

struct ExpandShape {
    int64_t tokens;
    int64_t width;
    int32_t hc;
    int32_t chunks; /* blocks per token */
    int32_t layer;
};

constexpr uint32_t kNotFinite = 0x7f800000u; /* the exponent of infinities and NaNs */

DS4_DEVICE uint32_t exponent_of(float x) { return bits_as<uint32_t>(x) & kNotFinite; }
DS4_DEVICE uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* Whoever finds something bad writes the same number, so they need not take turns. */
DS4_DEVICE void remember(const ExpandPointers &at, const ExpandShape &shape, int64_t token, uint32_t exponent) {
    if (exponent == kNotFinite && at.bad_layer != nullptr && token == shape.tokens - 1 && *at.bad_layer < 0) {
        *at.bad_layer = shape.layer;
    }
}

/* streams'[t, b] = post[t, b] * y[t] + sum_a comb[t, a, b] * streams[t, a], four columns of the four streams per thread. */
DS4_KERNEL hc_expand_four_streams(ExpandPointers at, ExpandShape shape) {
    const int64_t token = blockIdx.x / static_cast<unsigned>(shape.chunks);
    const int64_t chunk = blockIdx.x % static_cast<unsigned>(shape.chunks);
    const int64_t column = chunk * blockDim.x + threadIdx.x;
    const int64_t count = shape.width / 4;
    wait_for_inputs();
    let_next_start();
    if (column >= count) {
        return;
    }
    auto  *streams = reinterpret_cast<float4 *>(at.streams) + token * 4 * count + column;
    float4 old[4], comb[4];
#pragma unroll
    for (int a = 0; a < 4; ++a) {
        old[a] = streams[a * count];
        comb[a] = reinterpret_cast<const float4 *>(at.comb)[token * 4 + a];
    }
    const float4 y = reinterpret_cast<const float4 *>(at.y)[token * count + column];
    const float4 post = reinterpret_cast<const float4 *>(at.post)[token];
    const float  share[4] = {post.x, post.y, post.z, post.w};
    uint32_t     exponent = 0; /* the largest */
#pragma unroll
    for (int b = 0; b < 4; ++b) {
        float4 sum = make_float4(share[b] * y.x, share[b] * y.y, share[b] * y.z, share[b] * y.w);
#pragma unroll
        for (int a = 0; a < 4; ++a) {
            const float weight = b == 0 ? comb[a].x : b == 1 ? comb[a].y : b == 2 ? comb[a].z : comb[a].w;
            sum.x = fmaf(weight, old[a].x, sum.x);
            sum.y = fmaf(weight, old[a].y, sum.y);
            sum.z = fmaf(weight, old[a].z, sum.z);
            sum.w = fmaf(weight, old[a].w, sum.w);
        }
        streams[b * count] = sum;
        exponent = larger(exponent, larger(larger(exponent_of(sum.x), exponent_of(sum.y)),
                                           larger(exponent_of(sum.z), exponent_of(sum.w))));
    }
    remember(at, shape, token, exponent);
}

/* Any number of streams, any width: a column per thread. */
DS4_KERNEL hc_expand_any(ExpandPointers at, ExpandShape shape) {
    const int64_t token = blockIdx.x / static_cast<unsigned>(shape.chunks);
    const int64_t chunk = blockIdx.x % static_cast<unsigned>(shape.chunks);
    const int64_t column = chunk * blockDim.x + threadIdx.x;
    wait_for_inputs();
    let_next_start();
    if (column >= shape.width) {
        return;
    }
    const int    hc = shape.hc;
    float       *streams = at.streams + token * hc * shape.width + column;
    const float *post = at.post + token * hc;
    const float *comb = at.comb + token * hc * hc;
    const float  y = at.y[token * shape.width + column];
    float        old[kMostStreams];
    for (int a = 0; a < hc; ++a) {
        old[a] = streams[a * shape.width];
    }
    uint32_t exponent = 0;
    for (int b = 0; b < hc; ++b) {
        float sum = post[b] * y;
        for (int a = 0; a < hc; ++a) {
            sum = fmaf(comb[a * hc + b], old[a], sum);
        }
        streams[b * shape.width] = sum;
        exponent = larger(exponent, exponent_of(sum));
    }
    remember(at, shape, token, exponent);
}

} // namespace

void GpuOps::hc_post(const HcPostArgs &args) {
    if (args.tokens == 0) {
        return;
    }
    const bool     four = args.hc == 4 && args.width % 4 == 0;
    const int64_t  columns = four ? args.width / 4 : args.width;
    const unsigned threads = args.tokens < 8 ? 32 : 256; /* few tokens: spread over the multiprocessors */
    ExpandShape    shape{};
    shape.tokens = args.tokens;
    shape.width = args.width;
    shape.hc = static_cast<int32_t>(args.hc);
    shape.chunks = static_cast<int32_t>((columns + threads - 1) / threads);
    shape.layer = args.layer;
    const ExpandPointers at{args.streams, args.y, args.post, args.comb, args.bad_layer};
    launch(stream_, four ? hc_expand_four_streams : hc_expand_any, Grid{static_cast<unsigned>(args.tokens * shape.chunks)},
           threads, 0, at, shape);
}

} // namespace ds4::backend::gpu
