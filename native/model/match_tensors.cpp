/* The tensor table against the catalogue. The table was checked by whoever read the file; it is checked again here
 * because kernels trust every number in it. */
#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "failure.h"
#include "model/catalogue.h"

namespace ds4::model {

namespace {

using Key = std::pair<uint32_t, int64_t>; /* role, layer */

std::array<uint64_t, 4> wanted_dims(const ExpectedTensor &expected) {
    return {static_cast<uint64_t>(expected.columns), static_cast<uint64_t>(expected.rows),
            static_cast<uint64_t>(expected.depth), 1};
}

template <typename Dims> std::string dims_text(const Dims &dims) {
    size_t count = 4;
    while (count > 1 && dims[count - 1] == 1) {
        --count;
    }
    std::string text = "[";
    for (size_t i = 0; i < count; ++i) {
        text += (i == 0 ? "" : ", ") + std::to_string(dims[i]);
    }
    return text + "]";
}

std::string type_text(uint32_t type) {
    return std::string(quant::type_name(static_cast<quant::Type>(type))) + " (" + std::to_string(type) + ")";
}

bool type_supported(const ExpectedTensor &expected, uint32_t number, const backend::Ops &ops) {
    const auto type = static_cast<quant::Type>(number);
    switch (expected.kind) {
    case TensorKind::vector:
        return type == quant::Type::f32 || type == quant::Type::f16 || type == quant::Type::bf16;
    case TensorKind::hash:
        return type == quant::Type::i32;
    case TensorKind::matrix:
    case TensorKind::experts:
        return quant::block_layout(type).values > 0 && ops.supports(type);
    }
    return false;
}

/* What is wrong with the size of a tensor of a supported type. */
std::optional<std::string> size_problem(const ExpectedTensor &expected, const ds4_tensor &tensor) {
    const std::array<uint64_t, 4> wanted = wanted_dims(expected);
    if (tensor.dim_count < 1 || tensor.dim_count > 4 || !std::ranges::equal(wanted, tensor.dims)) {
        return "has dimensions " + dims_text(tensor.dims) + ", needs " + dims_text(wanted);
    }
    const auto               type = static_cast<quant::Type>(tensor.type);
    const quant::BlockLayout block = quant::block_layout(type);
    if (expected.columns % block.values != 0) {
        return "has rows of " + std::to_string(expected.columns) + " values, no multiple of the " +
               std::to_string(block.values) + " in a block of " + quant::type_name(type);
    }
    uint64_t   bytes = static_cast<uint64_t>(expected.columns / block.values * block.bytes);
    const bool wraps = __builtin_mul_overflow(bytes, static_cast<uint64_t>(expected.rows), &bytes) ||
                       __builtin_mul_overflow(bytes, static_cast<uint64_t>(expected.depth), &bytes);
    if (wraps || bytes != tensor.bytes) {
        return "has " + std::to_string(tensor.bytes) + " bytes, needs " + (wraps ? "more than 2^64" : std::to_string(bytes));
    }
    return std::nullopt;
}

/* Sentence parts by what is said, so that the same remark about forty layers is one part with forty names. */
class Findings {
public:
    void add(const std::string &remark, const std::string &name) {
        for (auto &[known, names] : parts_) {
            if (known == remark) {
                names += ", " + name;
                return;
            }
        }
        parts_.emplace_back(remark, name);
    }

    bool any() const { return !parts_.empty(); }

    std::string text() const {
        std::string text;
        for (const auto &[remark, names] : parts_) {
            text += (text.empty() ? "" : "; ") + names + " " + remark;
        }
        return text;
    }

private:
    std::vector<std::pair<std::string, std::string>> parts_;
};

} // namespace

std::vector<size_t> match_tensors(std::span<const ExpectedTensor> expected, std::span<const ds4_tensor> tensors,
                                  const backend::Ops &ops) {
    Findings              wrong;
    Findings              unsupported;
    std::map<Key, size_t> table;
    for (size_t i = 0; i < tensors.size(); ++i) {
        if (!table.emplace(Key{tensors[i].role, tensors[i].layer}, i).second) {
            wrong.add("is in the table twice", tensor_name(tensors[i].role, tensors[i].layer));
        }
    }

    std::vector<size_t> matched;
    for (const ExpectedTensor &wanted : expected) {
        const std::string name = tensor_name(wanted.role, wanted.layer);
        const auto        found = table.find(Key{wanted.role, wanted.layer});
        if (found == table.end()) {
            wrong.add("missing", name);
            continue;
        }
        const ds4_tensor &tensor = tensors[found->second];
        if (!type_supported(wanted, tensor.type, ops)) {
            unsupported.add("has type " + type_text(tensor.type), name);
        } else if (const auto problem = size_problem(wanted, tensor)) {
            wrong.add(*problem, name);
        }
        if (wanted.role == DS4_ROLE_EXPERT_UP) {
            const auto gate = table.find(Key{DS4_ROLE_EXPERT_GATE, wanted.layer});
            if (gate != table.end() && tensors[gate->second].type != tensor.type) {
                unsupported.add("has another type than the gate", name);
            }
        }
        matched.push_back(found->second);
    }
    if (wrong.any()) {
        throw Failure(DS4_E_ARGUMENT, "the tensor table does not fit the model: " + wrong.text());
    }
    if (unsupported.any()) {
        throw Failure(DS4_E_UNSUPPORTED, "this backend has no code for some tensors: " + unsupported.text());
    }
    return matched;
}

} // namespace ds4::model
