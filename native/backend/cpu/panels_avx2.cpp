/* 8-bit activations against quantised weights with AVX2; the rules of kernels_avx2.cpp hold here too.
 *
 * Products with 8-bit activations work on panels of 8 weight rows, one row per 32-bit lane. Bytes are widened to 16 bits
 * and multiplied in pairs, which is exact for every value; the faster instruction for unsigned times signed bytes
 * saturates for Q8_0. A register of four columns splits into its even and its odd bytes at the cost of one instruction
 * each, so prepared activations hold columns 0, 2, 1, 3 of each four. */
#if defined(__x86_64__)

#include "backend/cpu/panels.h"

#include <immintrin.h>

#include "quant/blocks.h"
#include "quant/iq2_xxs_grid.h"

namespace ds4::backend::cpu::avx2 {

namespace {

using Vec = __m256;

constexpr int kLanes = 8;

Vec zero() {
    return _mm256_setzero_ps();
}

Vec splat(float x) {
    return _mm256_set1_ps(x);
}

Vec load(const float *p) {
    return _mm256_loadu_ps(p);
}

Vec magnitude_of(Vec v) {
    return _mm256_andnot_ps(splat(-0.0f), v);
}

float peak(Vec v) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* ---- activations of 8 bits --------------------------------------------------------------------------------------- */

/* A prepared token of `columns` values, one array after another:
 *   int16 q[columns]             the values, columns 0, 2, 1, 3 of each four
 *   float d[columns / block]     block 32 or 256
 * and with blocks of 256 also
 *   float dsum32[columns / 32]   d * sum of 32 values
 *   float dsum16[columns / 16] */
struct Offsets {
    int64_t d, dsum32, dsum16, end;
};

Offsets offsets_of(int64_t columns, int64_t block) {
    Offsets o{};
    o.d = columns * 2;
    o.dsum32 = o.d + columns / block * 4;
    o.dsum16 = o.dsum32 + (block == 256 ? columns / 32 * 4 : 0);
    o.end = o.dsum16 + (block == 256 ? columns / 16 * 4 : 0);
    return o;
}

size_t whole_lines(int64_t bytes) {
    return (static_cast<size_t>(bytes) + 63) / 64 * 64;
}

/* Sets a bit for each lane that is not finite. */
int not_finite(Vec magnitude) {
    return _mm256_movemask_ps(_mm256_cmp_ps(magnitude, splat(__builtin_inff()), _CMP_NLT_UQ));
}

/* 16 values rounded to -128 .. 127 as 16-bit numbers in the stored order; returns their sum. */
int32_t to_words(const float *x, Vec inverse, int16_t *out) {
    const __m256i low = _mm256_cvtps_epi32(load(x) * inverse);
    const __m256i high = _mm256_cvtps_epi32(load(x + 8) * inverse);
    /* Words of 0-3, 8-11, 4-7, 12-15; then the quarters and the words in each into order. */
    __m256i words = _mm256_packs_epi32(low, high);
    words = _mm256_max_epi16(_mm256_min_epi16(words, _mm256_set1_epi16(127)), _mm256_set1_epi16(-128));
    words = _mm256_permute4x64_epi64(words, 0xd8);
    const __m256i pairs = _mm256_madd_epi16(words, _mm256_set1_epi16(1));
    const __m256i order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(out), _mm256_shuffle_epi8(words, order));
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(four) + _mm_extract_epi32(four, 1);
}

/* ---- panels of 8 rows -------------------------------------------------------------------------------------------- */

constexpr int64_t kChunk = 1024; /* columns unpacked at a time: such a panel stays in the first-level cache */

/* An unpacked piece of a panel. Group g has its bytes at bytes[g * registers per group], four columns of 8 rows each,
 * and its scale and minimum, if the format has one, per row. */
struct Panel {
    __m256i bytes[kChunk / 4];
    Vec     scale[kChunk / 16];
    Vec     minimum[kChunk / 16];
};

/* 8 rows of a matrix; rows past the end repeat the last one. */
struct Rows {
    const std::byte *row[kPanelRows];
    __m256i          offset; /* of each row from the first, for gathering */
};

Rows point_at(const std::byte *weights, int64_t row_bytes, int64_t count) {
    Rows rows;
    alignas(32) int32_t offset[kPanelRows];
    for (int i = 0; i < kPanelRows; ++i) {
        const int64_t r = i < count ? i : count - 1;
        rows.row[i] = weights + r * row_bytes;
        offset[i] = static_cast<int32_t>(r * row_bytes);
    }
    rows.offset = _mm256_load_si256(reinterpret_cast<const __m256i *>(offset));
    return rows;
}

/* Four bytes at `at` of every row. */
__m256i gather(const Rows &rows, int64_t at) {
    return _mm256_i32gather_epi32(reinterpret_cast<const int *>(rows.row[0] + at), rows.offset, 1);
}

Vec low_f16(__m256i dwords) {
    const __m256i low = _mm256_and_si256(dwords, _mm256_set1_epi32(0xffff));
    const __m256i words = _mm256_packus_epi32(low, low);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64(words, 0x08)));
}

