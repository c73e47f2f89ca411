#include "quant/finite.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "check.h"
#include "quant/dequantise.h"

using namespace ds4;
using namespace ds4::quant;

namespace {

constexpr Type kTypes[] = {Type::f32,  Type::f16,  Type::bf16, Type::q8_0,    Type::q2_k,
                           Type::q4_k, Type::q5_k, Type::q6_k, Type::iq2_xxs, Type::mxfp4};

bool is_finite(Type type, const std::vector<std::byte> &blocks, int64_t count) {
    const int64_t      values = count * block_layout(type).values;
    std::vector<float> out(static_cast<size_t>(values));
    dequantise_row(type, blocks.data(), values, out.data());
    for (const float value : out) {
        if (!std::isfinite(value)) {
            return false;
        }
    }
    return true;
}

} // namespace

TEST("blocks of random bits are found bad when one of their values is no finite number") {
    test::Random random(7);
    for (const Type type : kTypes) {
        int found = 0;
        for (int turn = 0; turn < 3000; ++turn) {
            std::vector<std::byte> block(static_cast<size_t>(block_layout(type).bytes));
            for (std::byte &byte : block) {
                byte = static_cast<std::byte>(random.below(4) == 0 ? 0xff : random.bits());
            }
            const bool bad = first_not_finite(type, block.data(), 1).has_value();
            found += bad ? 1 : 0;
            /* Of MXFP4 the exponent alone counts, also where it happens to meet small values only. */
            CHECK(bad == !is_finite(type, block, 1) || (bad && type == Type::mxfp4));
        }
        CHECK(found > 0 && found < 3000);
    }
}

TEST("the first bad block of a row is named") {
    for (const Type type : kTypes) {
        const auto             bytes = static_cast<size_t>(block_layout(type).bytes);
        std::vector<std::byte> blocks(9 * bytes);
        CHECK(!first_not_finite(type, blocks.data(), 9));
        for (const size_t bad : {7u, 3u}) {
            std::memset(blocks.data() + bad * bytes, 0xff, bytes);
            CHECK(first_not_finite(type, blocks.data(), 9) == static_cast<int64_t>(bad));
        }
        CHECK(!first_not_finite(type, blocks.data(), 3));
    }
    const std::vector<std::byte> ids(4, std::byte{0xff});
    CHECK(!first_not_finite(Type::i32, ids.data(), 1));
}
