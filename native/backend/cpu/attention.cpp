#include "backend/cpu/cpu_ops.h"

#include <algorithm>
#include <cmath>

namespace ds4::backend::cpu {

void CpuOps::attention(const AttentionArgs &args) {
    const Angles angles = rope_.of(args.rope, args.position, args.tokens, pool_);
    const float  scale = 1.0f / std::sqrt(static_cast<float>(args.dim));
    const auto   window = static_cast<uint64_t>(args.window);
    const auto   ring_rows = static_cast<uint64_t>(args.ring_rows);

    const auto compressed_rows = [&](int64_t t) -> int64_t {
        if (args.ratio == 0) {
            return 0;
        }
        if (args.selected != nullptr) {
            return args.count[t];
        }
        return static_cast<int64_t>((args.position + static_cast<uint64_t>(t) + 1) / static_cast<uint64_t>(args.ratio));
    };

    /* All heads of a token read the same rows, so they stay together while there are tokens enough for the threads. */
    const bool    few_tokens = args.tokens < int64_t{threads()} * 2;
    const int64_t heads_per_item = few_tokens ? std::min<int64_t>(args.heads, kAttendHeads) : args.heads;
    const int64_t items_per_token = (args.heads + heads_per_item - 1) / heads_per_item;
    const int64_t last_rows = std::min(args.window, static_cast<int64_t>(args.position) + args.tokens) +
                              compressed_rows(args.tokens - 1);
    const int64_t work = args.tokens * args.heads * args.dim * last_rows * 2;
    pool_.run(args.tokens * items_per_token, work, [&](int64_t item, uint32_t thread) {
        const int64_t  t = item / items_per_token;
        const int64_t  first_head = item % items_per_token * heads_per_item;
        const int64_t  heads = std::min(heads_per_item, args.heads - first_head);
        const uint64_t position = args.position + static_cast<uint64_t>(t);
        Workspace     &workspace = workspaces_[thread];

        std::vector<const float *> &rows = workspace.rows;
        rows.clear();
        for (uint64_t p = position + 1 - std::min(window, position + 1); p <= position; ++p) {
            rows.push_back(args.ring + static_cast<int64_t>(p % ring_rows) * args.dim);
        }
        const int64_t compressed = compressed_rows(t);
        for (int64_t i = 0; i < compressed; ++i) {
            const int64_t row = args.selected != nullptr ? args.selected[t * args.top_k + i] : i;
            rows.push_back(args.rows + row * args.dim);
        }

        const auto row_count = static_cast<int64_t>(rows.size());
        float     *out = args.out + (t * args.heads + first_head) * args.dim;
        kernels_.attend({
            .heads = heads,
            .dim = args.dim,
            .row_count = row_count,
            .q = args.q + (t * args.heads + first_head) * args.dim,
            .rows = rows.data(),
            .sinks = args.sinks + first_head,
            .scale = scale,
            .out = out,
            .weights = workspace.floats.take<float>(kAttendHeads * ((row_count + 15) / 16 * 16)),
        });
        for (int64_t h = 0; h < heads; ++h) {
            kernels_.rotate_back(out + h * args.dim + args.dim - args.rope.dims, angles.cosine_of(t), angles.sine_of(t),
                                 angles.pairs);
        }
    });
}

} // namespace ds4::backend::cpu
