/* y = W x for some tens of tokens with matrices of floats, which have too few tiles for the whole card then. A block has 32
 * rows and 8 tokens: each group of lanes 4 of the rows, and each lane one chain of their sums, with the inputs in shared
 * memory. */
#include "backend/gpu/project.h"

namespace ds4::backend::gpu {

namespace {

constexpr int kThreads = 256;
constexpr int kGroups = kThreads / kLanes;
constexpr int kGroupRows = 4;
constexpr int kRows = kGroups * kGroupRows;
constexpr int kTokens = 8;
constexpr int kStep = 32 * kLanes; /* values of a row: a unit for every lane */
constexpr int kPadded = 36;        /* floats of a unit in shared memory: lanes with neighbouring units meet different banks */
constexpr int kRoom = kGroupRows * kTokens * (kLanes + 1); /* of a group, for the chains of its sums */
static_assert(kStep == 4 * kThreads && kGroupRows * kTokens == kLanes);
static_assert(kGroups * kRoom <= kTokens * kLanes * kPadded);

/* Of 8 tokens, a unit for every lane; in the end the chains of the sums. */
struct Inputs8 {
    alignas(16) float values[kTokens * kLanes * kPadded];
};

/* Values `first` .. + kStep of each token's row; 0 beyond the end. x: [kTokens][kLanes][kPadded] */
DS4_DEVICE void take_inputs(const Part &part, int64_t columns, int64_t first_token, int count, int64_t first, float *x) {
    const int     quad = static_cast<int>(threadIdx.x);
    const int64_t column = first + 4 * quad;
    float4        v[kTokens];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
        const float *from = part.x + (first_token + (t < count ? t : count - 1)) * part.x_stride + column;
        if (column + 4 <= columns && (reinterpret_cast<uintptr_t>(from) & 15u) == 0) {
            v[t] = load_floats4(from);
        } else {
            v[t].x = column < columns ? from[0] : 0.0f;
            v[t].y = column + 1 < columns ? from[1] : 0.0f;
            v[t].z = column + 2 < columns ? from[2] : 0.0f;
            v[t].w = column + 3 < columns ? from[3] : 0.0f;
        }
    }
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
        *reinterpret_cast<float4 *>(x + (t * kLanes + quad / 8) * kPadded + quad % 8 * 4) = v[t];
    }
}

template <Format format>
DS4_KERNEL __launch_bounds__(kThreads, 2) project_thin_float_rows(Parts parts, int64_t token_count) {
    constexpr int kCount = format == Format::f32 ? 8 : 16; /* values of each row in registers */
    __shared__ Inputs8 inputs;
    float *const x = inputs.values;
    wait_for_inputs();
    let_next_start();
    const Part   &part = parts.part[part_of_block(parts)];
    const int64_t token_tiles = (token_count + kTokens - 1) / kTokens;
    const int64_t block = static_cast<int64_t>(blockIdx.x) - part.first_block;
    const int64_t first_token = block % token_tiles * kTokens;
    const int64_t first_row = block / token_tiles * kRows + group() * kGroupRows;
    const int     count = static_cast<int>(token_count - first_token < kTokens ? token_count - first_token : kTokens);

    const std::byte *rows[kGroupRows];
#pragma unroll
    for (int r = 0; r < kGroupRows; ++r) {
        rows[r] = part.data + (first_row + r < part.rows ? first_row + r : part.rows - 1) * part.row_bytes;
    }
    float acc[kGroupRows][kTokens] = {};
    for (int64_t first = 0; first < parts.columns; first += kStep) {
        if (first != 0) {
            sync_block();
        }
        take_inputs(part, parts.columns, first_token, count, first, x);
        sync_block();
        const int64_t unit = first / 32 + lane();
        if (32 * unit >= parts.columns) {
            continue;
        }
#pragma unroll
        for (int done = 0; done < 32; done += kCount) {
            PlainFloats<format, kCount> weights[kGroupRows];
#pragma unroll
            for (int r = 0; r < kGroupRows; ++r) {
                weights[r] = load_plain<format, kCount>(rows[r], parts.columns, unit * (32 / kCount) + done / kCount);
            }
#pragma unroll
            for (int i = 0; i < kCount; i += 4) {
#pragma unroll
                for (int t = 0; t < kTokens; ++t) {
                    const float4 four = load_floats4(x + (t * kLanes + lane()) * kPadded + done + i);
#pragma unroll
                    for (int r = 0; r < kGroupRows; ++r) {
                        acc[r][t] = fmaf(weights[r].value(i), four.x, acc[r][t]);
                        acc[r][t] = fmaf(weights[r].value(i + 1), four.y, acc[r][t]);
                        acc[r][t] = fmaf(weights[r].value(i + 2), four.z, acc[r][t]);
                        acc[r][t] = fmaf(weights[r].value(i + 3), four.w, acc[r][t]);
                    }
                }
            }
        }
    }

    sync_block();
    float *const room = x + group() * kRoom;
#pragma unroll
    for (int r = 0; r < kGroupRows; ++r) {
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
            room[(r * kTokens + t) * (kLanes + 1) + lane()] = acc[r][t];
        }
    }
    sync_group();
    float total = 0.0f;
    for (int c = 0; c < chains(Inputs::floats); ++c) {
        total += room[lane() * (kLanes + 1) + c];
    }
    const int64_t row = first_row + lane() / kTokens;
    const int     token = lane() % kTokens;
    if (row < part.rows && token < count) {
        part.out[(first_token + token) * part.out_stride + row] = total;
    }
}

template <Format format> void start(const Stream &stream, Parts parts, int64_t tokens) {
    int64_t blocks = 0;
    for (int i = 0; i < parts.count; ++i) {
        parts.part[i].first_block = static_cast<int32_t>(blocks);
        blocks += (parts.part[i].rows + kRows - 1) / kRows * ((tokens + kTokens - 1) / kTokens);
    }
    launch(stream, project_thin_float_rows<format>, {static_cast<unsigned>(blocks)}, kThreads, 0, parts, tokens);
}

} // namespace

bool project_thin_floats(const Stream &stream, const Parts &parts, int64_t tokens) {
    if (tokens > kThinTokens) {
        return false;
    }
    switch (parts.part[0].format) {
    case Format::f32: start<Format::f32>(stream, parts, tokens); return true;
    case Format::f16: start<Format::f16>(stream, parts, tokens); return true;
    case Format::bf16: start<Format::bf16>(stream, parts, tokens); return true;
    default: return false;
    }
}

} // namespace ds4::backend::gpu
