/* y = W x for many tokens with activations in 8 bits. Blocks that follow each other share rows of weights, which then come
 * from the device's memory once. */
#include "backend/gpu/project.h"

#include "backend/gpu/thin_tile.h"
#include "backend/gpu/tiles.h"
#include "failure.h"

namespace ds4::backend::gpu {

namespace {

template <Format format, int tokens>
DS4_KERNEL __launch_bounds__(kTileThreads, 2) project_byte_tiles(Parts parts, Activations x, int64_t token_count, int stages) {
    using Tile = ByteTile<format, tokens>;
    DS4_SHARED(std::byte, shared);
    wait_for_inputs();
    let_next_start();
    const Part   &part = parts.part[part_of_block(parts)];
    const int64_t token_tiles = (token_count + tokens - 1) / tokens;
    const int64_t block = static_cast<int64_t>(blockIdx.x) - part.first_block;
    const int64_t first_token = block % token_tiles * tokens;
    const int64_t left = token_count - first_token;
    float *const  out = part.out + first_token * part.out_stride;
    const int64_t stride = part.out_stride;
    Tile::run(
        {part.data, part.row_bytes, part.rows}, block / token_tiles * Tile::kRows, x,
        static_cast<int>(left < tokens ? left : tokens), stages, shared,
        [&](int token) { return part.input_row + (first_token + token) * part.input_stride; },
        [=](int64_t row, int token, float value) { out[token * stride + row] = value; });
}

template <int token_tiles>
DS4_KERNEL __launch_bounds__(kTileThreads, 2) project_thin_tiles(Parts parts, Activations x, int64_t token_count) {
    using Tile = ThinTile<token_tiles>;
    DS4_SHARED(std::byte, shared);
    wait_for_inputs();
    let_next_start();
    const Part   &part = parts.part[part_of_block(parts)];
    const int64_t token_tile_count = (token_count + Tile::kTokens - 1) / Tile::kTokens;
    const int64_t block = static_cast<int64_t>(blockIdx.x) - part.first_block;
    const int64_t first_token = block % token_tile_count * Tile::kTokens;
    const int64_t left = token_count - first_token;
    float *const  out = part.out + first_token * part.out_stride;
    const int64_t stride = part.out_stride;
    Tile::run(
        {part.data, part.row_bytes, part.rows}, block / token_tile_count * Tile::kRows, x,
        static_cast<int>(left < Tile::kTokens ? left : Tile::kTokens), shared,
        [&](int token) { return part.input_row + (first_token + token) * part.input_stride; },
        [=](int64_t row, int token, float value) { out[token * stride + row] = value; });
}

int64_t tiles_of(int64_t count, int64_t tile) { return (count + tile - 1) / tile; }

template <Format format, int tokens>
void start(const Stream &stream, const CardFacts &card, Parts parts, int64_t token_count, const Activations &x) {
    using Tile = ByteTile<format, tokens>;
    int64_t blocks = 0;
    for (int i = 0; i < parts.count; ++i) {
        parts.part[i].first_block = static_cast<int32_t>(blocks);
        blocks += tiles_of(parts.part[i].rows, Tile::kRows) * tiles_of(token_count, tokens);
    }
    const int stages = Tile::stages_in(shared_bytes_of_two(card));
    launch(stream, project_byte_tiles<format, tokens>, {static_cast<unsigned>(blocks)}, kTileThreads,
           Tile::shared_bytes(stages), parts, x, token_count, stages);
}

template <int token_tiles>
void start_thin(const Stream &stream, Parts parts, int64_t token_count, const Activations &x) {
    using Tile = ThinTile<token_tiles>;
    int64_t blocks = 0;
    for (int i = 0; i < parts.count; ++i) {
        parts.part[i].first_block = static_cast<int32_t>(blocks);
        blocks += tiles_of(parts.part[i].rows, Tile::kRows) * tiles_of(token_count, Tile::kTokens);
    }
    launch(stream, project_thin_tiles<token_tiles>, {static_cast<unsigned>(blocks)}, kTileThreads, Tile::kSharedBytes, parts,
           x, token_count);
}

/* Wide tiles need less memory traffic, but there have to be enough of them for the whole card. */
template <Format format>
void start_small(const Stream &stream, const CardFacts &card, const Parts &parts, int64_t tokens, const Activations &x) {
    int64_t wide = 0;
    for (int i = 0; i < parts.count; ++i) {
        wide += tiles_of(parts.part[i].rows, ByteTile<format, 128>::kRows) * tiles_of(tokens, 128);
    }
    if constexpr (format == Format::q8_0_arranged) {
        if (tokens <= kThinTokens) {
            if (tokens <= ThinTile<2>::kTokens) {
                start_thin<2>(stream, parts, tokens, x);
            } else {
                start_thin<4>(stream, parts, tokens, x);
            }
            return;
        }
    }
    if (tokens <= 64 || wide < card.multiprocessors) {
        start<format, 64>(stream, card, parts, tokens, x);
    } else {
        start<format, 128>(stream, card, parts, tokens, x);
    }
}

} // namespace

void project_bytes(const Stream &stream, const CardFacts &card, Parts parts, int64_t tokens, const Activations &x) {
    switch (parts.part[0].format) {
    case Format::q8_0: start_small<Format::q8_0>(stream, card, parts, tokens, x); return;
    case Format::q8_0_arranged: start_small<Format::q8_0_arranged>(stream, card, parts, tokens, x); return;
    case Format::mxfp4: start_small<Format::mxfp4>(stream, card, parts, tokens, x); return;
    case Format::q2_k: start<Format::q2_k, 64>(stream, card, parts, tokens, x); return;
    case Format::q4_k: start<Format::q4_k, 64>(stream, card, parts, tokens, x); return;
    case Format::q5_k: start<Format::q5_k, 64>(stream, card, parts, tokens, x); return;
    case Format::q6_k: start<Format::q6_k, 64>(stream, card, parts, tokens, x); return;
    case Format::iq2_xxs: start<Format::iq2_xxs, 64>(stream, card, parts, tokens, x); return;
    default: throw Failure(DS4_E_INTERNAL, "a matrix of floats came to project_bytes");
    }
}

} // namespace ds4::backend::gpu
