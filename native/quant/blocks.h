/* The blocks of the quantised formats as they lie in a file (little-endian, without padding). Structures only, no
 * functions: the SIMD files include this. Where each bit goes is told in the decoder of the format. */
#pragma once

#include <cstdint>

namespace ds4::quant {

struct BlockQ8_0 {
    uint16_t d; /* F16 */
    int8_t   q[32];
};
static_assert(sizeof(BlockQ8_0) == 34);

struct BlockMxfp4 {
    uint8_t exponent; /* E8M0 */
    uint8_t q[16];    /* low nibbles: values 0..15, high nibbles: values 16..31 */
};
static_assert(sizeof(BlockMxfp4) == 17);

struct BlockQ2K {
    uint8_t  scales[16]; /* low nibble scale, high nibble minimum, per 16 values */
    uint8_t  q[64];
    uint16_t d;    /* F16, of the scales */
    uint16_t dmin; /* F16, of the minima */
};
static_assert(sizeof(BlockQ2K) == 84);

struct BlockQ4K {
    uint16_t d;
    uint16_t dmin;
    uint8_t  scales[12]; /* eight scales and eight minima of 6 bits */
    uint8_t  q[128];
};
static_assert(sizeof(BlockQ4K) == 144);

struct BlockQ5K {
    uint16_t d;
    uint16_t dmin;
    uint8_t  scales[12];
    uint8_t  high[32];
    uint8_t  q[128];
};
static_assert(sizeof(BlockQ5K) == 176);

struct BlockQ6K {
    uint8_t  low[128];
    uint8_t  high[64];
    int8_t   scales[16];
    uint16_t d;
};
static_assert(sizeof(BlockQ6K) == 210);

struct BlockIq2Xxs {
    uint16_t d;
    uint16_t q[32]; /* per 32 values: four grid indices of 8 bits, four sign indices of 7 bits, a scale of 4 bits */
};
static_assert(sizeof(BlockIq2Xxs) == 66);

/* Activations: 8-bit integers with one float32 scale per 32 or 256 values. */
struct Q8Block32 {
    float  d;
    int8_t q[32];
};

struct Q8Block256 {
    float   d;
    int8_t  q[256];
    int16_t sums[16]; /* of 16 consecutive q */
};

} // namespace ds4::quant
