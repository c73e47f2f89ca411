/* y = W x, the bulk of all work. Inputs are prepared once for each format among the matrices, then rows of all matrices
 * are shared out between the threads. */
#include "backend/cpu/cpu_ops.h"

#include <algorithm>

namespace ds4::backend::cpu {

CpuOps::Format CpuOps::format_of(quant::Type type) const {
    if (arithmetic_ == Arithmetic::exact) {
        return Format::floats;
    }
    switch (type) {
    case quant::Type::q8_0:
    case quant::Type::mxfp4: return Format::bytes_32;
    case quant::Type::q2_k:
    case quant::Type::q4_k:
    case quant::Type::q5_k:
    case quant::Type::q6_k:
    case quant::Type::iq2_xxs: return Format::bytes_256;
    default: return Format::floats;
    }
}

size_t CpuOps::prepared_bytes(Format format, int64_t columns) const {
    switch (format) {
    case Format::bytes_32: return kernels_.bytes_32(columns);
    case Format::bytes_256: return kernels_.bytes_256(columns);
    default: return 0;
    }
}

void CpuOps::prepare_row(Format format, const float *x, int64_t columns, std::byte *out) const {
    if (format == Format::bytes_32) {
        kernels_.quantise_32(x, columns, out);
    } else if (format == Format::bytes_256) {
        kernels_.quantise_256(x, columns, out);
    }
}

void CpuOps::prepare_inputs(Format format, const float *x, int64_t rows, int64_t columns, int64_t stride, Prepared &prepared) {
    prepared.rows.resize(static_cast<size_t>(rows));
    if (format == Format::floats) {
        for (int64_t i = 0; i < rows; ++i) {
            prepared.rows[static_cast<size_t>(i)] = x + i * stride;
        }
        return;
    }
    const auto bytes = static_cast<int64_t>(prepared_bytes(format, columns));
    auto      *out = prepared.bytes.take<std::byte>(rows * bytes);
    pool_.run_ranges(rows, rows * columns * 2, [&](int64_t first, int64_t last, uint32_t) {
        for (int64_t i = first; i < last; ++i) {
            prepare_row(format, x + i * stride, columns, out + i * bytes);
            prepared.rows[static_cast<size_t>(i)] = out + i * bytes;
        }
    });
}

void CpuOps::multiply(const Product &product, Format format, int64_t first, int64_t rows, int64_t y_offset,
                      Workspace &workspace) const {
    const MultiplyJob job = {
        .type = product.type,
        .weights = product.weights + first * product.row_bytes,
        .row_bytes = product.row_bytes,
        .rows = rows,
        .columns = product.columns,
        .tokens = product.tokens,
        .x = product.x,
        .y = product.y,
        .y_offset = y_offset,
        .scratch = workspace.multiply.take<std::byte>(
            static_cast<int64_t>(kernels_.multiply_scratch_bytes(product.columns))),
    };
    switch (format) {
    case Format::bytes_32: kernels_.multiply_32(job); return;
    case Format::bytes_256: kernels_.multiply_256(job); return;
    default: kernels_.multiply_float(job); return;
    }
}

int64_t CpuOps::rows_per_item(int64_t rows, int64_t most) const {
    const int64_t panel = kernels_.panel_rows;
    const int64_t items = int64_t{threads()} * ThreadPool::kRangesPerThread;
    const int64_t even = (rows + items - 1) / items;
    return std::clamp((even + panel - 1) / panel * panel, panel, std::max(panel, most / panel * panel));
}

void CpuOps::multiply_all(std::span<const Product> products) {
    int64_t rows = 0;
    int64_t work = 0;
    for (const Product &product : products) {
        rows += product.rows;
        work += product.rows * product.columns * product.tokens;
    }
    const int64_t per_item = rows_per_item(rows, rows + kernels_.panel_rows);
    const auto    items_of = [&](const Product &product) { return (product.rows + per_item - 1) / per_item; };
    int64_t       items = 0;
    for (const Product &product : products) {
        items += items_of(product);
    }
    pool_.run(items, work, [&](int64_t item, uint32_t thread) {
        for (const Product &product : products) {
            const int64_t count = items_of(product);
            if (item < count) {
                const int64_t first = item * per_item;
                multiply(product, format_of(product.type), first, std::min(per_item, product.rows - first), first,
                         workspaces_[thread]);
                return;
            }
            item -= count;
        }
    });
}

void CpuOps::project(const ProjectArgs &args) {
    bool prepared[kFormats] = {};
    products_.clear();
    outputs_.resize(static_cast<size_t>(args.tokens) * args.projections.size());
    float **outputs = outputs_.data();
    for (const Projection &projection : args.projections) {
        const Matrix &matrix = *projection.matrix;
        const Format  format = format_of(matrix.type);
        const auto    index = static_cast<size_t>(format);
        if (!prepared[index]) {
            prepare_inputs(format, args.x, args.tokens, matrix.columns, matrix.columns, inputs_[index]);
            prepared[index] = true;
        }
        for (int64_t t = 0; t < args.tokens; ++t) {
            outputs[t] = projection.out + t * matrix.rows;
        }
        products_.push_back({matrix.type, matrix.data, matrix.row_bytes, matrix.rows, matrix.columns,
                             inputs_[index].rows.data(), outputs, args.tokens});
        outputs += args.tokens;
    }
    multiply_all(products_);
}

void CpuOps::grouped_project(const GroupedProjectArgs &args) {
    const Matrix &matrix = *args.matrix;
    const Format  format = format_of(matrix.type);
    Prepared     &inputs = inputs_[static_cast<size_t>(format)];
    prepare_inputs(format, args.x, args.tokens * args.groups, matrix.columns, matrix.columns, inputs);

    /* The pointers of a group's inputs have to be neighbours: sort them by group. */
    const int64_t rank = matrix.rows / args.groups;
    auto         &gathered = gathered_[static_cast<size_t>(format)];
    gathered.resize(static_cast<size_t>(args.tokens * args.groups));
    outputs_.resize(static_cast<size_t>(args.tokens * args.groups));
    products_.clear();
    for (int64_t g = 0; g < args.groups; ++g) {
        const auto place = static_cast<size_t>(g * args.tokens);
        for (int64_t t = 0; t < args.tokens; ++t) {
            gathered[place + static_cast<size_t>(t)] = inputs.rows[static_cast<size_t>(t * args.groups + g)];
            outputs_[place + static_cast<size_t>(t)] = args.out + (t * args.groups + g) * rank;
        }
        products_.push_back({matrix.type, matrix.data + g * rank * matrix.row_bytes, matrix.row_bytes, rank,
                             matrix.columns, gathered.data() + place, outputs_.data() + place, args.tokens});
    }
    multiply_all(products_);
}

} // namespace ds4::backend::cpu
