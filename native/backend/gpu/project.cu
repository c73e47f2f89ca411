/* project and grouped_project: which kernel takes which matrices. */
#include "backend/gpu/gpu_ops.h"
#include "backend/gpu/project.h"

#include <algorithm>

namespace ds4::backend::gpu {

namespace {

/* The inputs of all parts: `input_rows` rows of `columns` values, one after another. */
struct Batch {
    int64_t      tokens;
    const float *x;
    int64_t      input_rows;
    int64_t      columns;
};

bool all_few(const Parts &parts, bool exact) {
    return std::all_of(parts.part, parts.part + parts.count, [&](const Part &part) {
        return inputs_of(part.format, exact) == inputs_of(part.format, false);
    });
}

size_t round_both_bytes(int64_t rows, int64_t columns) {
    return activation_bytes(Inputs::bytes_32, rows, columns) + activation_bytes(Inputs::bytes_256, rows, columns);
}

/* Parts of many tokens, one launch per format. `memory`: room for the activations in both kinds of 8 bits. */
void project_many(const Stream &stream, const CardFacts &card, bool exact, const Batch &batch, const Parts &parts,
                  std::byte *memory) {
    bool        rounded[2] = {};
    Activations activations[2];
    for (int i = 0; i < parts.count; ++i) {
        const Format format = parts.part[i].format;
        const bool   seen = std::any_of(parts.part, parts.part + i, [&](const Part &part) { return part.format == format; });
        if (seen) {
            continue;
        }
        Parts same{};
        same.columns = parts.columns;
        for (int k = i; k < parts.count; ++k) {
            if (parts.part[k].format == format) {
                same.part[same.count++] = parts.part[k];
            }
        }
        const Inputs inputs = inputs_of(format, exact);
        if (inputs == Inputs::floats) {
            if (!project_thin_floats(stream, same, batch.tokens)) {
                project_floats(stream, card, same, batch.tokens);
            }
            continue;
        }
        const int kind = inputs == Inputs::bytes_32 ? 0 : 1;
        if (!rounded[kind]) {
            rounded[kind] = true;
            std::byte *place = memory + (kind == 0 ? 0 : activation_bytes(Inputs::bytes_32, batch.input_rows, batch.columns));
            activations[kind] = activations_at(place, inputs, batch.input_rows, batch.columns);
            quantise(stream, inputs, batch.x, batch.input_rows, batch.columns, batch.columns, activations[kind]);
        }
        project_bytes(stream, card, same, batch.tokens, activations[kind]);
    }
}

} // namespace

void GpuOps::project(const ProjectArgs &args) {
    const auto count = static_cast<int64_t>(args.projections.size());
    for (int64_t first = 0; first < count; first += Parts::kMost) {
        Parts parts{};
        parts.columns = args.projections[static_cast<size_t>(first)].matrix->columns;
        for (int64_t i = first; i < count && parts.count < Parts::kMost; ++i) {
            const Projection &projection = args.projections[static_cast<size_t>(i)];
            const Matrix     &matrix = *projection.matrix;
            parts.part[parts.count++] = {
                .data = matrix.data,
                .row_bytes = matrix.row_bytes,
                .rows = matrix.rows,
                .x = args.x,
                .x_stride = matrix.columns,
                .out = projection.out,
                .out_stride = matrix.rows,
                .input_row = 0,
                .input_stride = 1,
                .first_block = 0,
                .format = format_of(matrix.type, matrix.layout),
            };
        }
        const std::span<const Part> list(parts.part, static_cast<size_t>(parts.count));
        if (all_few(parts, exact_) && args.tokens <= few_tokens(device_.facts(), parts.columns, list)) {
            project_few(stream_, device_.facts(), parts, args.tokens);
            continue;
        }
        std::byte *memory = exact_ ? nullptr : activation_scratch(round_both_bytes(args.tokens, parts.columns));
        project_many(stream_, device_.facts(), exact_, {args.tokens, args.x, args.tokens, parts.columns}, parts, memory);
    }
}

void GpuOps::grouped_project(const GroupedProjectArgs &args) {
    const Matrix &matrix = *args.matrix;
    const int64_t rank = matrix.rows / args.groups;
    for (int64_t first = 0; first < args.groups; first += Parts::kMost) {
        Parts parts{};
        parts.columns = matrix.columns;
        for (int64_t g = first; g < args.groups && parts.count < Parts::kMost; ++g) {
            parts.part[parts.count++] = {
                .data = matrix.data + g * rank * matrix.row_bytes,
                .row_bytes = matrix.row_bytes,
                .rows = rank,
                .x = args.x + g * matrix.columns,
                .x_stride = args.groups * matrix.columns,
                .out = args.out + g * rank,
                .out_stride = args.groups * rank,
                .input_row = static_cast<int32_t>(g),
                .input_stride = static_cast<int32_t>(args.groups),
                .first_block = 0,
                .format = format_of(matrix.type, matrix.layout),
            };
        }
        const std::span<const Part> list(parts.part, static_cast<size_t>(parts.count));
        if (all_few(parts, exact_) && args.tokens <= few_tokens(device_.facts(), parts.columns, list)) {
            project_few(stream_, device_.facts(), parts, args.tokens);
            continue;
        }
        const int64_t rows = args.tokens * args.groups;
        std::byte    *memory = exact_ ? nullptr : activation_scratch(round_both_bytes(rows, matrix.columns));
        project_many(stream_, device_.facts(), exact_, {args.tokens, args.x, rows, matrix.columns}, parts, memory);
    }
}

size_t project_scratch(const OpsLimits &) { return 0; }

/* A grouped matrix has more, shorter rows: the same bytes, but for the rounding of each array. */
size_t project_activation_scratch(const OpsLimits &limits) {
    return round_both_bytes(limits.tokens, limits.widest_input) + 4096;
}

} // namespace ds4::backend::gpu
