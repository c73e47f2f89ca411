/* Rows of activations to 8 bits. A group of 32 lanes rounds 1024 values of one row: enough groups for the whole card from
 * a few dozen rows on, and each reads whole cache lines. */
#include "backend/gpu/products.h"

#include "quant/dequantise.h"

namespace ds4::backend::gpu {

namespace {

constexpr unsigned kThreads = 256;
constexpr int64_t  kValuesPerGroup = 1024;
constexpr int64_t  kFewValues = int64_t{1} << 17;
constexpr int64_t  kValuesAtOnce = 4 * kLanes; /* for few rows: more groups instead of more work for each */

DS4_KERNEL quantise_bytes_32(Activations out, const float *x, int64_t rows, int64_t stride, int64_t values_per_group) {
    wait_for_inputs();
    let_next_start();
    const int64_t per_row = (out.columns + values_per_group - 1) / values_per_group;
    const int64_t item = static_cast<int64_t>(blockIdx.x) * groups() + group();
    const int64_t row = item / per_row;
    if (row >= rows) {
        return;
    }
    const int64_t first = item % per_row * values_per_group + 4 * lane();
#pragma unroll 4
    for (int64_t at = first; at < first + values_per_group; at += kValuesAtOnce) {
        const bool        inside = at < out.columns;
        const float4      v = inside ? load_floats4(x + row * stride + at) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        const RoundedQuad rounded = quantise_32(v);
        if (inside) {
            *reinterpret_cast<uint32_t *>(out.q + row * out.columns + at) = rounded.word;
            if (lane() % 8 == 0) {
                out.d[at / 32 * out.d_stride + row] = rounded.d;
            }
        }
    }
}

DS4_KERNEL quantise_bytes_256(Activations out, const float *x, int64_t rows, int64_t stride) {
    wait_for_inputs();
    let_next_start();
    const int64_t units = out.columns / 256;
    const int64_t item = static_cast<int64_t>(blockIdx.x) * groups() + group();
    const int64_t row = item / units, unit = item % units;
    if (row >= rows) {
        return;
    }
    const float       *from = x + row * stride + 256 * unit + 4 * lane();
    const RoundedOctet rounded = quantise_256(load_floats4(from), load_floats4(from + 128));
    auto              *words = reinterpret_cast<uint32_t *>(out.q + row * out.columns + 256 * unit);
    words[lane()] = rounded.first;
    words[lane() + 32] = rounded.second;
    const int first = sum_of_16(rounded.first);
    const int second = sum_of_16(rounded.second);
    int16_t  *sums = out.sums + row * (out.columns / 16) + 16 * unit;
    if (lane() % 4 == 0) {
        sums[lane() / 4] = static_cast<int16_t>(first);
        sums[8 + lane() / 4] = static_cast<int16_t>(second);
    }
    if (lane() == 0) {
        out.d[unit * out.d_stride + row] = rounded.d;
    }
}

size_t aligned(int64_t bytes) { return (static_cast<size_t>(bytes) + 255) / 256 * 256; }

int64_t stride_of(int64_t rows) { return (rows + 3) / 4 * 4; }

} // namespace

bool product_supports(quant::Type type) { return quant::is_weight_type(type); }

size_t activation_bytes(Inputs inputs, int64_t rows, int64_t columns) {
    return aligned(rows * columns) + aligned(columns / unit_values(inputs) * stride_of(rows) * 4) +
           (inputs == Inputs::bytes_256 ? aligned(rows * columns / 8) : 0);
}

Activations activations_at(std::byte *memory, Inputs inputs, int64_t rows, int64_t columns) {
    std::byte *d = memory + aligned(rows * columns);
    std::byte *sums = d + aligned(columns / unit_values(inputs) * stride_of(rows) * 4);
    return {reinterpret_cast<int8_t *>(memory), reinterpret_cast<float *>(d), reinterpret_cast<int16_t *>(sums), columns,
            stride_of(rows)};
}

void quantise(const Stream &stream, Inputs inputs, const float *x, int64_t rows, int64_t columns, int64_t stride,
              const Activations &out) {
    const auto blocks_of = [](int64_t items) { return static_cast<unsigned>((items + kThreads / kLanes - 1) / (kThreads / kLanes)); };
    if (inputs == Inputs::bytes_32) {
        const int64_t values = rows * columns <= kFewValues ? kValuesAtOnce : kValuesPerGroup;
        launch(stream, quantise_bytes_32, {blocks_of(rows * ((columns + values - 1) / values))}, kThreads, 0, out, x, rows,
               stride, values);
    } else {
        launch(stream, quantise_bytes_256, {blocks_of(rows * (columns / 256))}, kThreads, 0, out, x, rows, stride);
    }
}

} // namespace ds4::backend::gpu
