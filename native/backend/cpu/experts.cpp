/* The feed-forward part. A token and one of its experts are a pair; pairs are sorted by expert, so that each expert's
 * weights are read once per batch. The shared expert is one more group, with all tokens in it. */
#include "backend/cpu/cpu_ops.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace ds4::backend::cpu {

namespace {

int64_t row_bytes_of(quant::Type type, int64_t columns) {
    const quant::BlockLayout layout = quant::block_layout(type);
    return columns / layout.values * layout.bytes;
}

} // namespace

/* Everything but the products: groups_ and the pairs' places, which depend on the ids alone. */
void CpuOps::group_choices(const ExpertsArgs &args, Turn turn) {
    const int64_t routed = args.tokens * args.used;
    const bool    has_shared = args.shared_gate != nullptr;
    const int64_t pairs = routed + (has_shared ? args.tokens : 0);

    /* Sort the pairs by expert, tokens in order (counting sort). */
    expert_first_.assign(static_cast<size_t>(args.experts) + 1, 0);
    for (int64_t i = 0; i < routed; ++i) {
        ++expert_first_[static_cast<size_t>(args.ids[i]) + 1];
    }
    groups_.clear();
    for (int64_t e = 0; e < args.experts; ++e) {
        const int32_t count = expert_first_[static_cast<size_t>(e) + 1];
        const int32_t first = expert_first_[static_cast<size_t>(e)];
        expert_first_[static_cast<size_t>(e) + 1] += first;
        if (count != 0) {
            const ExpertAddress &address = args.table[e];
            const bool           now = turn == Turn::begin  ? address.gate != nullptr
                                       : turn == Turn::rest ? args.begun[e].gate == nullptr
                                                            : true;
            groups_.push_back({address.gate, address.up, address.down, args.gate_up_type, args.gate_up_type,
                               args.down_type, args.clamp, first, count, now});
        }
    }
    pair_of_.resize(static_cast<size_t>(routed));
    token_of_.resize(static_cast<size_t>(pairs));
    weight_of_.resize(static_cast<size_t>(pairs));
    for (int64_t i = 0; i < routed; ++i) {
        const auto pair = static_cast<size_t>(expert_first_[static_cast<size_t>(args.ids[i])]++);
        pair_of_[static_cast<size_t>(i)] = static_cast<int32_t>(pair);
        token_of_[pair] = static_cast<int32_t>(i / args.used);
        weight_of_[pair] = args.weights[i];
    }
    if (has_shared) {
        groups_.push_back({args.shared_gate->data, args.shared_up->data, args.shared_down->data, args.shared_gate->type,
                           args.shared_up->type, args.shared_down->type, args.shared_clamp, routed, args.tokens,
                           turn != Turn::rest});
        for (int64_t t = 0; t < args.tokens; ++t) {
            token_of_[static_cast<size_t>(routed + t)] = static_cast<int32_t>(t);
            weight_of_[static_cast<size_t>(routed + t)] = 1.0f;
        }
    }
}

/* inner = weight * silu(gate x) * up x, of the groups whose turn it is. */
void CpuOps::fill_inner(const ExpertsArgs &args) {
    const int64_t width = args.width;
    const int64_t inner_width = args.expert_width;
    const auto    pairs = static_cast<int64_t>(token_of_.size());

    /* Inputs, once per format, and pointers to them in the order of the pairs. */
    groups_now_.clear();
    bool    needed[kFormats] = {};
    int64_t pairs_now = 0;
    for (const Group &group : groups_) {
        if (group.now) {
            groups_now_.push_back(&group);
            pairs_now += group.count;
            needed[static_cast<size_t>(format_of(group.gate_type))] = true;
            needed[static_cast<size_t>(format_of(group.up_type))] = true;
        }
    }
    for (size_t format = 0; format < kFormats; ++format) {
        if (needed[format]) {
            prepare_inputs(static_cast<Format>(format), args.x, args.tokens, width, width, inputs_[format]);
            gathered_[format].resize(static_cast<size_t>(pairs));
            for (size_t pair = 0; pair < static_cast<size_t>(pairs); ++pair) {
                gathered_[format][pair] = inputs_[format].rows[static_cast<size_t>(token_of_[pair])];
            }
        }
    }

    /* An item is some rows of one group. */
    const auto    group_count = static_cast<int64_t>(groups_now_.size());
    const int64_t inner_rows = rows_per_item(inner_width * group_count, inner_width + kernels_.panel_rows);
    const int64_t inner_items = (inner_width + inner_rows - 1) / inner_rows;
    auto         *inner = inner_.take<float>(pairs * inner_width);
    pool_.run(group_count * inner_items, pairs_now * inner_width * width * 2, [&](int64_t item, uint32_t thread) {
        const Group  &group = *groups_now_[static_cast<size_t>(item / inner_items)];
        const int64_t first = item % inner_items * inner_rows;
        const int64_t rows = std::min(inner_rows, inner_width - first);
        Workspace    &workspace = workspaces_[thread];
        auto         *gate = workspace.floats.take<float>(group.count * rows);
        auto         *up = workspace.more_floats.take<float>(group.count * rows);

        const auto apply = [&](const std::byte *weights, quant::Type type, float *out) {
            const Format format = format_of(type);
            workspace.out.resize(static_cast<size_t>(group.count));
            for (int64_t i = 0; i < group.count; ++i) {
                workspace.out[static_cast<size_t>(i)] = out + i * rows;
            }
            multiply({type, weights, row_bytes_of(type, width), inner_width, width,
                      gathered_[static_cast<size_t>(format)].data() + group.first, workspace.out.data(), group.count},
                     format, first, rows, 0, workspace);
        };
        apply(group.gate, group.gate_type, gate);
        apply(group.up, group.up_type, up);
        for (int64_t i = 0; i < group.count; ++i) {
            const int64_t pair = group.first + i;
            kernels_.gated(gate + i * rows, up + i * rows, group.clamp, weight_of_[static_cast<size_t>(pair)], rows,
                           inner + pair * inner_width + first);
        }
    });
}

