/* Q8_0 rows from blocks of a scale and 32 bytes to all bytes, then all scales: products then read 16 bytes at a time from
 * aligned addresses. In place, a row after the other: a block holds a row in shared memory while it is written back. */
#include "backend/gpu/gpu_ops.h"

namespace ds4::backend::gpu {

namespace {

constexpr unsigned kThreads = 256;
constexpr int64_t  kMostBlocks = 1 << 16;

/* Words of 4 bytes; a row of columns / 32 blocks of 34 bytes is a whole number of them, as columns / 32 is even. */
DS4_KERNEL arrange_q8_0(std::byte *data, int64_t rows, int64_t columns, int64_t row_bytes) {
    DS4_SHARED(uint32_t, row);
    wait_for_inputs();
    const int  words = static_cast<int>(row_bytes / 4);
    const int  byte_words = static_cast<int>(columns / 4);
    const auto first = static_cast<int>(threadIdx.x), step = static_cast<int>(blockDim.x);
    const auto *halves = reinterpret_cast<const uint16_t *>(row);
    for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
        auto *memory = reinterpret_cast<uint32_t *>(data + r * row_bytes);
        for (int i = first; i < words; i += step) {
            row[i] = memory[i];
        }
        sync_block();
        for (int i = first; i < words; i += step) {
            int low, high; /* which halves of the file's row */
            if (i < byte_words) {
                low = i / 8 * 17 + 1 + i % 8 * 2;
                high = low + 1;
            } else {
                low = (i - byte_words) * 2 * 17;
                high = low + 17;
            }
            memory[i] = static_cast<uint32_t>(halves[low]) | static_cast<uint32_t>(halves[high]) << 16;
        }
        sync_block();
    }
    let_next_start();
}

} // namespace

Matrix GpuOps::arrange(const Matrix &matrix) {
    const bool fits = matrix.columns % 256 == 0 && static_cast<uint64_t>(matrix.row_bytes) <= device_.facts().shared_bytes;
    const bool aligned = reinterpret_cast<uintptr_t>(matrix.data) % 16 == 0;
    if (matrix.type != quant::Type::q8_0 || matrix.layout != RowLayout::file || !fits || !aligned || matrix.rows == 0) {
        return matrix;
    }
    device_.make_current();
    launch(stream_, arrange_q8_0, {static_cast<unsigned>(matrix.rows < kMostBlocks ? matrix.rows : kMostBlocks)}, kThreads,
           static_cast<size_t>(matrix.row_bytes), const_cast<std::byte *>(matrix.data), matrix.rows, matrix.columns,
           matrix.row_bytes);
    /* A kernel may read weights before it waits for the kernels in front of it. */
    device_.wait(stream_.handle, "arrange a matrix");
    Matrix arranged = matrix;
    arranged.layout = RowLayout::arranged;
    return arranged;
}

} // namespace ds4::backend::gpu
