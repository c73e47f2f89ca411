/* Kernels for any processor: four lanes in the compiler's own vector type, and integer products one by one. */
#include "backend/cpu/kernels.h"

#include "quant/activation.h"
#include "quant/dequantise.h"
#include "quant/half.h"
#include "quant/iq2_xxs_grid.h"
#include "quant/k_scales.h"
#include "quant/mxfp4.h"

#include "include/ds4.h"

namespace ds4::backend::cpu {

namespace {

typedef float   Vec __attribute__((vector_size(16)));
typedef int32_t IntVec __attribute__((vector_size(16)));

constexpr int kLanes = 4;
constexpr int kDotRows = 2;
constexpr int kDotTokens = 2;
constexpr int kManyHeads = 2;
constexpr int kFewHeads = 1;
constexpr int kMixVectors = 4;

Vec zero() {
    return Vec{};
}

Vec splat(float x) {
    return Vec{x, x, x, x};
}

Vec load(const float *p) {
    return Vec{p[0], p[1], p[2], p[3]};
}

void store(float *p, Vec v) {
    for (int i = 0; i < kLanes; ++i) {
        p[i] = v[i];
    }
}

Vec load_part(const float *p, int n) {
    Vec v{};
    for (int i = 0; i < n; ++i) {
        v[i] = p[i];
    }
    return v;
}

void store_part(float *p, Vec v, int n) {
    for (int i = 0; i < n; ++i) {
        p[i] = v[i];
    }
}

Vec load_f16(const uint16_t *p) {
    return Vec{quant::f16_to_f32(p[0]), quant::f16_to_f32(p[1]), quant::f16_to_f32(p[2]), quant::f16_to_f32(p[3])};
}

Vec load_bf16(const uint16_t *p) {
    return Vec{quant::bf16_to_f32(p[0]), quant::bf16_to_f32(p[1]), quant::bf16_to_f32(p[2]), quant::bf16_to_f32(p[3])};
}

Vec multiply_add(Vec a, Vec b, Vec c) {
    return a * b + c;
}

Vec at_least(Vec v, Vec low) {
    return v < low ? low : v;
}

Vec at_most(Vec v, Vec high) {
    return v > high ? high : v;
}

Vec largest(Vec a, Vec b) {
    return a > b ? a : b;
}

Vec round_to_integer(Vec v) {
    const Vec magic = splat(12582912.0f);
    return v + magic - magic;
}

Vec times_power_of_two(Vec v, Vec n) {
    const IntVec exponent = __builtin_convertvector(n, IntVec) + 127;
    return v * reinterpret_cast<Vec>(exponent << 23);
}

Vec zero_below(Vec x, Vec low, Vec v) {
    return x < low ? zero() : v;
}

float sum(Vec v) {
    return (v[0] + v[2]) + (v[1] + v[3]);
}

float peak(Vec v) {
    float highest = v[0];
    for (int i = 1; i < kLanes; ++i) {
        highest = v[i] > highest ? v[i] : highest;
    }
    return highest;
}

template <int count> void sum_many(const Vec *vectors, float *out) {
    for (int i = 0; i < count; ++i) {
        out[i] = sum(vectors[i]);
    }
}

#include "backend/cpu/lane_kernels.inc"

/* ---- quantised weights with 8-bit activations -------------------------------------------------------------------- */

int32_t dot_bytes(const int8_t *a, const int8_t *b, int count) {
    int32_t total = 0;
    for (int i = 0; i < count; ++i) {
        total += a[i] * b[i];
    }
    return total;
}

float dot_q8_0(const quant::BlockQ8_0 &w, const quant::Q8Block32 &x) {
    return quant::f16_to_f32(w.d) * x.d * static_cast<float>(dot_bytes(w.q, x.q, 32));
}

float dot_mxfp4(const quant::BlockMxfp4 &w, const quant::Q8Block32 &x) {
    int32_t total = 0;
    for (int i = 0; i < 16; ++i) {
        total += quant::kMxfp4Doubled[w.q[i] & 15] * x.q[i] + quant::kMxfp4Doubled[w.q[i] >> 4] * x.q[i + 16];
    }
    return quant::mxfp4_half_scale(w.exponent) * x.d * static_cast<float>(total);
}

float dot_q2_k(const quant::BlockQ2K &w, const quant::Q8Block256 &x) {
    int32_t total = 0;
    int32_t minima = 0;
    for (int group = 0; group < 16; ++group) {
        const int shift = 2 * (group % 8 / 2);
        const int first = 32 * (group / 8) + 16 * (group % 2);
        int32_t   dot = 0;
        for (int i = 0; i < 16; ++i) {
            dot += ((w.q[first + i] >> shift) & 3) * x.q[16 * group + i];
        }
        total += (w.scales[group] & 15) * dot;
        minima += (w.scales[group] >> 4) * x.sums[group];
    }
    return quant::f16_to_f32(w.d) * x.d * static_cast<float>(total) -
           quant::f16_to_f32(w.dmin) * x.d * static_cast<float>(minima);
}

/* Q4_K, and with `high` Q5_K. */
float dot_q45_k(uint16_t d, uint16_t dmin, const uint8_t *scales, const uint8_t *q, const uint8_t *high,
                const quant::Q8Block256 &x) {
    int32_t total = 0;
    int32_t minima = 0;
    for (int group = 0; group < 8; ++group) {
        const quant::ScaleAndMin packed = quant::unpack_k_scale(scales, group);
        int32_t                  dot = 0;
        for (int i = 0; i < 32; ++i) {
            int value = (q[32 * (group / 2) + i] >> (4 * (group % 2))) & 15;
            if (high != nullptr) {
                value += 16 * (high[i] >> group & 1);
            }
            dot += value * x.q[32 * group + i];
        }
        total += packed.scale * dot;
        minima += packed.min * (x.sums[2 * group] + x.sums[2 * group + 1]);
    }
    return quant::f16_to_f32(d) * x.d * static_cast<float>(total) -
           quant::f16_to_f32(dmin) * x.d * static_cast<float>(minima);
}

float dot_q6_k(const quant::BlockQ6K &w, const quant::Q8Block256 &x) {
    int32_t total = 0;
    for (int half = 0; half < 2; ++half) {
        for (int quarter = 0; quarter < 4; ++quarter) {
            for (int part = 0; part < 2; ++part) {
                int32_t dot = 0;
                for (int i = 16 * part; i < 16 * part + 16; ++i) {
                    const int low = w.low[64 * half + 32 * (quarter % 2) + i] >> (4 * (quarter / 2)) & 15;
                    const int upper = w.high[32 * half + i] >> (2 * quarter) & 3;
                    dot += ((low | upper << 4) - 32) * x.q[128 * half + 32 * quarter + i];
                }
                total += w.scales[8 * half + 2 * quarter + part] * dot;
            }
        }
    }
    return quant::f16_to_f32(w.d) * x.d * static_cast<float>(total);
}

float dot_iq2_xxs(const quant::BlockIq2Xxs &w, const quant::Q8Block256 &x) {
    const quant::Iq2XxsTables &tables = quant::iq2_xxs_tables();
    int32_t                    total = 0;
    for (int group = 0; group < 8; ++group) {
        const uint16_t *packed = w.q + 4 * group;
        const uint32_t  indices = packed[0] | static_cast<uint32_t>(packed[1]) << 16;
        const uint32_t  signs = packed[2] | static_cast<uint32_t>(packed[3]) << 16;
        int32_t         dot = 0;
        for (int part = 0; part < 4; ++part) {
            const uint8_t *grid = tables.grid[indices >> (8 * part) & 255];
            const int8_t  *sign = tables.sign[signs >> (7 * part) & 127];
            for (int i = 0; i < 8; ++i) {
                dot += grid[i] * sign[i] * x.q[32 * group + 8 * part + i];
            }
        }
        total += static_cast<int32_t>(2 * (signs >> 28) + 1) * dot;
    }
    return 0.125f * quant::f16_to_f32(w.d) * x.d * static_cast<float>(total);
}

/* One sum per row and token, block after block. */
template <typename Weight, typename Activation, typename Dot>
void multiply_blocks(const MultiplyJob &job, int64_t blocks, Dot dot) {
    for (int64_t row = 0; row < job.rows; ++row) {
        const auto *weights = reinterpret_cast<const Weight *>(job.weights + row * job.row_bytes);
        for (int64_t t = 0; t < job.tokens; ++t) {
            const auto *x = static_cast<const Activation *>(job.x[t]);
            float       total = 0.0f;
            for (int64_t b = 0; b < blocks; ++b) {
                total += dot(weights[b], x[b]);
            }
            job.y[t][job.y_offset + row] = total;
        }
    }
}

void multiply_32(const MultiplyJob &job) {
    using quant::Q8Block32;
    const int64_t blocks = job.columns / 32;
    if (job.type == quant::Type::q8_0) {
        multiply_blocks<quant::BlockQ8_0, Q8Block32>(job, blocks, dot_q8_0);
    } else {
        multiply_blocks<quant::BlockMxfp4, Q8Block32>(job, blocks, dot_mxfp4);
    }
}

void multiply_256(const MultiplyJob &job) {
    using quant::Q8Block256;
    const int64_t blocks = job.columns / 256;
    switch (job.type) {
    case quant::Type::q2_k: multiply_blocks<quant::BlockQ2K, Q8Block256>(job, blocks, dot_q2_k); return;
    case quant::Type::q6_k: multiply_blocks<quant::BlockQ6K, Q8Block256>(job, blocks, dot_q6_k); return;
    case quant::Type::iq2_xxs: multiply_blocks<quant::BlockIq2Xxs, Q8Block256>(job, blocks, dot_iq2_xxs); return;
    case quant::Type::q4_k:
        multiply_blocks<quant::BlockQ4K, Q8Block256>(job, blocks, [](const auto &w, const Q8Block256 &x) {
            return dot_q45_k(w.d, w.dmin, w.scales, w.q, nullptr, x);
        });
        return;
    case quant::Type::q5_k:
        multiply_blocks<quant::BlockQ5K, Q8Block256>(job, blocks, [](const auto &w, const Q8Block256 &x) {
            return dot_q45_k(w.d, w.dmin, w.scales, w.q, w.high, x);
        });
        return;
    default: return;
    }
}

size_t multiply_scratch_bytes(int64_t columns) {
    return float_scratch_bytes(columns);
}

size_t bytes_32(int64_t columns) {
    return (static_cast<size_t>(columns / 32) * sizeof(quant::Q8Block32) + 63) / 64 * 64;
}

size_t bytes_256(int64_t columns) {
    return (static_cast<size_t>(columns / 256) * sizeof(quant::Q8Block256) + 63) / 64 * 64;
}

void quantise_32(const float *x, int64_t columns, std::byte *out) {
    quant::quantise_q8_32(x, columns, reinterpret_cast<quant::Q8Block32 *>(out));
}

void quantise_256(const float *x, int64_t columns, std::byte *out) {
    quant::quantise_q8_256(x, columns, reinterpret_cast<quant::Q8Block256 *>(out));
}

constexpr uint32_t kInstructionSet = DS4_ISA_PLAIN;
constexpr int64_t  kPanelRows = 8;

#include "backend/cpu/kernel_table.inc"

} // namespace

const Kernels &plain_kernels() {
    return kTable;
}

} // namespace ds4::backend::cpu
