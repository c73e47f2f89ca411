/* A token's row of the embedding in each of its streams. */
#include "backend/gpu/embed.h"

#include "backend/gpu/gpu_ops.h"
#include "backend/gpu/units.h"

namespace ds4::backend::gpu {

namespace {

constexpr unsigned kThreads = 128;

struct RowsShape {
    int64_t columns;
    int64_t row_bytes;
    int64_t copies;
    int32_t blocks; /* per row */
};

/* Values that lie one after another. */
template <Format format>
constexpr bool kPlain = format == Format::f32 || format == Format::f16 || format == Format::bf16;

DS4_DEVICE float plain_value(const std::byte *row, int64_t column, Format format) {
    if (format == Format::f32) {
        return reinterpret_cast<const float *>(row)[column];
    }
    const uint16_t bits = reinterpret_cast<const uint16_t *>(row)[column];
    return format == Format::f16 ? half_to_float(bits) : bf16_to_float(bits);
}

/* out[i, copy, :] = matrix[rows[i], :], a value per thread, or 32 where they lie in blocks. */
template <Format format>
DS4_KERNEL expand_rows_copies(const std::byte *matrix, const int32_t *rows, RowsShape shape, float *out) {
    wait_for_inputs();
    let_next_start();
    const int64_t    i = blockIdx.x / static_cast<unsigned>(shape.blocks);
    const int64_t    thread = blockIdx.x % static_cast<unsigned>(shape.blocks) * static_cast<int64_t>(blockDim.x) + threadIdx.x;
    const std::byte *row = matrix + (rows != nullptr ? rows[i] : i) * shape.row_bytes;
    float           *to = out + i * shape.copies * shape.columns;
    if constexpr (kPlain<format>) {
        if (thread < shape.columns) {
            const float value = plain_value(row, thread, format);
            for (int64_t copy = 0; copy < shape.copies; ++copy) {
                to[copy * shape.columns + thread] = value;
            }
        }
    } else {
        if (32 * thread < shape.columns) {
            float value[32];
            floats<format>(row, shape.columns, thread, value);
            for (int64_t copy = 0; copy < shape.copies; ++copy) {
                auto *quads = reinterpret_cast<float4 *>(to + copy * shape.columns) + 8 * thread;
#pragma unroll
                for (int k = 0; k < 8; ++k) {
                    quads[k] = make_float4(value[4 * k], value[4 * k + 1], value[4 * k + 2], value[4 * k + 3]);
                }
            }
        }
    }
}

template <Format format>
void launch_rows(const Stream &stream, const Matrix &matrix, const int32_t *rows, int64_t count, int64_t copies, float *out) {
    const int64_t   threads = kPlain<format> ? matrix.columns : matrix.columns / 32;
    const RowsShape shape{matrix.columns, matrix.row_bytes, copies, static_cast<int32_t>((threads + kThreads - 1) / kThreads)};
    launch(stream, expand_rows_copies<format>, Grid{static_cast<unsigned>(count * shape.blocks)}, kThreads, 0, matrix.data,
           rows, shape, out);
}

} // namespace

void expand_rows(const Stream &stream, const Matrix &matrix, const int32_t *rows, int64_t count, int64_t copies, float *out) {
    switch (format_of(matrix.type, matrix.layout)) {
    case Format::f32: launch_rows<Format::f32>(stream, matrix, rows, count, copies, out); break;
    case Format::f16: launch_rows<Format::f16>(stream, matrix, rows, count, copies, out); break;
    case Format::bf16: launch_rows<Format::bf16>(stream, matrix, rows, count, copies, out); break;
    case Format::q8_0: launch_rows<Format::q8_0>(stream, matrix, rows, count, copies, out); break;
    case Format::q8_0_arranged: launch_rows<Format::q8_0_arranged>(stream, matrix, rows, count, copies, out); break;
    case Format::mxfp4: launch_rows<Format::mxfp4>(stream, matrix, rows, count, copies, out); break;
    case Format::q2_k: launch_rows<Format::q2_k>(stream, matrix, rows, count, copies, out); break;
    case Format::q4_k: launch_rows<Format::q4_k>(stream, matrix, rows, count, copies, out); break;
    case Format::q5_k: launch_rows<Format::q5_k>(stream, matrix, rows, count, copies, out); break;
    case Format::q6_k: launch_rows<Format::q6_k>(stream, matrix, rows, count, copies, out); break;
    case Format::iq2_xxs: launch_rows<Format::iq2_xxs>(stream, matrix, rows, count, copies, out); break;
    }
}

void GpuOps::embed(const EmbedArgs &args) {
    const auto count = static_cast<int64_t>(args.tokens.size());
    if (count != 0) {
        expand_rows(stream_, *args.embedding, device_tokens(args.tokens.data(), count), count, args.hc, args.streams);
    }
}

} // namespace ds4::backend::gpu
