/* ops.h: the arithmetic of the model, one function per step. Formulas: docs/architecture.md#math.
 *
 * Contract of every function:
 * - A batch of `tokens` tokens at consecutive positions position, position + 1, ...
 * - All pointers are device addresses (host addresses on the CPU). Activations are float32, row-major, shapes in
 *   brackets, last index fastest. Outputs do not overlap inputs unless the comment says "in place".
 * - The value of a token depends on that token's inputs only and is computed in an order that does not depend on
 *   the batch size, the thread count or where the weights live: any split into batches gives the same bits.
 * - Arguments were checked by the caller; an op throws only for device failures, and when it is cancelled: then its
 *   outputs hold anything.
 * - An op may return before its work is done. Ops run in the order of the calls; Device's copies wait for them.
 */
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "backend/device.h"
#include "include/ds4.h"
#include "quant/type.h"

namespace ds4::backend {

/* How the bytes of a row lie: as in the file, or as Ops::arrange left them. */
enum class RowLayout : uint8_t { file, arranged };

/* A weight matrix: `rows` outputs of `columns` inputs each, y = W x. */
struct Matrix {
    quant::Type      type = quant::Type::f32;
    RowLayout        layout = RowLayout::file;
    int64_t          rows = 0;
    int64_t          columns = 0;
    int64_t          row_bytes = 0;
    const std::byte *data = nullptr;
};

/* Rotation of the last `dims` values of a vector as interleaved pairs: angle of pair i at position p is
 * float32(p) * frequency[i]. */
struct Rope {
    const float *frequency = nullptr; /* [dims / 2], host memory */
    int64_t      dims = 0;
};

struct EmbedArgs {
    std::span<const int32_t> tokens; /* host memory */
    const Matrix            *embedding; /* [vocab, width] */
    int64_t                  hc;
    float                   *streams; /* out [tokens, hc, width]: each stream a copy of the token's row */
};

/* Mixes, collapses and normalises the residual streams in front of a sublayer. */
struct HcPreArgs {
    int64_t       tokens, hc, width;
    const float  *streams; /* [tokens, hc, width] */
    const Matrix *fn;      /* [2 hc + hc^2, hc * width] */
    const float  *base;    /* [2 hc + hc^2] */
    const float  *scale;   /* [3] */
    int64_t       sinkhorn_iterations;
    float         hc_epsilon;
    const float  *norm;    /* [width] weight of the sublayer's RMS norm */
    float         rms_epsilon;
    float        *x;       /* out [tokens, width]: normalised sublayer input */
    float        *post;    /* out [tokens, hc] */
    float        *comb;    /* out [tokens, hc, hc]: source, destination */
};

/* streams'[b] = post[b] * y + sum_a comb[a][b] * streams[a], in place. */
struct HcPostArgs {
    int64_t      tokens, hc, width;
    float       *streams; /* in place [tokens, hc, width] */
    const float *y;       /* [tokens, width] */
    const float *post;    /* [tokens, hc] */
    const float *comb;    /* [tokens, hc, hc] */
    int32_t      layer;
    int32_t     *bad_layer; /* in and out [1], or nullptr. While it is negative, it becomes `layer` when the streams of the
                               last token are not all finite: that token has seen all the others. */
};

/* Collapses the streams for the output head and applies the output norm. */
struct HcHeadArgs {
    int64_t       tokens, hc, width;
    const float  *streams;
    const Matrix *fn;    /* [hc, hc * width] */
    const float  *base;  /* [hc] */
    const float  *scale; /* [1] */
    float         hc_epsilon;
    const float  *norm;  /* [width] */
    float         rms_epsilon;
    float        *x;     /* out [tokens, width] */
};

struct Projection {
    const Matrix *matrix; /* [rows, columns] */
    float        *out;    /* [tokens, rows] */
};

/* Several matrices applied to the same input. */
struct ProjectArgs {
    int64_t                     tokens;
    const float                *x; /* [tokens, columns] */
    std::span<const Projection> projections;
};

/* out[t, g * rank + r] = matrix[g * rank + r, :] . x[t, g * columns ...] : one matrix per group of heads. */
struct GroupedProjectArgs {
    int64_t       tokens, groups;
    const float  *x;      /* [tokens, groups * columns] */
    const Matrix *matrix; /* [groups * rank, columns] */
    float        *out;    /* [tokens, groups * rank] */
};

struct RmsNormArgs {
    int64_t      rows, width;
    const float *x;      /* [rows, width] */
    const float *weight; /* [width] */
    float        epsilon;
    float       *out;    /* [rows, width], may be x */
};

/* Per head: RMS norm without weight, then rotation. */
struct QueryArgs {
    int64_t  tokens, heads, dim;
    uint64_t position;
    Rope     rope;
    float    epsilon;
    float   *q; /* in place [tokens, heads, dim] */
};

/* Norm, rotation, FP8 round trip of the unrotated part, then into the ring at row (position mod ring_rows). */
struct WindowArgs {
    int64_t      tokens, dim;
    uint64_t     position;
    Rope         rope;
    const float *kv;     /* [tokens, dim] projection */
    const float *norm;   /* [dim] */
    float        epsilon;
    bool         round_trip;
    int64_t      ring_rows;
    float       *ring;   /* out [ring_rows, dim] */
};

enum class RowRounding { none, fp8, hadamard_fp4 };

/* Puts the tokens' keys and gates (with the position bias added) into rings, then pools each window that closes
 * inside the batch into one row. `halves` is 2 for overlapping windows (ratio 4): the first half of a token's
 * channels belongs to the next window's row, the second to its own. */
struct CompressArgs {
    int64_t       tokens, ratio, halves, dim;
    uint64_t      position;
    const float  *keys;      /* [tokens, halves * dim] */
    const float  *gates;     /* [tokens, halves * dim] */
    const Matrix *ape;       /* [ratio, halves * dim] */
    int64_t       ring_rows; /* at least halves * ratio + tokens - 1 */
    float        *key_ring;  /* in and out [ring_rows, halves * dim], row = position mod ring_rows */
    float        *gate_ring;
    const float  *norm;      /* [dim] */
    float         epsilon;
    Rope          rope;      /* applied at the window's first position */
    RowRounding   rounding;
    float        *rows;      /* out [.., dim]: row w is window w, of the whole sequence */
};

/* Rotation, then, with round_trip, Hadamard transform and FP4 round trip per head. */
struct IndexerQueryArgs {
    int64_t  tokens, heads, dim;
    uint64_t position;
    Rope     rope;
    bool     round_trip;
    float   *q; /* in place [tokens, heads, dim] */
};

/* score[c] = sum_h weight[h] * (heads * dim)^-0.5 * max(0, q[h] . row[c]); keeps the top_k best of the visible rows
 * (c < (position + t + 1) / ratio), lower index first among equals, and lists them in ascending order. A score that is
 * not a number counts as the lowest. */
struct IndexerSelectArgs {
    int64_t      tokens, heads, dim, ratio, top_k;
    uint64_t     position;
    const float *q;        /* [tokens, heads, dim] */
    const float *weights;  /* [tokens, heads] */
    const float *rows;     /* [row_capacity, dim] */
    int64_t      row_capacity; /* at least (position + tokens) / ratio, and the same for the session's whole life */
    int32_t     *selected; /* out [tokens, top_k]; unused ends are not written */
    int32_t     *count;    /* out [tokens] */
    float       *scores;   /* out [tokens, scores_stride] or nullptr; then written for every visible row */
    int64_t      scores_stride;
};

/* Softmax attention with a sink per head over the raw window and the compressed rows, one vector serving as key and
 * value; the rotated part of the result is turned back to the query's position. */
struct AttentionArgs {
    int64_t        tokens, heads, dim;
    uint64_t       position;
    Rope           rope;
    const float   *q;        /* [tokens, heads, dim] */
    int64_t        window;   /* raw rows a query sees: positions max(0, p - window + 1) .. p */
    int64_t        ring_rows;
    const float   *ring;     /* [ring_rows, dim], row = position mod ring_rows */
    int64_t        ratio;    /* 0: no compressed rows */
    const float   *rows;     /* [row_capacity, dim] compressed rows or nullptr */
    int64_t        row_capacity; /* as in IndexerSelectArgs */
    const int32_t *selected; /* [tokens, top_k] ascending, or nullptr: all rows c < (p + 1) / ratio */
    const int32_t *count;    /* [tokens], with selected */
    int64_t        top_k;
    const float   *sinks;    /* [heads] */
    float         *out;      /* [tokens, heads, dim] */
};

/* Scores sqrt(softplus(logit)); experts by token id from `hash`, or the `used` best by score + bias (lower id first
 * among equals; not-a-number counts as the lowest, so that ids are always valid and distinct). Weights are the
 * unbiased scores, optionally normalised to sum 1 (guarded by 2^-14), times scale. */
struct RouteArgs {
    int64_t        tokens, experts, used;
    const float   *logits;    /* [tokens, experts] */
    const float   *bias;      /* [experts], or nullptr with hash */
    const int32_t *hash;      /* [vocab, used] checked ids, or nullptr */
    const int32_t *token_ids; /* [tokens] host memory */
    bool           normalise;
    float          scale;
    int32_t       *ids;       /* out [tokens, used], hash order or best first */
    float         *weights;   /* out [tokens, used] */
};

/* Where one routed expert's matrices are now. */
struct ExpertAddress {
    const std::byte *gate;
    const std::byte *up;
    const std::byte *down;
};

/* out = sum over the chosen experts, in selection order, of down(weight * silu(min(gate x, clamp)) * clip(up x, clamp)),
 * then plus the shared expert (weight 1, its own clamp). */
struct ExpertsArgs {
    int64_t              tokens, width, expert_width, experts, used;
    const float         *x;       /* [tokens, width] */
    const int32_t       *ids;     /* [tokens, used] */
    const float         *weights; /* [tokens, used] */
    const ExpertAddress *table;   /* [experts] */
    quant::Type          gate_up_type; /* matrices [expert_width, width] */
    quant::Type          down_type;    /* [width, expert_width] */
    float                clamp;
    const Matrix        *shared_gate;  /* nullptr: no shared expert */
    const Matrix        *shared_up;
    const Matrix        *shared_down;
    float                shared_clamp;
    float               *out;     /* [tokens, width] */
    const ExpertAddress *begun = nullptr; /* [experts] the table that begin_experts was given */
};

/* The best `count` logits of one row, descending, lower id first among equals. When any logit is NaN or +infinity or none
 * is finite, *finite is 0 and the rest may not be used. */
struct BestArgs {
    int64_t      vocab, count;
    const float *logits; /* [vocab] */
    float       *logit;  /* out [count] */
    int32_t     *id;     /* out [count] */
    int32_t     *finite; /* out [1] 1 or 0 */
};

/* The most that a session will ask of the ops, so that they can take what memory they need for themselves beforehand. */
struct OpsLimits {
    int64_t tokens = 0; /* of one batch */
    int64_t width = 0, hc = 0;
    int64_t heads = 0, head_dim = 0;
    int64_t widest_input = 0;  /* columns of the widest matrix, all groups together */
    int64_t widest_output = 0; /* rows of the tallest matrix that meets a whole batch (the head does not) */
    int64_t experts = 0, used = 0, expert_width = 0;
    int64_t indexer_heads = 0, indexer_dim = 0, top_k = 0;
    int64_t window = 0;
    int64_t row_capacity = 0; /* compressed rows of the layer that has most */
    int64_t vocab = 0, candidates = 0;
};

/* One evaluation, as far as it decides which work is done on which memory. Two steps of the same shape issue the same
 * calls with the same arguments, but for `position` and the tokens. */
struct Step {
    uint64_t                 position;
    std::span<const int32_t> tokens; /* host memory, until end_step */
    uint64_t                 shape;  /* 0: never repeated */
};

class Ops {
public:
    virtual ~Ops() = default;

