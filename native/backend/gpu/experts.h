/* What the kernels of the feed-forward part have in common: one file for few tokens (experts_one.cu), one for many
 * (experts_batch.cu), and experts.cu, which chooses.
 *
 * A choice is one expert of one token and has the number token * used + place. The shared expert of token t is the choice
 * tokens * used + t, with weight 1. */
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/gpu/gpu_device.h"
#include "backend/gpu/products.h"
#include "backend/ops.h"

namespace ds4::backend::gpu {

/* weight * silu(min(gate, clamp)) * clip(up, -clamp, clamp); what is not a number passes. */
DS4_DEVICE float gated(float gate, float up, float clamp, float weight) {
    const float g = gate > clamp ? clamp : gate;
    const float raised = up < -clamp ? -clamp : up;
    const float u = raised > clamp ? clamp : raised;
    return g / (1.0f + expf(-g)) * u * weight;
}

/* Rows that a product takes: in 8 bits or, with Inputs::floats, as they are. */
struct ProductInputs {
    Activations  bytes;
    const float *floats; /* [rows, columns] */
};

/* A matrix whose rows lie back to back. */
struct Rows {
    const std::byte *data;
    int64_t          row_bytes;
    Format           format;
};

/* The feed-forward part as kernels see it. Of a routed expert's matrices `data` is in the table. */
struct FeedForward {
    const ExpertAddress *table;   /* [experts] */
    const int32_t       *ids;     /* [routed] */
    const float         *weights; /* [routed] */
    int32_t              tokens, used;
    int32_t              routed;  /* choices of routed experts: tokens * used */
    int32_t              shared;  /* choices of the shared expert: tokens or 0 */
    int32_t              experts;
    int32_t              width, inner;
    Rows                 gate_up, down;
    Rows                 shared_gate, shared_up, shared_down;
    float                clamp, shared_clamp;
    const float         *x_values;                 /* [tokens, width] */
    ProductInputs        x, shared_x, shared_up_x; /* [tokens, width], as the matrices want them */
    ProductInputs        inner_x, shared_inner_x;  /* [routed, inner], [tokens, inner] */
    float               *out;                      /* [tokens, width] */
    const ExpertAddress *begun;                    /* [experts] with Turn::rest, else nullptr */
};

/* Whose inner values a call computes: everyone's, those of the shared expert and of the experts that are in the table, or
 * those that the call before has left. */
enum class Turn : uint8_t { all, begin, rest };

/* Whether it is a routed expert's turn, when it is not everyone's. */
DS4_DEVICE bool takes(const FeedForward &job, int32_t expert) {
    return job.begun == nullptr ? job.table[expert].gate != nullptr : job.begun[expert].gate == nullptr;
}

/* Which of two matrices a kernel multiplies with. Both, as a rule; the shared expert's may differ in format, when only one
 * of them was rearranged. Then the second kernel finds what the first has made. */
enum class Halves : uint8_t { both, gate, up };

/* Some rows of every choice. */
struct RowSlice {
    int32_t first, count;
    float  *values; /* [routed + shared, count] */
};

/* Inner values of the slice to 8 bits, each choice's as its matrix wants them; floats stay what they are. */
void quantise_inner(const Stream &stream, const FeedForward &job, bool exact, Turn turn, const RowSlice &slice);

/* ---- few choices: at most kMostFewChoices, the shared expert's among them -------------------------- */

constexpr int kMostFewChoices = 96;

/* Whether gate_up_few rounds x by itself; else it takes job.x and its kin. */
bool rounds_few(const FeedForward &job, bool exact);
/* inner: [routed + shared, job.inner] */
void gate_up_few(const Stream &stream, const CardFacts &card, const FeedForward &job, bool exact, Turn turn, float *inner);
void down_few(const Stream &stream, const FeedForward &job, bool exact);

/* ---- many choices ---------------------------------------------------------------------------------- */

/* Some choices of one expert, next to each other in the sorted order. Without choices: nothing to do. */
struct ChoiceTile {
    int32_t expert;
    int32_t first;
    int32_t count;
};

struct SortedChoices {
    int32_t    *order; /* [routed] */
    ChoiceTile *tiles; /* [tile_slots] */
    int32_t     width; /* for tiles of so many choices; 0: not sorted yet */
    Turn        turn;  /* what is not its turn has no tiles */
};

/* Room for the tiles of any width that the products use. */
int64_t tile_slots(int64_t routed, int64_t experts);

/* gated(gate . x, up . x) of the slice's rows. */
void gate_up_many(const Stream &stream, const CardFacts &card, const FeedForward &job, bool exact, SortedChoices &sorted,
                  const RowSlice &slice);
/* down . inner of the slice's rows. */
void down_many(const Stream &stream, const CardFacts &card, const FeedForward &job, bool exact, SortedChoices &sorted,
               const RowSlice &slice);
/* The slice's rows of `out` from those of the choices. */
void add_choices(const Stream &stream, const FeedForward &job, const RowSlice &slice);

} // namespace ds4::backend::gpu
