/* The feed-forward part for few tokens, where reading weights is what takes time: one kernel for gate, up and the
 * activation function, one for down and the sum. Each choice reads its own weights, so a kernel has work for the whole
 * card from one token on. */
#include "backend/gpu/experts.h"
#include "backend/gpu/experts_rows.h"

#include <algorithm>
#include <type_traits>

namespace ds4::backend::gpu {

namespace {

constexpr int kThreads = 256;
constexpr int kGroups = kThreads / kLanes;

/* ---- kernels ------------------------------------------------------------------------------------- */

struct GateUpPointers {
    const std::byte *gate[kMostFewChoices];
    const std::byte *up[kMostFewChoices];
    float            weight[kMostFewChoices];
};

/* inner[choice, row] = gated(gate[row] . x, up[row] . x) for the choices first .. last - 1. A group of 32 lanes takes a row
 * of both matrices at a time. With one half only, that one twice. With `rounds` every block rounds x for itself, into
 * dynamic shared memory: that costs less than a kernel in front. `partly`: only experts whose turn it is. */
template <typename Routed, typename Shared, bool partly>
DS4_KERNEL __launch_bounds__(kThreads, 2)
gate_up_rows(FeedForward job, int32_t first, int32_t last, Halves halves, bool rounds, float *inner) {
    __shared__ typename Routed::Tables tables;
    __shared__ typename Shared::Tables shared_tables;
    __shared__ GateUpPointers          pointers;
    __shared__ float                   room[kGroups][kRoom];
    DS4_SHARED(std::byte, rounded);
    constexpr bool kSame = std::is_same_v<Routed, Shared>;
    constexpr bool kSameInputs = Routed::kInputs == Shared::kInputs;
    std::byte     *shared_rounded =
        kSameInputs ? rounded : rounded + job.tokens * rounded_row_bytes(Routed::kInputs, job.width);
    fill_tables(tables);
    if constexpr (!kSame) {
        fill_tables(shared_tables);
    }
    wait_for_inputs();
    let_next_start();
    for (int32_t choice = first + static_cast<int32_t>(threadIdx.x); choice < last; choice += kThreads) {
        const bool    routed = choice < job.routed;
        const int32_t i = choice - first;
        if (routed) {
            const int32_t       expert = job.ids[choice];
            const ExpertAddress address = job.table[expert];
            pointers.gate[i] = !partly || takes(job, expert) ? address.gate : nullptr;
            pointers.up[i] = address.up;
        } else {
            pointers.gate[i] = halves == Halves::up ? job.shared_up.data : job.shared_gate.data;
            pointers.up[i] = halves == Halves::gate ? job.shared_gate.data : job.shared_up.data;
        }
        pointers.weight[i] = routed ? job.weights[choice] : 1.0f;
    }
    if (rounds) {
        round_rows<Routed::kInputs>(job.x_values, job.tokens, job.width, rounded);
        if constexpr (!kSameInputs) {
            round_rows<Shared::kInputs>(job.x_values, job.tokens, job.width, shared_rounded);
        }
    }
    sync_block();

    const Rows          &shared_rows = halves == Halves::up ? job.shared_up : job.shared_gate;
    const ProductInputs &shared_x = halves == Halves::up ? job.shared_up_x : job.shared_x;
    Routed               with_routed; /* holds x from row to row */
    const int32_t        items = (last - first) * job.inner;
    for (int32_t item = static_cast<int32_t>(blockIdx.x) * kGroups + group(); item < items;
         item += static_cast<int32_t>(gridDim.x) * kGroups) {
        const int32_t    which = item / job.inner, row = item % job.inner;
        if (partly && pointers.gate[which] == nullptr) {
            continue;
        }
        const int32_t    choice = first + which;
        const bool       routed = choice < job.routed;
        const int32_t    token = routed ? choice / job.used : choice - job.routed;
        const int64_t    offset = row * (routed ? job.gate_up.row_bytes : shared_rows.row_bytes);
        const std::byte *rows[2] = {pointers.gate[which] + offset, pointers.up[which] + offset};
        float            sum[2];
        if (kSame || routed) {
            const InputRow x = rounds ? rounded_row<Routed::kInputs>(rounded, job, token)
                                      : row_of(routed ? job.x : shared_x, token, job.width);
            with_routed.multiply(routed ? job.gate_up.format : shared_rows.format, rows, job.width, x, tables, room[group()],
                                 sum);
        } else if constexpr (!kSame) {
            const InputRow x = rounds ? rounded_row<Shared::kInputs>(shared_rounded, job, token)
                                      : row_of(shared_x, token, job.width);
            Shared with_shared;
            with_shared.multiply(shared_rows.format, rows, job.width, x, shared_tables, room[group()], sum);
        }
        if (lane() == 0) {
            float *value = inner + static_cast<int64_t>(choice) * job.inner + row;
            if (halves == Halves::gate) {
                *value = sum[0];
            } else {
                *value = gated(halves == Halves::up ? *value : sum[0], sum[1], routed ? job.clamp : job.shared_clamp,
                               pointers.weight[which]);
            }
        }
    }
}

/* Rows of one block of down_rows: enough to make up for fetching the choices' inner values, few enough for many blocks. */
constexpr int kDownRows = 16;

/* out[token, row] = sum over `count` of the token's choices, in order, of down[row] . inner. A group of 32 lanes takes a
 * choice, and afterwards the block adds what its groups have. The choices begin at place `first`, and place `used` is the
 * shared expert; with `more` they are added to what out holds. */
template <typename Routed, typename Shared>
DS4_KERNEL __launch_bounds__(kThreads, 2)
down_rows(FeedForward job, int32_t first, int32_t count, bool more) {
    __shared__ typename Routed::Tables tables;
    __shared__ typename Shared::Tables shared_tables;
    __shared__ float                   room[kGroups][kRoom];
    __shared__ float                   parts[kMostFewChoices][kDownRows];
    constexpr bool                     kSame = std::is_same_v<Routed, Shared>;
    fill_tables(tables);
    if constexpr (!kSame) {
        fill_tables(shared_tables);
    }
    wait_for_inputs();
    let_next_start();
    sync_block();

    const int32_t token = static_cast<int32_t>(blockIdx.y);
    const int32_t row = static_cast<int32_t>(blockIdx.x) * kDownRows;
    const int32_t rows = job.width - row < kDownRows ? job.width - row : kDownRows;
    for (int32_t i = group(); i < count; i += groups()) {
        const bool           routed = first + i < job.used;
        const int32_t        choice = token * job.used + first + i;
        const Rows          &matrix = routed ? job.down : job.shared_down;
        const std::byte     *data = routed ? job.table[job.ids[choice]].down : job.shared_down.data;
        const InputRow       x = routed ? row_of(job.inner_x, choice, job.inner) : row_of(job.shared_inner_x, token, job.inner);
        Routed               with_routed;
        Shared               with_shared;
        for (int32_t r = 0; r < rows; r += 2) {
            /* Of an odd number the last row is taken twice. */
            const int32_t    next = r + 1 < rows ? r + 1 : r;
            const std::byte *both[2] = {data + (row + r) * matrix.row_bytes, data + (row + next) * matrix.row_bytes};
            float            sum[2];
            if (kSame || routed) {
                with_routed.multiply(matrix.format, both, job.inner, x, tables, room[group()], sum);
            } else if constexpr (!kSame) {
                with_shared.multiply(matrix.format, both, job.inner, x, shared_tables, room[group()], sum);
            }
            if (lane() == 0) {
                parts[i][r] = sum[0];
                parts[i][next] = sum[1];
            }
        }
    }
    sync_block();
    for (int32_t r = static_cast<int32_t>(threadIdx.x); r < rows; r += static_cast<int32_t>(blockDim.x)) {
        float *out = job.out + static_cast<int64_t>(token) * job.width + row + r;
        float  sum = more ? *out + parts[0][r] : parts[0][r];
        for (int32_t i = 1; i < count; ++i) {
            sum += parts[i][r];
        }
        *out = sum;
    }
}

/* ---- which kernels ------------------------------------------------------------------------------- */

constexpr int kGateUpSteps = 4; /* 4096 values of x in a lane's registers */
constexpr int kSharedSteps = 2;
constexpr int kDownSteps = 2;

template <Format format> struct Tag {
    static constexpr Format kFormat = format;
};

/* Calls with the tag of a format of bytes. */
template <typename Call> void with_bytes(Format format, Call call) {
    switch (format) {
    case Format::q8_0: return call(Tag<Format::q8_0>{});
    case Format::q8_0_arranged: return call(Tag<Format::q8_0_arranged>{});
    case Format::mxfp4: return call(Tag<Format::mxfp4>{});
    case Format::q2_k: return call(Tag<Format::q2_k>{});
    case Format::q4_k: return call(Tag<Format::q4_k>{});
    case Format::q5_k: return call(Tag<Format::q5_k>{});
    case Format::q6_k: return call(Tag<Format::q6_k>{});
    case Format::iq2_xxs: return call(Tag<Format::iq2_xxs>{});
    default: return;
    }
}

/* Pairs that models have, whose routed experts and shared expert are one kernel. */
constexpr bool has_common_kernel(Format routed, Format shared) {
    return shared == Format::q8_0_arranged && (routed == Format::iq2_xxs || routed == Format::q2_k ||
                                               routed == Format::q4_k || routed == Format::mxfp4);
}

template <Format routed> constexpr bool kHasCommonKernel = has_common_kernel(routed, Format::q8_0_arranged);

/* Of dynamic shared memory in a block: with the tables and pointers, up to 29 KiB, it stays within the 48 KiB that every
 * card gives a block without being asked. Two tokens of 4096 values, for experts and shared expert, fit. */
constexpr int64_t kMostRoundedBytes = 19 << 10;

/* Blocks that a multiprocessor works on at the same time. */
constexpr int64_t kBlocksPerMultiprocessor = 2;

template <typename Routed, typename Shared, bool partly = false>
void start_gate_up(const Stream &stream, const CardFacts &card, const FeedForward &job, int32_t first, int32_t last,
                   Halves halves, bool rounds, float *inner) {
    const int64_t items = static_cast<int64_t>(last - first) * job.inner;
    if (items > 0) {
        const int64_t most = kBlocksPerMultiprocessor * static_cast<int64_t>(card.multiprocessors);
        const auto    blocks = static_cast<unsigned>(std::min((items + kGroups - 1) / kGroups, most));
        const int     row_bytes = rounded_row_bytes(Routed::kInputs, job.width) +
                              (Routed::kInputs == Shared::kInputs ? 0 : rounded_row_bytes(Shared::kInputs, job.width));
        launch(stream, gate_up_rows<Routed, Shared, partly>, {blocks}, kThreads,
               rounds ? static_cast<size_t>(job.tokens) * static_cast<size_t>(row_bytes) : 0, job, first, last, halves,
               rounds, inner);
    }
}

template <typename Routed, typename Shared>
void start_down(const Stream &stream, const FeedForward &job, int32_t first, int32_t count, bool more) {
    if (count > 0) {
        const int32_t blocks = (job.width + kDownRows - 1) / kDownRows;
        const int32_t busy = std::min<int32_t>(count, kGroups);
        launch(stream, down_rows<Routed, Shared>, {static_cast<unsigned>(blocks), static_cast<unsigned>(job.tokens)},
               static_cast<unsigned>(busy * kLanes), 0, job, first, count, more);
    }
}

} // namespace

bool rounds_few(const FeedForward &job, bool exact) {
    int row_bytes = rounded_row_bytes(inputs_of(job.gate_up.format, exact), job.width);
    if (job.shared != 0) {
        row_bytes += std::max(rounded_row_bytes(inputs_of(job.shared_gate.format, exact), job.width),
                              rounded_row_bytes(inputs_of(job.shared_up.format, exact), job.width));
    }
    return static_cast<int64_t>(job.tokens) * row_bytes <= kMostRoundedBytes;
}

void gate_up_few(const Stream &stream, const CardFacts &card, const FeedForward &job, bool exact, Turn turn, float *inner) {
    const bool    rounds = rounds_few(job, exact);
    const int32_t all = job.routed + job.shared;
    const Format  gate = job.shared_gate.format, up = job.shared_up.format;
    if (turn == Turn::all && !exact && job.shared != 0 && gate == up && has_common_kernel(job.gate_up.format, gate)) {
        with_bytes(job.gate_up.format, [&](auto tag) {
            constexpr Format kRouted = decltype(tag)::kFormat;
            if constexpr (kHasCommonKernel<kRouted>) {
                start_gate_up<ByteRows<kRouted, kGateUpSteps>, ByteRows<Format::q8_0_arranged, kSharedSteps>>(
                    stream, card, job, 0, all, Halves::both, rounds, inner);
            }
        });
        return;
    }
    const auto start = [&](Format format, int32_t first, int32_t last, Halves halves, auto partly) {
        if (inputs_of(format, exact) == Inputs::floats) {
            start_gate_up<FloatRows, FloatRows, decltype(partly)::value>(stream, card, job, first, last, halves, rounds, inner);
            return;
        }
        with_bytes(format, [&](auto tag) {
            using Own = ByteRows<decltype(tag)::kFormat, kGateUpSteps>;
            start_gate_up<Own, Own, decltype(partly)::value>(stream, card, job, first, last, halves, rounds, inner);
        });
    };
    if (turn == Turn::all) {
        start(job.gate_up.format, 0, job.routed, Halves::both, std::false_type{});
    } else {
        start(job.gate_up.format, 0, job.routed, Halves::both, std::true_type{});
    }
    if (turn == Turn::rest) {
        return;
    }
    if (gate == up) {
        start(gate, job.routed, all, Halves::both, std::false_type{});
    } else {
        start(gate, job.routed, all, Halves::gate, std::false_type{});
        start(up, job.routed, all, Halves::up, std::false_type{});
    }
}

void down_few(const Stream &stream, const FeedForward &job, bool exact) {
    const int32_t places = job.shared != 0 ? 1 : 0;
    const Format  routed = job.down.format, shared = job.shared_down.format;
    if (!exact && places != 0 && has_common_kernel(routed, shared)) {
        with_bytes(routed, [&](auto tag) {
            constexpr Format kRouted = decltype(tag)::kFormat;
            if constexpr (kHasCommonKernel<kRouted>) {
                start_down<ByteRows<kRouted, kDownSteps>, ByteRows<Format::q8_0_arranged, kDownSteps>>(
                    stream, job, 0, job.used + places, false);
            }
        });
        return;
    }
    const auto start = [&](Format format, int32_t first, int32_t count, bool more) {
        if (inputs_of(format, exact) == Inputs::floats) {
            start_down<FloatRows, FloatRows>(stream, job, first, count, more);
            return;
        }
        with_bytes(format, [&](auto tag) {
            using Own = ByteRows<decltype(tag)::kFormat, kDownSteps>;
            start_down<Own, Own>(stream, job, first, count, more);
        });
    };
    start(routed, 0, job.used, false);
    start(shared, job.used, places, true);
}

} // namespace ds4::backend::gpu