    virtual void embed(const EmbedArgs &args) = 0;
    virtual void hc_pre(const HcPreArgs &args) = 0;
    virtual void hc_post(const HcPostArgs &args) = 0;
    virtual void hc_head(const HcHeadArgs &args) = 0;
    virtual void project(const ProjectArgs &args) = 0;
    virtual void grouped_project(const GroupedProjectArgs &args) = 0;
    virtual void rms_norm(const RmsNormArgs &args) = 0;
    virtual void query(const QueryArgs &args) = 0;
    virtual void window(const WindowArgs &args) = 0;
    virtual void compress(const CompressArgs &args) = 0;
    virtual void indexer_query(const IndexerQueryArgs &args) = 0;
    virtual void indexer_select(const IndexerSelectArgs &args) = 0;
    virtual void attention(const AttentionArgs &args) = 0;
    virtual void route(const RouteArgs &args) = 0;
    virtual void experts(const ExpertsArgs &args) = 0;
    virtual void best(const BestArgs &args) = 0;

    /* The part of experts() that needs no expert but those in the table, whose other entries are null; so it can run while
     * they arrive. When it returns true, experts() must be called next, with the same arguments, a table in which no chosen
     * expert is missing, and `begun`; it then does the rest, with the same bits as if nothing had been begun. */
    virtual bool begin_experts(const ExpertsArgs &) { return false; }

