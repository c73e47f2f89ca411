#include "model/check_values.h"

#include <algorithm>
#include <string>
#include <vector>

#include "failure.h"
#include "quant/finite.h"

namespace ds4::model {

namespace {

constexpr int64_t kPieceBytes = 4 << 20;

} // namespace

void check_values(const runtime::WeightStore &store, std::span<const ExpectedTensor> tensors,
                  std::span<const quant::Type> types, runtime::Telemetry &telemetry) {
    std::vector<std::byte> piece;
    for (size_t i = 0; i < tensors.size(); ++i) {
        const ExpectedTensor    &tensor = tensors[i];
        const quant::BlockLayout block = quant::block_layout(types[i]);
        const int64_t            blocks = tensor.depth * tensor.rows * tensor.columns / block.values;
        const int64_t            most = kPieceBytes / block.bytes;
        for (int64_t first = 0; first < blocks; first += most) {
            telemetry.poll_cancel("looking through the weights");
            const int64_t  count = std::min(most, blocks - first);
            const uint64_t offset = store.offset(i) + static_cast<uint64_t>(first * block.bytes);
            piece.resize(static_cast<size_t>(count * block.bytes));
            store.source(i).read_once_more(piece, offset);
            if (const auto bad = quant::first_not_finite(types[i], piece.data(), count)) {
                throw Failure(DS4_E_IO, "tensor " + tensor_name(tensor.role, tensor.layer) + " of " + store.source(i).path() +
                                            " has values that are no numbers, the first at byte " +
                                            std::to_string(offset + static_cast<uint64_t>(*bad * block.bytes)) +
                                            " of the file: it is damaged; get it again");
            }
        }
    }
}

} // namespace ds4::model