Vec high_f16(__m256i dwords) {
    return low_f16(_mm256_srli_epi32(dwords, 16));
}

__m256i load_row(const Rows &rows, int row, int64_t at) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(rows.row[row] + at));
}

/* 4 x 4 dwords in each half of four registers. */
void transpose_quarters(__m256i *z) {
    const __m256i a = _mm256_unpacklo_epi32(z[0], z[1]);
    const __m256i b = _mm256_unpackhi_epi32(z[0], z[1]);
    const __m256i c = _mm256_unpacklo_epi32(z[2], z[3]);
    const __m256i d = _mm256_unpackhi_epi32(z[2], z[3]);
    z[0] = _mm256_unpacklo_epi64(a, c);
    z[1] = _mm256_unpackhi_epi64(a, c);
    z[2] = _mm256_unpacklo_epi64(b, d);
    z[3] = _mm256_unpackhi_epi64(b, d);
}

/* 32 bytes at `at` of 8 rows -> out[c] = bytes 4 c .. 4 c + 3 of each row. */
[[gnu::always_inline]] inline void transpose_32(const Rows &rows, int64_t at, __m256i *out) {
    __m256i z[8];
    for (int i = 0; i < 8; ++i) {
        z[i] = load_row(rows, i, at);
    }
    transpose_quarters(z);
    transpose_quarters(z + 4);
    for (int c = 0; c < 4; ++c) {
        out[c] = _mm256_permute2x128_si256(z[c], z[c + 4], 0x20);
        out[c + 4] = _mm256_permute2x128_si256(z[c], z[c + 4], 0x31);
    }
}

/* The same for 16 bytes: four registers. */
[[gnu::always_inline]] inline void transpose_16(const Rows &rows, int64_t at, __m256i *out) {
    for (int i = 0; i < 4; ++i) {
        const auto half = [&](int row) {
            return _mm_loadu_si128(reinterpret_cast<const __m128i *>(rows.row[row] + at));
        };
        out[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(half(i)), half(i + 4), 1);
    }
    transpose_quarters(out);
}

__m256i all_bytes(int value) {
    return _mm256_set1_epi8(static_cast<char>(value));
}

__m256i bits_at(__m256i v, int shift, int mask) {
    return _mm256_and_si256(_mm256_srli_epi32(v, shift), all_bytes(mask));
}

/* Byte `index` of each lane as a float. */
Vec byte_as_float(__m256i v, int index) {
    return _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(v, 8 * index), _mm256_set1_epi32(255)));
}

/* A format says: values per block, columns per scale, whether its bytes are signed, whether it has minima, the block
 * size of the activations, and how to unpack one block into the panel from group `group` on. */