    /* Around the ops of an evaluation. When begin_step returns true, an earlier step of the same shape was recorded and now
     * runs again with these tokens at this position: the caller leaves its ops out. A step that fails in the middle ends
     * with abandon_step. Token ids given to ops are part of step.tokens. */
    virtual bool begin_step(const Step &) { return false; }
    virtual void end_step() {}
    virtual void abandon_step() noexcept {}

    /* Called between layers: waits until the device is not far behind, so that a cancel word is seen soon. */
    virtual void pace() {}

    /* Takes the memory that the ops themselves need. Throws Failure(DS4_E_NO_MEMORY). */
    virtual void     prepare(const OpsLimits &) {}
    virtual uint64_t scratch_bytes(const OpsLimits &) const { return 0; }

    /* Rearranges a matrix in its own memory, which must be writable and of this device, into the order that the kernels
     * like best; what it returns is how it lies now. */
    virtual Matrix arrange(const Matrix &matrix) { return matrix; }

    /* Whether a matrix of this type can be applied by project, grouped_project and experts. */
    virtual bool supports(quant::Type type) const = 0;
};

struct BackendOptions {
    uint32_t device = 0;
    uint32_t threads = 0;         /* 0: as many as the process may use */
    bool     exact = false;       /* float32 throughout */
    uint32_t instruction_set = 0; /* DS4_ISA_* of ds4.h, host backends */
    uint64_t *cancel = nullptr;   /* atomic word; while it is not 0 a long op ends early with DS4_E_CANCELLED */
    uint64_t *words = nullptr;    /* the DS4_WORD_* of ds4.h, atomic; a simulated device keeps its ledger there */
};

/* One opened device with its arithmetic. Destroyed last, after everything that holds memory of it. */
struct Backend {
    std::unique_ptr<Device> device;
    std::unique_ptr<Ops>    ops;
    uint32_t                threads = 1;
    uint32_t                instruction_set = 0;
};

/* Implemented once by each library. Throws Failure(DS4_E_DEVICE or DS4_E_ARGUMENT). */
Backend open_backend(const BackendOptions &options);
/* The devices this library could open. */
std::unique_ptr<Device> open_device(uint32_t index);
uint32_t                device_count();
/* Throws Failure(DS4_E_UNSUPPORTED) where devices are real, DS4_E_ARGUMENT. */
void simulate(const ds4_simulation &machine);

} // namespace ds4::backend
