/* The arithmetic of ops.h on the host's processors. Each operation is in the file of its name. */
#pragma once

#include <vector>

#include "backend/cpu/kernels.h"
#include "backend/cpu/rope_angles.h"
#include "backend/cpu/scratch.h"
#include "backend/cpu/thread_pool.h"
#include "backend/ops.h"

namespace ds4::backend::cpu {

class CpuOps final : public Ops {
public:
    /* With `exact`, weights of every type are expanded to float32 and meet float32 activations: the reference.
     * Otherwise quantised weights meet activations of 8 bits. */
    enum class Arithmetic { fast, exact };

    /* `cancel`: see ThreadPool; may be nullptr. */
    CpuOps(uint32_t threads, Arithmetic arithmetic, uint32_t instruction_set, uint64_t *cancel = nullptr);

    uint32_t threads() const { return pool_.threads(); }

    void embed(const EmbedArgs &args) override;
    void hc_pre(const HcPreArgs &args) override;
    void hc_post(const HcPostArgs &args) override;
    void hc_head(const HcHeadArgs &args) override;
    void project(const ProjectArgs &args) override;
    void grouped_project(const GroupedProjectArgs &args) override;
    void rms_norm(const RmsNormArgs &args) override;
    void query(const QueryArgs &args) override;
    void window(const WindowArgs &args) override;
    void compress(const CompressArgs &args) override;
    void indexer_query(const IndexerQueryArgs &args) override;
    void indexer_select(const IndexerSelectArgs &args) override;
    void attention(const AttentionArgs &args) override;
    void route(const RouteArgs &args) override;
    void experts(const ExpertsArgs &args) override;
    bool begin_experts(const ExpertsArgs &args) override;
    void best(const BestArgs &args) override;
    bool supports(quant::Type type) const override;

private:
    /* How inputs have to be prepared for a weight type. */
    enum class Format { floats, bytes_32, bytes_256 };
    static constexpr int kFormats = 3;

    /* Rows of inputs, ready for matrices of one format: a pointer for each row. */
    struct Prepared {
        Scratch                   bytes;
        std::vector<const void *> rows;
    };

    /* Work of one thread that others must not see, nor slow down by writing next to it. */
    struct alignas(64) Workspace {
        Scratch                    multiply;
        Scratch                    floats;
        Scratch                    more_floats;
        std::vector<const float *> rows;
        std::vector<const float *> more_rows;
        std::vector<float *>       out;
        std::vector<int32_t>       order;
    };

    /* A matrix times prepared rows. */
    struct Product {
        quant::Type        type;
        const std::byte   *weights;
        int64_t            row_bytes;
        int64_t            rows;
        int64_t            columns;
        const void *const *x;
        float *const      *y;
        int64_t            tokens;
    };

    Format format_of(quant::Type type) const;
    size_t prepared_bytes(Format format, int64_t columns) const;
    void   prepare_row(Format format, const float *x, int64_t columns, std::byte *out) const;

    /* Prepares rows x[i * stride ...]; for Format::floats only the pointers are set. */
    void prepare_inputs(Format format, const float *x, int64_t rows, int64_t columns, int64_t stride, Prepared &prepared);

    /* Rows [first, first + rows) of the product, results at y_offset. */
    void multiply(const Product &product, Format format, int64_t first, int64_t rows, int64_t y_offset,
                  Workspace &workspace) const;

    /* All products, shared between the threads. */
    void multiply_all(std::span<const Product> products);

    /* Rows per item when `rows` rows in all are shared out: a multiple of the kernel's panel, no more than `most` if
     * that is one panel at least. */
    int64_t rows_per_item(int64_t rows, int64_t most) const;

    void mix_streams(const float *streams, int64_t tokens, int64_t columns, const Matrix &fn, float *mixes);

    const Kernels &kernels_;
    Arithmetic     arithmetic_;
    ThreadPool     pool_;
    RopeAngles     rope_;

    std::vector<Workspace> workspaces_;
    Prepared               inputs_[kFormats];
    std::vector<Product>   products_;
    std::vector<float *>   outputs_;
    Scratch                mixes_;
    Scratch                scores_;

    /* experts. Whose inner values a call computes: see begin_experts. Pairs have the same places in both calls. */
    enum class Turn { all, begin, rest };
    void group_choices(const ExpertsArgs &args, Turn turn);
    void fill_inner(const ExpertsArgs &args);
    void add_experts(const ExpertsArgs &args);

    struct Group {
        const std::byte *gate, *up, *down;
        quant::Type      gate_type, up_type, down_type;
        float            clamp;
        int64_t          first; /* pair */
        int64_t          count;
        bool             now; /* its inner values are computed by this call */
    };
    /* Whose inner values begin_experts has left in inner_. */
    struct Begun {
        const int32_t *ids = nullptr;
        int64_t        tokens = 0;
    };
    std::vector<Group>        groups_;
    std::vector<const Group *> groups_now_;
    Begun                     begun_;
    std::vector<int32_t>      expert_first_;
    std::vector<int32_t>      pair_of_;   /* [tokens * used] place of a choice among the pairs */
    std::vector<int32_t>      token_of_;  /* [pairs] */
    std::vector<float>        weight_of_; /* [pairs] */
    Scratch                   inner_;     /* [pairs, expert_width] */
    Prepared                  inner_prepared_;
    std::vector<const void *> gathered_[kFormats]; /* [pairs] prepared inputs in the order of the pairs */

    /* best */
    std::vector<uint64_t> keys_;
};

} // namespace ds4::backend::cpu
