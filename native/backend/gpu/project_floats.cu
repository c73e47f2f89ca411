/* y = W x for many tokens with float32 activations: matrices of floats, and with exact arithmetic all. */
#include "backend/gpu/project.h"

#include "backend/gpu/float_tiles.h"

namespace ds4::backend::gpu {

namespace {

template <Format format>
DS4_KERNEL __launch_bounds__(kTileThreads, 2) project_float_tiles(Parts parts, int64_t token_count) {
    using Tile = FloatTile<format>;
    DS4_SHARED(std::byte, shared);
    wait_for_inputs();
    let_next_start();
    const Part   &part = parts.part[part_of_block(parts)];
    const int64_t token_tiles = (token_count + Tile::kTokens - 1) / Tile::kTokens;
    const int64_t block = static_cast<int64_t>(blockIdx.x) - part.first_block;
    const int64_t first_token = block % token_tiles * Tile::kTokens;
    const int64_t left = token_count - first_token;
    const float  *x = part.x + first_token * part.x_stride;
    float *const  out = part.out + first_token * part.out_stride;
    const int64_t x_stride = part.x_stride, out_stride = part.out_stride;
    Tile::run({part.data, part.row_bytes, part.rows}, parts.columns, block / token_tiles * Tile::kRows,
              static_cast<int>(left < Tile::kTokens ? left : Tile::kTokens), shared,
              [=](int token) { return x + token * x_stride; },
              [=](int64_t row, int token, float value) { out[token * out_stride + row] = value; });
}

template <Format format> void start(const Stream &stream, Parts parts, int64_t tokens) {
    using Tile = FloatTile<format>;
    int64_t blocks = 0;
    for (int i = 0; i < parts.count; ++i) {
        parts.part[i].first_block = static_cast<int32_t>(blocks);
        blocks += (parts.part[i].rows + Tile::kRows - 1) / Tile::kRows * ((tokens + Tile::kTokens - 1) / Tile::kTokens);
    }
    launch(stream, project_float_tiles<format>, {static_cast<unsigned>(blocks)}, kTileThreads, Tile::kSharedBytes, parts,
           tokens);
}

} // namespace

void project_floats(const Stream &stream, Parts parts, int64_t tokens) {
    switch (parts.part[0].format) {
    case Format::f32: start<Format::f32>(stream, parts, tokens); return;
    case Format::f16: start<Format::f16>(stream, parts, tokens); return;
    case Format::bf16: start<Format::bf16>(stream, parts, tokens); return;
    case Format::q8_0: start<Format::q8_0>(stream, parts, tokens); return;
    case Format::q8_0_arranged: start<Format::q8_0_arranged>(stream, parts, tokens); return;
    case Format::mxfp4: start<Format::mxfp4>(stream, parts, tokens); return;
    case Format::q2_k: start<Format::q2_k>(stream, parts, tokens); return;
    case Format::q4_k: start<Format::q4_k>(stream, parts, tokens); return;
    case Format::q5_k: start<Format::q5_k>(stream, parts, tokens); return;
    case Format::q6_k: start<Format::q6_k>(stream, parts, tokens); return;
    case Format::iq2_xxs: start<Format::iq2_xxs>(stream, parts, tokens); return;
    }
}

} // namespace ds4::backend::gpu
