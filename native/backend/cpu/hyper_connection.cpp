/* The residual streams around a sublayer: mixing weights from the streams themselves, collapse in front, expansion
 * behind. All of it float32. */
#include "backend/cpu/cpu_ops.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "backend/cpu/sinkhorn.h"

namespace ds4::backend::cpu {

namespace {

float sigmoid(float x) {
    return 1.0f / (1.0f + std::exp(-x));
}

/* On the bits, because a loop over integers runs many lanes at a time where a float sum has to keep its order. */
bool all_finite(const float *values, int64_t count) {
    constexpr uint32_t exponent = 0x7f800000u; /* all ones in infinities and NaNs only */
    uint32_t           bad = 0;
    for (int64_t i = 0; i < count; ++i) {
        bad |= (std::bit_cast<uint32_t>(values[i]) & exponent) == exponent ? 1u : 0u;
    }
    return bad == 0;
}

} // namespace

/* mixes[t] = fn . streams[t], not yet divided by the streams' root mean square. Never with 8-bit inputs: these few
 * values steer everything. */
void CpuOps::mix_streams(const float *streams, int64_t tokens, int64_t columns, const Matrix &fn, float *mixes) {
    Prepared &inputs = inputs_[static_cast<size_t>(Format::floats)];
    prepare_inputs(Format::floats, streams, tokens, columns, columns, inputs);
    outputs_.resize(static_cast<size_t>(tokens));
    for (int64_t t = 0; t < tokens; ++t) {
        outputs_[static_cast<size_t>(t)] = mixes + t * fn.rows;
    }
    const Product product = {fn.type, fn.data, fn.row_bytes, fn.rows, columns, inputs.rows.data(), outputs_.data(),
                             tokens};
    const int64_t work = tokens * columns * fn.rows;
    if (tokens == 1) { /* a real model's matrix is large enough to share its few rows */
        const int64_t rows = 4;
        pool_.run((fn.rows + rows - 1) / rows, work, [&](int64_t item, uint32_t thread) {
            const int64_t first = item * rows;
            multiply(product, Format::floats, first, std::min(rows, fn.rows - first), first, workspaces_[thread]);
        });
        return;
    }
    pool_.run_ranges(tokens, work, [&](int64_t first, int64_t last, uint32_t thread) {
        Product part = product;
        part.x += first;
        part.y += first;
        part.tokens = last - first;
        multiply(part, Format::floats, 0, fn.rows, 0, workspaces_[thread]);
    });
}

void CpuOps::hc_pre(const HcPreArgs &args) {
    const int64_t hc = args.hc;
    const int64_t columns = hc * args.width;
    const int64_t mix_count = args.fn->rows;
    auto         *mixes = mixes_.take<float>(args.tokens * mix_count);
    mix_streams(args.streams, args.tokens, columns, *args.fn, mixes);

    const int64_t work = args.tokens * (columns * 3 + 4000);
    pool_.run_ranges(args.tokens, work, [&](int64_t first, int64_t last, uint32_t thread) {
        auto *pre = workspaces_[thread].floats.take<float>(hc);
        for (int64_t t = first; t < last; ++t) {
            const float *streams = args.streams + t * columns;
            float       *mix = mixes + t * mix_count;
            const float  inverse = kernels_.inverse_rms(streams, columns, args.rms_epsilon);
            for (int64_t i = 0; i < mix_count; ++i) {
                mix[i] *= inverse;
            }
            for (int64_t s = 0; s < hc; ++s) {
                pre[s] = sigmoid(mix[s] * args.scale[0] + args.base[s]) + args.hc_epsilon;
                args.post[t * hc + s] = 2.0f * sigmoid(mix[hc + s] * args.scale[1] + args.base[hc + s]);
            }
            float *comb = args.comb + t * hc * hc;
            for (int64_t i = 0; i < hc * hc; ++i) {
                comb[i] = mix[2 * hc + i] * args.scale[2] + args.base[2 * hc + i];
            }
            balance(comb, hc, args.sinkhorn_iterations, args.hc_epsilon);

            float *x = args.x + t * args.width;
            kernels_.collapse(streams, pre, hc, args.width, x);
            kernels_.scale(x, args.norm, kernels_.inverse_rms(x, args.width, args.rms_epsilon), args.width, x);
        }
    });
}

void CpuOps::hc_post(const HcPostArgs &args) {
    const int64_t columns = args.hc * args.width;
    pool_.run_ranges(args.tokens, args.tokens * columns * (args.hc + 1), [&](int64_t first, int64_t last, uint32_t) {
        for (int64_t t = first; t < last; ++t) {
            kernels_.expand(args.streams + t * columns, args.y + t * args.width, args.post + t * args.hc,
                            args.comb + t * args.hc * args.hc, args.hc, args.width);
        }
    });
    if (args.bad_layer != nullptr && *args.bad_layer < 0 &&
        !all_finite(args.streams + (args.tokens - 1) * columns, columns)) {
        *args.bad_layer = args.layer;
    }
}

void CpuOps::hc_head(const HcHeadArgs &args) {
    const int64_t columns = args.hc * args.width;
    auto         *mixes = mixes_.take<float>(args.tokens * args.hc);
    mix_streams(args.streams, args.tokens, columns, *args.fn, mixes);

    pool_.run_ranges(args.tokens, args.tokens * columns * 3, [&](int64_t first, int64_t last, uint32_t) {
        for (int64_t t = first; t < last; ++t) {
            const float *streams = args.streams + t * columns;
            float       *mix = mixes + t * args.hc;
            const float  inverse = kernels_.inverse_rms(streams, columns, args.rms_epsilon);
            for (int64_t s = 0; s < args.hc; ++s) {
                mix[s] = sigmoid(mix[s] * inverse * args.scale[0] + args.base[s]) + args.hc_epsilon;
            }
            float *x = args.x + t * args.width;
            kernels_.collapse(streams, mix, args.hc, args.width, x);
            kernels_.scale(x, args.norm, kernels_.inverse_rms(x, args.width, args.rms_epsilon), args.width, x);
        }
    });
}

} // namespace ds4::backend::cpu
