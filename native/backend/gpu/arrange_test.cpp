#include "backend/gpu/parity_test.h"

namespace ds4::backend::gpu::test {

TEST("an arranged row has all bytes, then all scales, and is as long as before") {
    for (const int64_t columns : {256, 1024, 4352}) {
        Random             random(static_cast<uint64_t>(columns));
        Backend            backend = gpu(false);
        const OwnedMatrix  owned = random_matrix(quant::Type::q8_0, 13, columns, random);
        const PlacedMatrix placed = place_matrix(backend, owned, Layout::arranged);

        CHECK(placed.matrix.layout == RowLayout::arranged);
        CHECK(placed.matrix.row_bytes == owned.matrix.row_bytes);
        std::vector<std::byte> want(owned.bytes.size());
        for (int64_t row = 0; row < 13; ++row) {
            const std::byte *from = owned.bytes.data() + row * owned.matrix.row_bytes;
            std::byte       *to = want.data() + row * owned.matrix.row_bytes;
            for (int64_t block = 0; block < columns / 32; ++block) {
                std::memcpy(to + 32 * block, from + 34 * block + 2, 32);
                std::memcpy(to + columns + 2 * block, from + 34 * block, 2);
            }
        }
        CHECK(placed.bytes.read() == want);
    }
}

TEST("other types, and rows without whole 16 bytes, stay as in the file") {
    Random  random(2);
    Backend backend = gpu(false);
    for (const quant::Type type : kWeightTypes) {
        const OwnedMatrix  owned = random_matrix(type, 5, type == quant::Type::q8_0 ? 288 : 256, random);
        const PlacedMatrix placed = place_matrix(backend, owned, Layout::arranged);
        CHECK(placed.matrix.layout == RowLayout::file);
        CHECK(placed.bytes.read() == owned.bytes);
    }
}

} // namespace ds4::backend::gpu::test
