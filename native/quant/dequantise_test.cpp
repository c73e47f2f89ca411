#include "quant/dequantise.h"

#include <cstring>

#include "check.h"

namespace {

using ds4::quant::Type;

/* Expected values come from another implementation: see test/fixtures/dequant/manifest.json. */
void check_type(Type type) {
    const std::string name = std::string("dequant/") + ds4::quant::type_name(type);
    const auto        raw = ds4::test::read_fixture(name + ".bin");
    const auto        expected = ds4::test::read_fixture(name + ".f32");
    std::vector<float> want(expected.size() / sizeof(float));
    std::memcpy(want.data(), expected.data(), expected.size());
    const auto layout = ds4::quant::block_layout(type);
    CHECK(!raw.empty() && static_cast<int64_t>(raw.size()) / layout.bytes * layout.values == static_cast<int64_t>(want.size()));

    std::vector<float> got(want.size());
    ds4::quant::dequantise_row(type, raw.data(), static_cast<int64_t>(got.size()), got.data());

    CHECK_SAME_BITS(name, got, want);
}

} // namespace

TEST("every weight type decodes to the bits of the reference vectors") {
    for (const Type type : {Type::f16, Type::bf16, Type::q8_0, Type::mxfp4, Type::q2_k, Type::q4_k, Type::q5_k, Type::q6_k,
                            Type::iq2_xxs}) {
        check_type(type);
    }
}

TEST("a row of F32 is copied") {
    const std::vector<float> row = {1.0f, -2.5f, 0.0f};
    std::vector<float>       got(3);

    ds4::quant::dequantise_row(Type::f32, reinterpret_cast<const std::byte *>(row.data()), 3, got.data());

    CHECK(got == row);
}

TEST("a type that holds no weights is refused") {
    std::byte row[4] = {};
    float     out[1];

    CHECK_FAILS(DS4_E_UNSUPPORTED, ds4::quant::dequantise_row(Type::i32, row, 1, out));
    CHECK(!ds4::quant::is_weight_type(Type::i32));
    CHECK(!ds4::quant::is_weight_type(static_cast<Type>(2)));
    CHECK(ds4::quant::is_weight_type(Type::iq2_xxs));
}
