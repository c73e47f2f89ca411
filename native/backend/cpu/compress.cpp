#include "backend/cpu/cpu_ops.h"

#include <cstring>

#include "quant/dequantise.h"

namespace ds4::backend::cpu {

void CpuOps::compress(const CompressArgs &args) {
    const int64_t width = args.halves * args.dim;
    const auto    ratio = static_cast<uint64_t>(args.ratio);
    const auto    ring_rows = static_cast<uint64_t>(args.ring_rows);
    const auto    ring_offset = [&](uint64_t position) { return static_cast<int64_t>(position % ring_rows) * width; };

    pool_.run_ranges(args.tokens, args.tokens * width * 4, [&](int64_t first, int64_t last, uint32_t thread) {
        auto *bias = workspaces_[thread].floats.take<float>(width);
        for (int64_t t = first; t < last; ++t) {
            const uint64_t position = args.position + static_cast<uint64_t>(t);
            const auto     slot = static_cast<int64_t>(position % ratio);
            quant::dequantise_row(args.ape->type, args.ape->data + slot * args.ape->row_bytes, width, bias);
            kernels_.add(bias, args.gates + t * width, width);
            std::memcpy(args.gate_ring + ring_offset(position), bias, static_cast<size_t>(width) * sizeof(float));
            std::memcpy(args.key_ring + ring_offset(position), args.keys + t * width,
                        static_cast<size_t>(width) * sizeof(float));
        }
    });

    /* Windows whose last position lies in the batch. */
    const uint64_t first_window = args.position / ratio;
    const uint64_t end_window = (args.position + static_cast<uint64_t>(args.tokens)) / ratio;
    const auto     windows = static_cast<int64_t>(end_window - first_window);
    const int64_t  slots = args.halves * args.ratio;
    pool_.run_ranges(windows, windows * slots * args.dim * 8, [&](int64_t first, int64_t last, uint32_t thread) {
        Workspace &workspace = workspaces_[thread];
        auto      *angles = workspace.floats.take<float>(args.rope.dims);
        for (int64_t w = first; w < last; ++w) {
            const uint64_t window = first_window + static_cast<uint64_t>(w);
            const uint64_t start = window * ratio;
            workspace.rows.clear();
            workspace.more_rows.clear();
            /* With two halves a row pools the first half of the previous window's tokens (there are none in front of
             * window 0) and the second half of its own. */
            for (int64_t half = 0; half < args.halves; ++half) {
                const bool previous = half + 1 < args.halves;
                if (previous && window == 0) {
                    continue;
                }
                for (uint64_t slot = 0; slot < ratio; ++slot) {
                    const uint64_t position = start + slot - (previous ? ratio : 0);
                    workspace.rows.push_back(args.key_ring + ring_offset(position) + half * args.dim);
                    workspace.more_rows.push_back(args.gate_ring + ring_offset(position) + half * args.dim);
                }
            }
            float *row = args.rows + static_cast<int64_t>(window) * args.dim;
            kernels_.pool({
                .dim = args.dim,
                .slots = static_cast<int64_t>(workspace.rows.size()),
                .keys = workspace.rows.data(),
                .gates = workspace.more_rows.data(),
                .out = row,
            });
            kernels_.scale(row, args.norm, kernels_.inverse_rms(row, args.dim, args.epsilon), args.dim, row);
            const int64_t pairs = args.rope.dims / 2;
            compute_angles(args.rope, start, angles, angles + pairs);
            kernels_.rotate(row + args.dim - args.rope.dims, angles, angles + pairs, pairs);
            switch (args.rounding) {
            case RowRounding::none: break;
            case RowRounding::fp8: kernels_.fp8_round_trip(row, args.dim - args.rope.dims); break;
            case RowRounding::hadamard_fp4:
                kernels_.hadamard(row, args.dim);
                kernels_.fp4_round_trip(row, args.dim);
                break;
            }
        }
    });
}

} // namespace ds4::backend::cpu
