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

/* Of each matrix. */
template <typename Rows> constexpr int kRowsAtOnce = Rows::kTakesFour ? 2 : 1;

/* One of two things of different types. */
template <bool first, typename First, typename Second> DS4_DEVICE const auto &first_of(const First &one, const Second &other) {
    if constexpr (first) {
        return one;
    } else {
        return other;
    }
}

/* inner[choice, row] = gated(gate[row] . x, up[row] . x) for the choices first .. last - 1. A group of 32 lanes takes a row,
 * or two, of both matrices at a time. With one half only, that one twice. With `rounds` every block rounds x for itself, into
 * dynamic shared memory: that costs less than a kernel in front. `partly`: only experts whose turn it is. */
template <typename Routed, typename Shared, bool partly>
DS4_KERNEL __launch_bounds__(kThreads, 2)
gate_up_rows(FeedForward job, int32_t first, int32_t last, Halves halves, bool rounds, float *inner) {
    constexpr bool                     kSame = std::is_same_v<Routed, Shared>;
    __shared__ typename Routed::Tables tables;
    __shared__ std::conditional_t<kSame, NoTables, typename Shared::Tables> shared_tables;
    __shared__ GateUpPointers          pointers;
    __shared__ float                   room[kGroups][kRoom];
    DS4_SHARED(std::byte, rounded);
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

    const auto finish = [&](int32_t choice, int32_t row, float gate, float up, float clamp, float weight) {
        float *value = inner + static_cast<int64_t>(choice) * job.inner + row;
        *value = halves == Halves::gate ? gate : gated(halves == Halves::up ? *value : gate, up, clamp, weight);
    };
    Routed        with_routed; /* holds x from row to row */
    const int32_t step = static_cast<int32_t>(gridDim.x) * kGroups;
    const int32_t routed = last < job.routed ? last - first : first < job.routed ? job.routed - first : 0;
    const int32_t pieces = (job.inner + kRowsAtOnce<Routed> - 1) / kRowsAtOnce<Routed>; /* of a routed expert */
    int32_t       item = static_cast<int32_t>(blockIdx.x) * kGroups + group();
    for (; item < routed * pieces; item += step) {
        const int32_t which = item / pieces, row = item % pieces * kRowsAtOnce<Routed>;
        if (partly && pointers.gate[which] == nullptr) {
            continue;
        }
        const int32_t    choice = first + which, token = choice / job.used;
        const std::byte *gate = pointers.gate[which] + row * job.gate_up.row_bytes;
        const std::byte *up = pointers.up[which] + row * job.gate_up.row_bytes;
        const InputRow   x = rounds ? rounded_row<Routed::kInputs>(rounded, job, token) : row_of(job.x, token, job.width);
        if constexpr (Routed::kTakesFour) {
            const int        other = row + 1 < job.inner ? 1 : 0; /* of an odd number the last row is taken twice */
            const int64_t    next = other * job.gate_up.row_bytes;
            const std::byte *rows[4] = {gate, gate + next, up, up + next};
            const float      sum = with_routed.multiply_four(rows, job.width, x, tables);
            const float      sum_of_up = shuffle(sum, lane() % 2 + 2);
            if (lane() <= other) {
                finish(choice, row + lane(), sum, sum_of_up, job.clamp, pointers.weight[which]);
            }
        } else {
            const std::byte *rows[2] = {gate, up};
            float            sum[2];
            with_routed.multiply(job.gate_up.format, rows, job.width, x, tables, room[group()], sum);
            if (lane() == 0) {
                finish(choice, row, sum[0], sum[1], job.clamp, pointers.weight[which]);
            }
        }
    }
    const Rows          &shared_rows = halves == Halves::up ? job.shared_up : job.shared_gate;
    const ProductInputs &shared_x = halves == Halves::up ? job.shared_up_x : job.shared_x;
    const int32_t        shared_items = (last - first - routed) * job.inner;
    for (item -= routed * pieces; item < shared_items; item += step) {
        const int32_t    which = routed + item / job.inner, row = item % job.inner;
        const int32_t    choice = first + which, token = choice - job.routed;
        const std::byte *rows[2] = {pointers.gate[which] + row * shared_rows.row_bytes,
                                    pointers.up[which] + row * shared_rows.row_bytes};
        const InputRow   x = rounds ? rounded_row<Shared::kInputs>(shared_rounded, job, token)
                                    : row_of(shared_x, token, job.width);
        float            sum[2];
        Shared           with_shared;
        with_shared.multiply(shared_rows.format, rows, job.width, x, first_of<kSame>(tables, shared_tables), room[group()], sum);
        if (lane() == 0) {
            finish(choice, row, sum[0], sum[1], job.shared_clamp, 1.0f);
        }
    }
}

