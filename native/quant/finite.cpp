#include "quant/finite.h"

#include <cstring>

#include "quant/blocks.h"

namespace ds4::quant {

namespace {

constexpr uint16_t kF16Exponent = 0x7c00;
constexpr uint16_t kBf16Exponent = 0x7f80;
constexpr uint32_t kF32Exponent = 0x7f800000;
/* From here on the largest values of a block are infinite as floats; the last one is not-a-number. */
constexpr uint8_t  kE8m0TooLarge = 0xfd;

bool is_finite_f16(uint16_t bits) {
    return (bits & kF16Exponent) != kF16Exponent;
}

template <typename Block, typename IsFinite>
std::optional<int64_t> first_bad(const std::byte *blocks, int64_t count, IsFinite &&is_finite) {
    for (int64_t i = 0; i < count; ++i) {
        Block block;
        std::memcpy(&block, blocks + i * static_cast<int64_t>(sizeof block), sizeof block);
        if (!is_finite(block)) {
            return i;
        }
    }
    return std::nullopt;
}

constexpr auto kScaleIsFinite = [](const auto &block) { return is_finite_f16(block.d); };
constexpr auto kScalesAreFinite = [](const auto &block) { return is_finite_f16(block.d) && is_finite_f16(block.dmin); };

} // namespace

std::optional<int64_t> first_not_finite(Type type, const std::byte *blocks, int64_t count) {
    switch (type) {
    case Type::f32:
        return first_bad<uint32_t>(blocks, count, [](uint32_t bits) { return (bits & kF32Exponent) != kF32Exponent; });
    case Type::f16:
        return first_bad<uint16_t>(blocks, count, is_finite_f16);
    case Type::bf16:
        return first_bad<uint16_t>(blocks, count, [](uint16_t bits) { return (bits & kBf16Exponent) != kBf16Exponent; });
    case Type::q8_0:
        return first_bad<BlockQ8_0>(blocks, count, kScaleIsFinite);
    case Type::q6_k:
        return first_bad<BlockQ6K>(blocks, count, kScaleIsFinite);
    case Type::iq2_xxs:
        return first_bad<BlockIq2Xxs>(blocks, count, kScaleIsFinite);
    case Type::q2_k:
        return first_bad<BlockQ2K>(blocks, count, kScalesAreFinite);
    case Type::q4_k:
        return first_bad<BlockQ4K>(blocks, count, kScalesAreFinite);
    case Type::q5_k:
        return first_bad<BlockQ5K>(blocks, count, kScalesAreFinite);
    case Type::mxfp4:
        return first_bad<BlockMxfp4>(blocks, count, [](const BlockMxfp4 &block) { return block.exponent < kE8m0TooLarge; });
    case Type::i32:
        break;
    }
    return std::nullopt;
}

} // namespace ds4::quant
