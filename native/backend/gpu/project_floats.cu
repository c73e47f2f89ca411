/* y = W x for many tokens with float32 activations: matrices of floats, and with exact arithmetic all. Blocks that follow
 * each other share rows of weights. */
#include "backend/gpu/project.h"

#include "backend/gpu/float_tiles.h"

namespace ds4::backend::gpu {

namespace {

/* Wide: as many elements for a thread as its registers hold, because shared memory gives a multiprocessor little more than
 * it can multiply. Two blocks of a multiprocessor hide each other's waits. Narrow: for batches and matrices that have not as
 * many wide tiles as that. */
using Wide = FloatShape<64, 128, 8, 8, 16, 8, 2>;
using Narrow = FloatShape<32, 64, 4, 4, 16, 8, 4>;

template <Format format, typename Shape>
DS4_KERNEL __launch_bounds__(Shape::kThreads, Shape::kBlocks) project_float_tiles(Parts parts, int64_t token_count) {
    using Tile = FloatTile<format, Shape>;
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

/* Gives each part its blocks; how many there are. */
template <typename Shape> int64_t share_blocks(Parts &parts, int64_t tokens) {
    int64_t blocks = 0;
    for (int i = 0; i < parts.count; ++i) {
        parts.part[i].first_block = static_cast<int32_t>(blocks);
        blocks += (parts.part[i].rows + Shape::kRows - 1) / Shape::kRows * ((tokens + Shape::kTokens - 1) / Shape::kTokens);
    }
    return blocks;
}

template <Format format, typename Shape> void start_tiles(const Stream &stream, Parts parts, int64_t tokens) {
    const int64_t blocks = share_blocks<Shape>(parts, tokens);
    launch(stream, project_float_tiles<format, Shape>, {static_cast<unsigned>(blocks)}, Shape::kThreads,
           FloatTile<format, Shape>::kSharedBytes, parts, tokens);
}

template <Format format> void start(const Stream &stream, const CardFacts &card, Parts parts, int64_t tokens) {
    const int64_t full = Wide::kBlocks * static_cast<int64_t>(card.multiprocessors);
    if (tokens <= Narrow::kTokens || share_blocks<Wide>(parts, tokens) < full) {
        start_tiles<format, Narrow>(stream, parts, tokens);
    } else {
        start_tiles<format, Wide>(stream, parts, tokens);
    }
}

} // namespace

void project_floats(const Stream &stream, const CardFacts &card, Parts parts, int64_t tokens) {
    switch (parts.part[0].format) {
    case Format::f32: start<Format::f32>(stream, card, parts, tokens); return;
    case Format::f16: start<Format::f16>(stream, card, parts, tokens); return;
    case Format::bf16: start<Format::bf16>(stream, card, parts, tokens); return;
    case Format::q8_0: start<Format::q8_0>(stream, card, parts, tokens); return;
    case Format::q8_0_arranged: start<Format::q8_0_arranged>(stream, card, parts, tokens); return;
    case Format::mxfp4: start<Format::mxfp4>(stream, card, parts, tokens); return;
    case Format::q2_k: start<Format::q2_k>(stream, card, parts, tokens); return;
    case Format::q4_k: start<Format::q4_k>(stream, card, parts, tokens); return;
    case Format::q5_k: start<Format::q5_k>(stream, card, parts, tokens); return;
    case Format::q6_k: start<Format::q6_k>(stream, card, parts, tokens); return;
    case Format::iq2_xxs: start<Format::iq2_xxs>(stream, card, parts, tokens); return;
    }
}

} // namespace ds4::backend::gpu
