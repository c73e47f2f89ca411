#include "quant/iq2_xxs_grid.h"

#include "quant/iq2_xxs_codes.h"

namespace ds4::quant {

namespace {

constexpr Iq2XxsCodes kCodes = iq2_xxs_codes();

constexpr Iq2XxsTables build() {
    Iq2XxsTables tables{};
    for (int entry = 0; entry < 256; ++entry) {
        for (int i = 0; i < 8; ++i) {
            const int code = kCodes.code[entry] >> (2 * i) & 3;
            tables.grid[entry][i] = code == 0 ? 8 : code == 1 ? 25 : 43;
        }
    }
    for (int index = 0; index < 128; ++index) {
        int negatives = 0;
        for (int bit = 0; bit < 7; ++bit) {
            negatives += index >> bit & 1;
        }
        for (int i = 0; i < 8; ++i) {
            const int negative = i < 7 ? index >> i & 1 : negatives & 1;
            tables.sign[index][i] = negative != 0 ? -1 : 1;
        }
    }
    return tables;
}

constexpr Iq2XxsTables kTables = build();

} // namespace

const Iq2XxsTables &iq2_xxs_tables() {
    return kTables;
}

} // namespace ds4::quant
