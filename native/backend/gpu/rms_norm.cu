#include "backend/gpu/gpu_ops.h"
#include "backend/gpu/row_norm.h"

namespace ds4::backend::gpu {

namespace {

constexpr unsigned kMostThreads = 512;

/* out[r, :] = x[r, :] * weight / rms(x[r, :])      x, out: [rows, width], the same or apart
 *
 * A block per row, four neighbouring values at a time per thread, all read before the first is used: with one row the time
 * is that of one way to memory and back. Decode and prefill use the same blocks, so the sum has one order. */
template <int vectors>
DS4_KERNEL __launch_bounds__(kMostThreads) rms_norm_f32_vectors(const float *x, const float *weight, int64_t width,
                                                                float epsilon, float *out) {
    const int thread = static_cast<int>(threadIdx.x);
    const int threads = static_cast<int>(blockDim.x);
    const int count = static_cast<int>(width / 4);
    float4    factor[vectors];
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
        const int at = thread + i * threads;
        factor[i] = at < count ? reinterpret_cast<const float4 *>(weight)[at] : float4{};
    }
    wait_for_inputs();
    let_next_start();

    const auto *row = reinterpret_cast<const float4 *>(x + static_cast<int64_t>(blockIdx.x) * width);
    auto       *to = reinterpret_cast<float4 *>(out + static_cast<int64_t>(blockIdx.x) * width);
    float4      value[vectors];
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
        const int at = thread + i * threads;
        value[i] = at < count ? row[at] : float4{};
    }
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
        squares = fmaf(value[i].x, value[i].x, squares);
        squares = fmaf(value[i].y, value[i].y, squares);
        squares = fmaf(value[i].z, value[i].z, squares);
        squares = fmaf(value[i].w, value[i].w, squares);
    }
    const float inverse = inverse_rms_of_block(squares, width, epsilon);
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
        const int at = thread + i * threads;
        if (at < count) {
            to[at] = make_float4(value[i].x * inverse * factor[i].x, value[i].y * inverse * factor[i].y,
                                 value[i].z * inverse * factor[i].z, value[i].w * inverse * factor[i].w);
        }
    }
}

/* Any width: each thread reads its values twice. */
DS4_KERNEL __launch_bounds__(kMostThreads) rms_norm_f32_any(const float *x, const float *weight, int64_t width,
                                                            float epsilon, float *out) {
    wait_for_inputs();
    let_next_start();
    const float *row = x + static_cast<int64_t>(blockIdx.x) * width;
    float       *to = out + static_cast<int64_t>(blockIdx.x) * width;
    float        squares = 0.0f;
    for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
        squares = fmaf(row[i], row[i], squares);
    }
    const float inverse = inverse_rms_of_block(squares, width, epsilon);
    for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
        to[i] = row[i] * inverse * weight[i];
    }
}

} // namespace

void GpuOps::rms_norm(const RmsNormArgs &args) {
    if (args.rows == 0) {
        return;
    }
    const unsigned threads = row_threads(args.width);
    const int64_t  vectors = (args.width / 4 + threads - 1) / threads;
    const auto     run = [&](auto kernel) {
        launch(stream_, kernel, Grid{static_cast<unsigned>(args.rows)}, threads, 0, args.x, args.weight, args.width,
               args.epsilon, args.out);
    };
    if (args.width % 4 != 0 || vectors > 4) {
        run(rms_norm_f32_any);
    } else if (vectors == 1) {
        run(rms_norm_f32_vectors<1>);
    } else if (vectors == 2) {
        run(rms_norm_f32_vectors<2>);
    } else {
        run(rms_norm_f32_vectors<4>);
    }
}

} // namespace ds4::backend::gpu