/* The second matrix of every group, and the sums. */
void CpuOps::add_experts(const ExpertsArgs &args) {
    const int64_t width = args.width;
    const int64_t inner_width = args.expert_width;
    const int64_t routed = args.tokens * args.used;
    const bool    has_shared = args.shared_gate != nullptr;
    const auto    pairs = static_cast<int64_t>(token_of_.size());
    const auto   *inner = inner_.take<float>(pairs * inner_width); /* as fill_inner left it */

    /* Its inputs, in the order of the pairs. */
    const Format routed_format = format_of(args.down_type);
    const Format shared_format = has_shared ? format_of(args.shared_down->type) : routed_format;
    const size_t bytes = std::max(prepared_bytes(routed_format, inner_width), prepared_bytes(shared_format, inner_width));
    auto        *prepared = inner_prepared_.bytes.take<std::byte>(pairs * static_cast<int64_t>(bytes));
    inner_prepared_.rows.resize(static_cast<size_t>(pairs));
    pool_.run_ranges(pairs, pairs * inner_width * 2, [&](int64_t first, int64_t last, uint32_t) {
        for (int64_t pair = first; pair < last; ++pair) {
            const Format format = pair < routed ? routed_format : shared_format;
            const float *x = inner + pair * inner_width;
            std::byte   *out = prepared + pair * static_cast<int64_t>(bytes);
            prepare_row(format, x, inner_width, out);
            inner_prepared_.rows[static_cast<size_t>(pair)] =
                format == Format::floats ? static_cast<const void *>(x) : static_cast<const void *>(out);
        }
    });

    /* out = sum of down inner. An item is some rows of all groups, so that one thread adds up what belongs together. */
    const int64_t out_rows = rows_per_item(width, 65536 / std::max<int64_t>(pairs, 1)); /* parts fit a core's cache */
    const int64_t out_items = (width + out_rows - 1) / out_rows;
    pool_.run(out_items, pairs * inner_width * width, [&](int64_t item, uint32_t thread) {
        const int64_t first = item * out_rows;
        const int64_t rows = std::min(out_rows, width - first);
        Workspace    &workspace = workspaces_[thread];
        auto         *parts = workspace.floats.take<float>(pairs * rows);
        workspace.out.resize(static_cast<size_t>(pairs));
        for (int64_t pair = 0; pair < pairs; ++pair) {
            workspace.out[static_cast<size_t>(pair)] = parts + pair * rows;
        }
        for (const Group &group : groups_) {
            multiply({group.down_type, group.down, row_bytes_of(group.down_type, inner_width), width, inner_width,
                      inner_prepared_.rows.data() + group.first, workspace.out.data() + group.first, group.count},
                     format_of(group.down_type), first, rows, 0, workspace);
        }
        for (int64_t t = 0; t < args.tokens; ++t) {
            float *out = args.out + t * width + first;
            for (int64_t i = 0; i < args.used; ++i) {
                const float *part = parts + pair_of_[static_cast<size_t>(t * args.used + i)] * rows;
                if (i == 0) {
                    std::memcpy(out, part, static_cast<size_t>(rows) * sizeof(float));
                } else {
                    kernels_.add(out, part, rows);
                }
            }
            if (has_shared) {
                kernels_.add(out, parts + (routed + t) * rows, rows);
            }
        }
    });
}

void CpuOps::experts(const ExpertsArgs &args) {
    const Begun begun = std::exchange(begun_, {});
    if (args.begun != nullptr && (begun.ids != args.ids || begun.tokens != args.tokens)) {
        throw Failure(DS4_E_INTERNAL, "experts were to be finished that had not been begun");
    }
    group_choices(args, args.begun != nullptr ? Turn::rest : Turn::all);
    fill_inner(args);
    add_experts(args);
}

bool CpuOps::begin_experts(const ExpertsArgs &args) {
    begun_ = {};
    group_choices(args, Turn::begin);
    fill_inner(args);
    begun_ = {args.ids, args.tokens};
    return true;
}

} // namespace ds4::backend::cpu