struct FormatQ8_0 {
    static constexpr int  kBlock = 32, kGroup = 32, kActivation = 32;
    static constexpr bool kSigned = true, kMinimum = false;
    static constexpr int64_t kBytes = sizeof(quant::BlockQ8_0);

    static void unpack(const Rows &rows, int64_t at, Panel &panel, int group) {
        transpose_32(rows, at + 2, panel.bytes + group * 8);
        panel.scale[group] = low_f16(gather(rows, at));
    }
};

struct FormatMxfp4 {
    static constexpr int  kBlock = 32, kGroup = 32, kActivation = 32;
    static constexpr bool kSigned = true, kMinimum = false;
    static constexpr int64_t kBytes = sizeof(quant::BlockMxfp4);

    static void unpack(const Rows &rows, int64_t at, Panel &panel, int group) {
        const __m256i table =
            _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
        __m256i packed[4];
        transpose_16(rows, at + 1, packed);
        __m256i *bytes = panel.bytes + group * 8;
        for (int c = 0; c < 4; ++c) {
            bytes[c] = _mm256_shuffle_epi8(table, bits_at(packed[c], 0, 15));
            bytes[c + 4] = _mm256_shuffle_epi8(table, bits_at(packed[c], 4, 15));
        }
        const __m256i exponent = _mm256_and_si256(gather(rows, at), _mm256_set1_epi32(255));
        const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(exponent, _mm256_set1_epi32(1)), 23);
        const __m256i subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), exponent);
        const __m256i small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), exponent);
        panel.scale[group] = _mm256_castsi256_ps(_mm256_blendv_epi8(normal, subnormal, small));
    }
};

struct FormatQ2K {
    static constexpr int  kBlock = 256, kGroup = 16, kActivation = 256;
    static constexpr bool kSigned = false, kMinimum = true;
    static constexpr int64_t kBytes = sizeof(quant::BlockQ2K);

    static void unpack(const Rows &rows, int64_t at, Panel &panel, int group) {
        for (int half = 0; half < 2; ++half) {
            __m256i packed[8];
            transpose_32(rows, at + 16 + 32 * half, packed);
            for (int pair = 0; pair < 4; ++pair) {
                __m256i *bytes = panel.bytes + (group + 8 * half + 2 * pair) * 4;
                for (int c = 0; c < 8; ++c) {
                    bytes[c] = bits_at(packed[c], 2 * pair, 3);
                }
            }
        }
        const __m256i both = gather(rows, at + 80);
        const Vec     d = low_f16(both);
        const Vec     dmin = high_f16(both);
        for (int four = 0; four < 4; ++four) {
            const __m256i scales = gather(rows, at + 4 * four);
            const __m256i low = bits_at(scales, 0, 15);
            const __m256i high = bits_at(scales, 4, 15);
            for (int i = 0; i < 4; ++i) {
                panel.scale[group + 4 * four + i] = d * byte_as_float(low, i);
                panel.minimum[group + 4 * four + i] = dmin * byte_as_float(high, i);
            }
        }
    }
};

/* Scales and minima of Q4_K and Q5_K, see quant/k_scales.h. */
[[gnu::always_inline]] inline void unpack_k_scales(const Rows &rows, int64_t at, Panel &panel, int group) {
    const __m256i both = gather(rows, at);
    const Vec     d = low_f16(both);
    const Vec     dmin = high_f16(both);
    const __m256i a = gather(rows, at + 4);
    const __m256i b = gather(rows, at + 8);
    const __m256i c = gather(rows, at + 12);
    const __m256i scale_low = bits_at(a, 0, 63);
    const __m256i min_low = bits_at(b, 0, 63);
    const __m256i scale_high = _mm256_or_si256(bits_at(c, 0, 15), bits_at(a, 2, 0x30));
    const __m256i min_high = _mm256_or_si256(bits_at(c, 4, 15), bits_at(b, 2, 0x30));
    for (int i = 0; i < 4; ++i) {
        panel.scale[group + i] = d * byte_as_float(scale_low, i);
        panel.scale[group + 4 + i] = d * byte_as_float(scale_high, i);
        panel.minimum[group + i] = dmin * byte_as_float(min_low, i);
        panel.minimum[group + 4 + i] = dmin * byte_as_float(min_high, i);
    }
}