/* Rows of one block of down_rows: enough to make up for fetching the choices' inner values, few enough for many blocks. */
constexpr int kDownRows = 16;

/* Groups of a block beyond one for each choice, for the shared expert: its rows have several times as many bytes. */
constexpr int kDownHelpers = 1;

/* sums[r] and sums[r + 1] for r = begin, begin + step, ..., of rows that lie one behind the other. */
template <typename With>
DS4_DEVICE void multiply_by_twos(With &with, const Rows &matrix, const std::byte *data, int32_t rows, int32_t begin,
                                 int32_t step, int64_t columns, const InputRow &x, const typename With::Tables &tables,
                                 float *room, float *sums) {
    for (int32_t r = begin; r < rows; r += step) {
        const int32_t    next = r + 1 < rows ? r + 1 : r; /* of an odd number the last row is taken twice */
        const std::byte *both[2] = {data + r * matrix.row_bytes, data + next * matrix.row_bytes};
        float            sum[2];
        with.multiply(matrix.format, both, columns, x, tables, room, sum);
        if (lane() == 0) {
            sums[r] = sum[0];
            sums[next] = sum[1];
        }
    }
}

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
    /* Groups behind the last choice share its rows, by twos. */
    const int32_t helpers = groups() > count ? groups() - count : 0;
    for (int32_t i = group() < count ? group() : count - 1; i < count; i += groups()) {
        const bool           routed = first + i < job.used;
        const int32_t        choice = token * job.used + first + i;
        const Rows          &matrix = routed ? job.down : job.shared_down;
        const std::byte     *data = (routed ? job.table[job.ids[choice]].down : job.shared_down.data) + row * matrix.row_bytes;
        const InputRow       x = routed ? row_of(job.inner_x, choice, job.inner) : row_of(job.shared_inner_x, token, job.inner);
        const int32_t        begin = i == count - 1 && helpers > 0 ? 2 * (group() - i) : 0;
        const int32_t        step = i == count - 1 && helpers > 0 ? 2 * (helpers + 1) : 2;
        if (kSame || routed) {
            Routed with_routed;
            if constexpr (Routed::kTakesFour) {
                for (int32_t r = 2 * begin; r < rows; r += 2 * step) {
                    /* Behind the end the last row is taken again. */
                    const std::byte *four[4];
                    for (int32_t k = 0; k < 4; ++k) {
                        four[k] = data + (r + k < rows ? r + k : rows - 1) * matrix.row_bytes;
                    }
                    const float sum = with_routed.multiply_four(four, job.inner, x, tables);
                    if (lane() < 4 && r + lane() < rows) {
                        parts[i][r + lane()] = sum;
                    }
                }
            } else {
                multiply_by_twos(with_routed, matrix, data, rows, begin, step, job.inner, x, tables, room[group()], parts[i]);
            }
        } else if constexpr (!kSame) {
            Shared with_shared;
            multiply_by_twos(with_shared, matrix, data, rows, begin, step, job.inner, x, shared_tables, room[group()], parts[i]);
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
        const int32_t helpers = first + count > job.used ? kDownHelpers : 0;
        const int32_t busy = std::min<int32_t>(count + helpers, kGroups);
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
