/* The feed-forward part of a layer: rounds its inputs, then gate and up, rounds what comes out of them, then down and the
 * sum. Which kernels do it depends on the number of tokens; the bits do not. */
#include "backend/gpu/experts.h"

#include <algorithm>
#include <utility>

#include "backend/gpu/gpu_ops.h"

namespace ds4::backend::gpu {

namespace {

constexpr int64_t kFewTokens = 8;

size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

int64_t row_bytes_of(quant::Type type, int64_t columns) {
    const quant::BlockLayout layout = quant::block_layout(type);
    return columns / layout.values * layout.bytes;
}

Rows rows_of(const Matrix *matrix) {
    return matrix == nullptr ? Rows{} : Rows{matrix->data, matrix->row_bytes, format_of(matrix->type, matrix->layout)};
}

/* Hands out pieces of a memory; without one it only counts. */
class Pieces {
public:
    explicit Pieces(std::byte *memory) : memory_(memory) {}
    std::byte *take(size_t bytes) {
        std::byte *piece = memory_ == nullptr ? nullptr : memory_ + used_;
        used_ += aligned(bytes);
        return piece;
    }
    size_t used() const { return used_; }
    bool   exist() const { return memory_ != nullptr; }

private:
    std::byte *memory_;
    size_t     used_ = 0;
};

ProductInputs place_bytes(Pieces &pieces, Inputs inputs, int64_t rows, int64_t columns) {
    std::byte *memory = pieces.take(activation_bytes(inputs, rows, columns));
    return memory == nullptr ? ProductInputs{} : ProductInputs{activations_at(memory, inputs, rows, columns), nullptr};
}

FeedForward describe(const ExpertsArgs &args, Turn turn) {
    FeedForward job{};
    job.table = args.table;
    job.ids = args.ids;
    job.weights = args.weights;
    job.tokens = static_cast<int32_t>(args.tokens);
    job.used = static_cast<int32_t>(args.used);
    job.routed = static_cast<int32_t>(args.tokens * args.used);
    job.shared = args.shared_gate != nullptr ? job.tokens : 0;
    job.experts = static_cast<int32_t>(args.experts);
    job.width = static_cast<int32_t>(args.width);
    job.inner = static_cast<int32_t>(args.expert_width);
    job.gate_up = {nullptr, row_bytes_of(args.gate_up_type, args.width), format_of(args.gate_up_type)};
    job.down = {nullptr, row_bytes_of(args.down_type, args.expert_width), format_of(args.down_type)};
    job.shared_gate = rows_of(args.shared_gate);
    job.shared_up = rows_of(args.shared_up);
    job.shared_down = rows_of(args.shared_down);
    job.clamp = args.clamp;
    job.shared_clamp = args.shared_clamp;
    job.x_values = args.x;
    job.out = args.out;
    job.begun = turn == Turn::rest ? args.begun : nullptr;
    return job;
}

Inputs inputs_of_shared(const FeedForward &job, const Rows &rows, bool exact, Inputs otherwise) {
    return job.shared != 0 ? inputs_of(rows.format, exact) : otherwise;
}

/* Places x as the matrices want it, once where several want the same, and, given memory, rounds it. For the rest it has been
 * rounded. */
void place_x(const Stream &stream, const ExpertsArgs &args, bool exact, Turn turn, Pieces &pieces, FeedForward &job) {
    const auto place = [&](Inputs inputs) {
        if (inputs == Inputs::floats) {
            return ProductInputs{{}, args.x};
        }
        const ProductInputs placed = place_bytes(pieces, inputs, args.tokens, args.width);
        if (pieces.exist() && turn != Turn::rest) {
            quantise(stream, inputs, args.x, args.tokens, args.width, args.width, placed.bytes);
        }
        return placed;
    };
    const Inputs routed = inputs_of(job.gate_up.format, exact);
    const Inputs gate = inputs_of_shared(job, job.shared_gate, exact, routed);
    const Inputs up = inputs_of_shared(job, job.shared_up, exact, routed);
    job.x = place(routed);
    job.shared_x = gate == routed ? job.x : place(gate);
    job.shared_up_x = up == routed ? job.x : up == gate ? job.shared_x : place(up);
}

/* Where down finds its inputs: rounded, or as they are in `values`, [routed + shared, columns]. */
void place_inner(Pieces &pieces, const ExpertsArgs &args, bool exact, const float *values, int64_t columns,
                 FeedForward &job) {
    const auto place = [&](Inputs inputs, const float *from, int64_t rows) {
        return inputs == Inputs::floats || rows == 0 ? ProductInputs{{}, from}
                                                       : place_bytes(pieces, inputs, rows, args.expert_width);
    };
    const Inputs routed = inputs_of(job.down.format, exact);
    job.inner_x = place(routed, values, job.routed);
    const float *shared_values = values == nullptr ? nullptr : values + job.routed * columns;
    job.shared_inner_x = place(inputs_of_shared(job, job.shared_down, exact, routed), shared_values, job.shared);
}

/* In bytes. */
struct Need {
    size_t floats, activations;
};

/* A few tokens. Without memory it only says what it needs. The rest is done in the memory of the beginning: inner values
 * stay there as they are. */
Need run_few(const Stream &stream, const CardFacts &card, const ExpertsArgs &args, bool exact, Turn turn, Pieces floats,
             Pieces activations) {
    FeedForward job = describe(args, turn);
    if (!rounds_few(job, exact)) {
        place_x(stream, args, exact, turn, activations, job);
    }
    auto *inner = reinterpret_cast<float *>(
        floats.take(static_cast<size_t>((job.routed + job.shared) * args.expert_width) * sizeof(float)));
    place_inner(activations, args, exact, inner, args.expert_width, job);
    if (floats.exist()) {
        gate_up_few(stream, card, job, exact, turn, inner);
        if (turn != Turn::begin) {
            quantise_inner(stream, job, exact, Turn::all, {0, job.inner, inner});
            down_few(stream, job, exact);
        }
    }
    return {floats.used(), activations.used()};
}

/* Floats between two kernels: so many rows of every choice that they stay within this, but at least 256. More rows at a
 * time would hardly make the kernels faster, and every value here is paid for in weights that do not fit the card. */
constexpr int64_t kSliceFloats = int64_t{128} << 20;

int64_t slice_rows(int64_t choices, int64_t rows) {
    return std::min(rows, std::max<int64_t>(256, kSliceFloats / choices / 256 * 256));
}

/* Many tokens. Without memory it only says what it needs. The rest is done in the memory of the beginning: there the inner
 * values that were rounded stay among the activations, and those that were not among the floats. */
Need run_many(const Stream &stream, const CardFacts &card, const ExpertsArgs &args, bool exact, Turn turn, Pieces floats,
              Pieces activations) {
    FeedForward job = describe(args, turn);
    place_x(stream, args, exact, turn, activations, job);
    SortedChoices sorted{};
    sorted.turn = turn;
    sorted.order = reinterpret_cast<int32_t *>(floats.take(static_cast<size_t>(job.routed) * sizeof(int32_t)));
    sorted.tiles = reinterpret_cast<ChoiceTile *>(
        floats.take(static_cast<size_t>(tile_slots(job.routed, args.experts)) * sizeof(ChoiceTile)));

    /* Inner values are rounded slice by slice, unless the next product wants them as they are. */
    const int64_t choices = job.routed + job.shared;
    const Inputs  routed = inputs_of(job.down.format, exact);
    const Inputs  shared = inputs_of_shared(job, job.shared_down, exact, routed);
    const bool    kept = routed == Inputs::floats || shared == Inputs::floats;
    const int64_t inner_rows = kept ? args.expert_width : slice_rows(choices, args.expert_width);
    const int64_t down_rows = slice_rows(choices, args.width);
    const auto    take = [&](int64_t rows) {
        return reinterpret_cast<float *>(floats.take(static_cast<size_t>(choices * rows) * sizeof(float)));
    };
    float *const values = take(kept ? inner_rows : std::max(inner_rows, down_rows));
    float *const parts = kept ? take(down_rows) : values;
    place_inner(activations, args, exact, values, inner_rows, job);
    if (!floats.exist()) {
        return {floats.used(), activations.used()};
    }

    for (int64_t first = 0; first < args.expert_width; first += inner_rows) {
        const int64_t  count = std::min(inner_rows, args.expert_width - first);
        const RowSlice slice{static_cast<int32_t>(first), static_cast<int32_t>(count), values};
        gate_up_many(stream, card, job, exact, sorted, slice);
        quantise_inner(stream, job, exact, turn, slice);
    }
    if (turn == Turn::begin) {
        return {floats.used(), activations.used()};
    }
    if (turn == Turn::rest) {
        sorted.turn = Turn::all;
        sorted.width = 0;
    }
    for (int64_t first = 0; first < args.width; first += down_rows) {
        const int64_t  count = std::min(down_rows, args.width - first);
        const RowSlice slice{static_cast<int32_t>(first), static_cast<int32_t>(count), parts};
        down_many(stream, card, job, exact, sorted, slice);
        add_choices(stream, job, slice);
    }
    return {floats.used(), activations.used()};
}

bool is_few(int64_t tokens, int64_t choices_per_token) {
    return tokens <= kFewTokens && tokens * choices_per_token <= kMostFewChoices;
}

} // namespace

void GpuOps::run_experts(const ExpertsArgs &args, Turn turn) {
    const auto run = is_few(args.tokens, args.used + (args.shared_gate != nullptr ? 1 : 0)) ? run_few : run_many;
    const Need need = run(stream_, device_.facts(), args, exact_, turn, Pieces(nullptr), Pieces(nullptr));
    std::byte *floats = scratch_.as<std::byte>();
    std::byte *activations = activation_scratch_.as<std::byte>();
    if (turn != Turn::rest) {
        floats = scratch(need.floats);
        activations = need.activations != 0 ? activation_scratch(need.activations) : nullptr;
    }
    run(stream_, device_.facts(), args, exact_, turn, Pieces(floats), Pieces(activations));
}

void GpuOps::experts(const ExpertsArgs &args) {
    const BegunExperts begun = std::exchange(begun_experts_, {});
    if (args.tokens == 0) {
        return;
    }
    if (args.begun != nullptr && (begun.ids != args.ids || begun.tokens != args.tokens)) {
        throw Failure(DS4_E_INTERNAL, "experts were to be finished that had not been begun");
    }
    run_experts(args, args.begun != nullptr ? Turn::rest : Turn::all);
}

bool GpuOps::begin_experts(const ExpertsArgs &args) {
    if (args.tokens == 0) {
        return false;
    }
    run_experts(args, Turn::begin);
    begun_experts_ = {args.ids, args.tokens};
    return true;
}

/* For weights that are not floats; those need more, and take it when they come. */
size_t experts_scratch(const OpsLimits &limits) {
    const int64_t routed = limits.tokens * limits.used, choices = routed + limits.tokens;
    const int64_t rows = std::max(limits.width, limits.expert_width);
    const int64_t values = std::min(choices * rows, std::max(kSliceFloats, choices * 256));
    return aligned(static_cast<size_t>(values) * sizeof(float)) + aligned(static_cast<size_t>(routed) * sizeof(int32_t)) +
           aligned(static_cast<size_t>(tile_slots(routed, limits.experts)) * sizeof(ChoiceTile));
}

size_t experts_activation_scratch(const OpsLimits &limits) {
    const auto both = [](int64_t rows, int64_t columns) {
        return std::max(activation_bytes(Inputs::bytes_32, rows, columns),
                        activation_bytes(Inputs::bytes_256, rows, columns));
    };
    /* Of x two kinds at most: the third wants the floats. */
    return 2 * both(limits.tokens, limits.width) + both(limits.tokens * limits.used, limits.expert_width) +
           both(limits.tokens, limits.expert_width);
}

} // namespace ds4::backend::gpu