struct FormatQ4K {
    static constexpr int  kBlock = 256, kGroup = 32, kActivation = 256;
    static constexpr bool kSigned = false, kMinimum = true;
    static constexpr int64_t kBytes = sizeof(quant::BlockQ4K);

    static void unpack(const Rows &rows, int64_t at, Panel &panel, int group) {
        for (int pair = 0; pair < 4; ++pair) {
            __m256i packed[8];
            transpose_32(rows, at + 16 + 32 * pair, packed);
            __m256i *bytes = panel.bytes + (group + 2 * pair) * 8;
            for (int c = 0; c < 8; ++c) {
                bytes[c] = bits_at(packed[c], 0, 15);
                bytes[c + 8] = bits_at(packed[c], 4, 15);
            }
        }
        unpack_k_scales(rows, at, panel, group);
    }
};

struct FormatQ5K {
    static constexpr int  kBlock = 256, kGroup = 32, kActivation = 256;
    static constexpr bool kSigned = false, kMinimum = true;
    static constexpr int64_t kBytes = sizeof(quant::BlockQ5K);

    static void unpack(const Rows &rows, int64_t at, Panel &panel, int group) {
        __m256i high[8];
        transpose_32(rows, at + 16, high);
        for (int pair = 0; pair < 4; ++pair) {
            __m256i packed[8];
            transpose_32(rows, at + 48 + 32 * pair, packed);
            __m256i *bytes = panel.bytes + (group + 2 * pair) * 8;
            for (int c = 0; c < 8; ++c) {
                const __m256i fifth = _mm256_slli_epi32(bits_at(high[c], 2 * pair, 1), 4);
                const __m256i next_fifth = _mm256_slli_epi32(bits_at(high[c], 2 * pair + 1, 1), 4);
                bytes[c] = _mm256_or_si256(bits_at(packed[c], 0, 15), fifth);
                bytes[c + 8] = _mm256_or_si256(bits_at(packed[c], 4, 15), next_fifth);
            }
        }
        unpack_k_scales(rows, at, panel, group);
    }
};

struct FormatQ6K {
    static constexpr int  kBlock = 256, kGroup = 16, kActivation = 256;
    static constexpr bool kSigned = true, kMinimum = false;
    static constexpr int64_t kBytes = sizeof(quant::BlockQ6K);

    static void unpack(const Rows &rows, int64_t at, Panel &panel, int group) {
        for (int half = 0; half < 2; ++half) {
            __m256i low[16];
            __m256i high[8];
            transpose_32(rows, at + 64 * half, low);
            transpose_32(rows, at + 64 * half + 32, low + 8);
            transpose_32(rows, at + 128 + 32 * half, high);
            for (int quarter = 0; quarter < 4; ++quarter) {
                __m256i *bytes = panel.bytes + (group + 8 * half + 2 * quarter) * 4;
                for (int c = 0; c < 8; ++c) {
                    const __m256i four = bits_at(low[8 * (quarter % 2) + c], 4 * (quarter / 2), 15);
                    const __m256i two = _mm256_slli_epi32(bits_at(high[c], 2 * quarter, 3), 4);
                    bytes[c] = _mm256_sub_epi8(_mm256_or_si256(four, two), all_bytes(32));
                }
            }
        }
        const Vec d = low_f16(_mm256_srli_epi32(gather(rows, at + 206), 16));
        for (int four = 0; four < 4; ++four) {
            const __m256i scales = gather(rows, at + 192 + 4 * four);
            for (int i = 0; i < 4; ++i) {
                const __m256i top = _mm256_slli_epi32(scales, 24 - 8 * i);
                panel.scale[group + 4 * four + i] = d * _mm256_cvtepi32_ps(_mm256_srai_epi32(top, 24));
            }
        }
    }
};

struct FormatIq2Xxs {
    static constexpr int  kBlock = 256, kGroup = 32, kActivation = 256;
    static constexpr bool kSigned = true, kMinimum = false;
    static constexpr int64_t kBytes = sizeof(quant::BlockIq2Xxs);

    static void unpack(const Rows &rows, int64_t at, Panel &panel, int group) {
        const quant::Iq2XxsTables &tables = quant::iq2_xxs_tables();
        const auto                *grid = reinterpret_cast<const int *>(tables.grid);
        const auto                *sign = reinterpret_cast<const int *>(tables.sign);
        const Vec                  eighth_of_d = low_f16(gather(rows, at)) * splat(0.125f);
        for (int g = 0; g < 8; ++g) {
            const __m256i indices = gather(rows, at + 2 + 8 * g);
            const __m256i packed = gather(rows, at + 6 + 8 * g);
            __m256i      *bytes = panel.bytes + (group + g) * 8;
            for (int part = 0; part < 4; ++part) {
                const __m256i index = _mm256_and_si256(_mm256_srli_epi32(indices, 8 * part), _mm256_set1_epi32(255));
                const __m256i pattern = _mm256_and_si256(_mm256_srli_epi32(packed, 7 * part), _mm256_set1_epi32(127));
                for (int half = 0; half < 2; ++half) {
                    bytes[2 * part + half] = _mm256_sign_epi8(_mm256_i32gather_epi32(grid + half, index, 8),
                                                              _mm256_i32gather_epi32(sign + half, pattern, 8));
                }
            }
            const __m256i steps = _mm256_srli_epi32(packed, 28);
            panel.scale[group + g] =
                eighth_of_d * _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_add_epi32(steps, steps), _mm256_set1_epi32(1)));
        }
    }
};

typedef int32_t AnyInt32 __attribute__((may_alias, aligned(1)));

/* Sums of `tokens` tokens over the groups of one panel piece that starts at column `first`. */
template <typename Format, int tokens>
[[gnu::always_inline]] inline void multiply_tile(const Panel &panel, int64_t first, int64_t columns,
                                                 const void *const *x, const Offsets &o, Vec *sums) {
    constexpr int kRegisters = Format::kGroup / 4;
    constexpr int kPerScale = Format::kActivation / Format::kGroup;

    const std::byte *token[tokens];
    Vec              total[tokens];
    for (int t = 0; t < tokens; ++t) {
        token[t] = static_cast<const std::byte *>(x[t]);
        total[t] = sums[t];
    }
    const int64_t dsum_at = Format::kGroup == 16 ? o.dsum16 : o.dsum32;
    const int64_t first_group = first / Format::kGroup;
    for (int64_t g = 0; g < columns / Format::kGroup; ++g) {
        const int64_t whole = first_group + g;
        __m256i       dots[tokens];
        for (int t = 0; t < tokens; ++t) {
            dots[t] = _mm256_setzero_si256();
        }
        for (int c = 0; c < kRegisters; ++c) {
            const __m256i weights = panel.bytes[g * kRegisters + c];
            const __m256i even = Format::kSigned ? _mm256_srai_epi16(_mm256_slli_epi16(weights, 8), 8)
                                                 : _mm256_and_si256(weights, _mm256_set1_epi16(255));
            const __m256i odd = Format::kSigned ? _mm256_srai_epi16(weights, 8) : _mm256_srli_epi16(weights, 8);
            const int64_t column = (whole * Format::kGroup + 4 * c) * 2;
            for (int t = 0; t < tokens; ++t) {
                const auto *values = reinterpret_cast<const AnyInt32 *>(token[t] + column);
                dots[t] = _mm256_add_epi32(dots[t], _mm256_madd_epi16(even, _mm256_set1_epi32(values[0])));
                dots[t] = _mm256_add_epi32(dots[t], _mm256_madd_epi16(odd, _mm256_set1_epi32(values[1])));
            }
        }
        const Vec scale = panel.scale[g];
        for (int t = 0; t < tokens; ++t) {
            const float *d = reinterpret_cast<const float *>(token[t] + o.d) + whole / kPerScale;
            total[t] = _mm256_fmadd_ps(scale * splat(*d), _mm256_cvtepi32_ps(dots[t]), total[t]);
            if constexpr (Format::kMinimum) {
                const float *dsum = reinterpret_cast<const float *>(token[t] + dsum_at) + whole;
                total[t] = _mm256_fnmadd_ps(panel.minimum[g], splat(*dsum), total[t]);
            }
        }
    }
    for (int t = 0; t < tokens; ++t) {
        sums[t] = total[t];
    }
}

constexpr int     kTileTokens = 4;
constexpr int64_t kBatchTokens = 256; /* sums kept at a time while the panel is walked through piece by piece */

template <typename Format> void multiply_panels(const MultiplyJob &job) {
    auto         &panel = *reinterpret_cast<Panel *>(job.scratch);
    Vec          *sums = reinterpret_cast<Vec *>(job.scratch + sizeof(Panel));
    const Offsets o = offsets_of(job.columns, Format::kActivation);
    for (int64_t row = 0; row < job.rows; row += kPanelRows) {
        const int64_t count = smaller(kPanelRows, job.rows - row);
        const Rows    rows = point_at(job.weights + row * job.row_bytes, job.row_bytes, count);
        for (int64_t start = 0; start < job.tokens; start += kBatchTokens) {
            const int64_t tokens = smaller(kBatchTokens, job.tokens - start);
            for (int64_t t = 0; t < tokens; ++t) {
                sums[t] = zero();
            }
            for (int64_t first = 0; first < job.columns; first += kChunk) {
                const int64_t columns = smaller(kChunk, job.columns - first);
                if (start == 0 || job.columns > kChunk) { /* a short row is still there for the next tokens */
                    for (int64_t c = 0; c < columns; c += Format::kBlock) {
                        Format::unpack(rows, (first + c) / Format::kBlock * Format::kBytes, panel,
                                       static_cast<int>(c / Format::kGroup));
                    }
                }
                int64_t t = 0;
                for (; t + kTileTokens <= tokens; t += kTileTokens) {
                    multiply_tile<Format, kTileTokens>(panel, first, columns, job.x + start + t, o, sums + t);
                }
                for (; t < tokens; ++t) {
                    multiply_tile<Format, 1>(panel, first, columns, job.x + start + t, o, sums + t);
                }
            }
            const __m256i lanes = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)),
                                                     _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
            for (int64_t t = 0; t < tokens; ++t) {
                _mm256_maskstore_ps(job.y[start + t] + job.y_offset + row, lanes, sums[t]);
            }
        }
    }
}

static_assert(sizeof(Panel) + kBatchTokens * sizeof(Vec) <= kPanelScratchBytes);

} // namespace

size_t bytes_32(int64_t columns) {
    return whole_lines(offsets_of(columns, 32).end);
}

size_t bytes_256(int64_t columns) {
    return whole_lines(offsets_of(columns, 256).end);
}

void quantise_32(const float *x, int64_t columns, std::byte *out) {
    const Offsets o = offsets_of(columns, 32);
    auto         *q = reinterpret_cast<int16_t *>(out);
    auto         *d = reinterpret_cast<float *>(out + o.d);
    for (int64_t b = 0; b < columns / 32; ++b, x += 32, q += 32) {
        Vec highest = zero();
        int broken = 0;
        for (int i = 0; i < 32; i += kLanes) {
            const Vec magnitude = magnitude_of(load(x + i));
            highest = _mm256_max_ps(highest, magnitude);
            broken |= not_finite(magnitude);
        }
        const float scale = broken != 0 ? __builtin_nanf("") : peak(highest) / 127.0f;
        d[b] = scale;
        if (!(scale > 0.0f)) {
            __builtin_memset(q, 0, 32 * sizeof(int16_t));
            continue;
        }
        const float inverse = 1.0f / scale;
        const Vec   factor = splat(inverse < __FLT_MAX__ ? inverse : __FLT_MAX__);
        to_words(x, factor, q);
        to_words(x + 16, factor, q + 16);
    }
}

void quantise_256(const float *x, int64_t columns, std::byte *out) {
    const Offsets o = offsets_of(columns, 256);
    auto         *q = reinterpret_cast<int16_t *>(out);
    auto         *d = reinterpret_cast<float *>(out + o.d);
    auto         *dsum32 = reinterpret_cast<float *>(out + o.dsum32);
    auto         *dsum16 = reinterpret_cast<float *>(out + o.dsum16);
    for (int64_t b = 0; b < columns / 256; ++b, x += 256, q += 256) {
        Vec highest = zero();
        int broken = 0;
        for (int i = 0; i < 256; i += kLanes) {
            const Vec magnitude = magnitude_of(load(x + i));
            highest = _mm256_max_ps(highest, magnitude);
            broken |= not_finite(magnitude);
        }
        const float top = peak(highest);
        if (broken != 0 || !(top > 0.0f)) {
            const float scale = broken != 0 ? __builtin_nanf("") : 0.0f;
            __builtin_memset(q, 0, 256 * sizeof(int16_t));
            d[b] = scale;
            for (int i = 0; i < 16; ++i) {
                dsum16[b * 16 + i] = scale;
                dsum32[b * 8 + i / 2] = scale;
            }
            continue;
        }
        float extreme = top;
        for (int i = 0; i < 256; i += kLanes) {
            const Vec values = load(x + i);
            const int found = _mm256_movemask_ps(_mm256_cmp_ps(magnitude_of(values), splat(top), _CMP_EQ_OQ));
            if (found != 0) {
                extreme = x[i + __builtin_ctz(static_cast<unsigned>(found))];
                break;
            }
        }
        float inverse = -127.0f / extreme;
        inverse = inverse > __FLT_MAX__ ? __FLT_MAX__ : inverse < -__FLT_MAX__ ? -__FLT_MAX__ : inverse;
        const float scale = 1.0f / inverse;
        d[b] = scale;
        int32_t before = 0;
        for (int i = 0; i < 16; ++i) {
            const int32_t total = to_words(x + 16 * i, splat(inverse), q + 16 * i);
            dsum16[b * 16 + i] = scale * static_cast<float>(total);
            if (i % 2 == 1) {
                dsum32[b * 8 + i / 2] = scale * static_cast<float>(before + total);
            }
            before = total;
        }
    }
}

void multiply_32(const MultiplyJob &job) {
    if (job.type == quant::Type::q8_0) {
        multiply_panels<FormatQ8_0>(job);
    } else {
        multiply_panels<FormatMxfp4>(job);
    }
}

void multiply_256(const MultiplyJob &job) {
    switch (job.type) {
    case quant::Type::q2_k: multiply_panels<FormatQ2K>(job); return;
    case quant::Type::q4_k: multiply_panels<FormatQ4K>(job); return;
    case quant::Type::q5_k: multiply_panels<FormatQ5K>(job); return;
    case quant::Type::q6_k: multiply_panels<FormatQ6K>(job); return;
    case quant::Type::iq2_xxs: multiply_panels<FormatIq2Xxs>(job); return;
    default: return;
    }
}

} // namespace ds4::backend::cpu::avx2

#endif
