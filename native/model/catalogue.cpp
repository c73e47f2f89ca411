#include "model/catalogue.h"

#include <array>

namespace ds4::model {

namespace {

struct RoleName {
    uint32_t    role;
    const char *name; /* after "blk.<layer>." for roles of a layer */
};

constexpr std::array kRoleNames = {
    RoleName{DS4_ROLE_TOKEN_EMBEDDING, "token_embd.weight"},
    RoleName{DS4_ROLE_OUTPUT, "output.weight"},
    RoleName{DS4_ROLE_OUTPUT_NORM, "output_norm.weight"},
    RoleName{DS4_ROLE_OUTPUT_HC_FN, "output_hc_fn.weight"},
    RoleName{DS4_ROLE_OUTPUT_HC_BASE, "output_hc_base.weight"},
    RoleName{DS4_ROLE_OUTPUT_HC_SCALE, "output_hc_scale.weight"},
    RoleName{DS4_ROLE_HC_ATTN_FN, "hc_attn_fn.weight"},
    RoleName{DS4_ROLE_HC_ATTN_BASE, "hc_attn_base.weight"},
    RoleName{DS4_ROLE_HC_ATTN_SCALE, "hc_attn_scale.weight"},
    RoleName{DS4_ROLE_HC_FFN_FN, "hc_ffn_fn.weight"},
    RoleName{DS4_ROLE_HC_FFN_BASE, "hc_ffn_base.weight"},
    RoleName{DS4_ROLE_HC_FFN_SCALE, "hc_ffn_scale.weight"},
    RoleName{DS4_ROLE_ATTN_NORM, "attn_norm.weight"},
    RoleName{DS4_ROLE_ATTN_Q_A, "attn_q_a.weight"},
    RoleName{DS4_ROLE_ATTN_Q_A_NORM, "attn_q_a_norm.weight"},
    RoleName{DS4_ROLE_ATTN_Q_B, "attn_q_b.weight"},
    RoleName{DS4_ROLE_ATTN_KV, "attn_kv.weight"},
    RoleName{DS4_ROLE_ATTN_KV_A_NORM, "attn_kv_a_norm.weight"},
    RoleName{DS4_ROLE_ATTN_SINKS, "attn_sinks.weight"},
    RoleName{DS4_ROLE_ATTN_OUTPUT_A, "attn_output_a.weight"},
    RoleName{DS4_ROLE_ATTN_OUTPUT_B, "attn_output_b.weight"},
    RoleName{DS4_ROLE_COMPRESSOR_KV, "attn_compressor_kv.weight"},
    RoleName{DS4_ROLE_COMPRESSOR_GATE, "attn_compressor_gate.weight"},
    RoleName{DS4_ROLE_COMPRESSOR_APE, "attn_compressor_ape.weight"},
    RoleName{DS4_ROLE_COMPRESSOR_NORM, "attn_compressor_norm.weight"},
    RoleName{DS4_ROLE_INDEXER_Q_B, "indexer.attn_q_b.weight"},
    RoleName{DS4_ROLE_INDEXER_PROJ, "indexer.proj.weight"},
    RoleName{DS4_ROLE_INDEXER_COMPRESSOR_KV, "indexer_compressor_kv.weight"},
    RoleName{DS4_ROLE_INDEXER_COMPRESSOR_GATE, "indexer_compressor_gate.weight"},
    RoleName{DS4_ROLE_INDEXER_COMPRESSOR_APE, "indexer_compressor_ape.weight"},
    RoleName{DS4_ROLE_INDEXER_COMPRESSOR_NORM, "indexer_compressor_norm.weight"},
    RoleName{DS4_ROLE_FFN_NORM, "ffn_norm.weight"},
    RoleName{DS4_ROLE_ROUTER, "ffn_gate_inp.weight"},
    RoleName{DS4_ROLE_ROUTER_BIAS, "exp_probs_b.bias"},
    RoleName{DS4_ROLE_ROUTER_HASH, "ffn_gate_tid2eid.weight"},
    RoleName{DS4_ROLE_EXPERT_GATE, "ffn_gate_exps.weight"},
    RoleName{DS4_ROLE_EXPERT_UP, "ffn_up_exps.weight"},
    RoleName{DS4_ROLE_EXPERT_DOWN, "ffn_down_exps.weight"},
    RoleName{DS4_ROLE_SHARED_GATE, "ffn_gate_shexp.weight"},
    RoleName{DS4_ROLE_SHARED_UP, "ffn_up_shexp.weight"},
    RoleName{DS4_ROLE_SHARED_DOWN, "ffn_down_shexp.weight"},
};

/* Adds the tensors of one place to a list. */
class Adder {
public:
    Adder(std::vector<ExpectedTensor> &list, int64_t layer) : list_(list), layer_(layer) {}

    void matrix(uint32_t role, int64_t columns, int64_t rows) {
        list_.push_back({role, layer_, TensorKind::matrix, columns, rows});
    }
    void experts(uint32_t role, int64_t columns, int64_t rows, int64_t depth) {
        list_.push_back({role, layer_, TensorKind::experts, columns, rows, depth});
    }
    void vector(uint32_t role, int64_t columns) { list_.push_back({role, layer_, TensorKind::vector, columns}); }
    void hash(uint32_t role, int64_t columns, int64_t rows) {
        list_.push_back({role, layer_, TensorKind::hash, columns, rows});
    }

private:
    std::vector<ExpectedTensor> &list_;
    int64_t                      layer_;
};

void add_hyper_connections(const Shape &shape, Adder add) {
    const int64_t mix = shape.mix_count();
    add.matrix(DS4_ROLE_HC_ATTN_FN, shape.hc_count * shape.embedding, mix);
    add.vector(DS4_ROLE_HC_ATTN_BASE, mix);
    add.vector(DS4_ROLE_HC_ATTN_SCALE, 3);
    add.matrix(DS4_ROLE_HC_FFN_FN, shape.hc_count * shape.embedding, mix);
    add.vector(DS4_ROLE_HC_FFN_BASE, mix);
    add.vector(DS4_ROLE_HC_FFN_SCALE, 3);
}

void add_attention(const Shape &shape, Adder add) {
    const int64_t queries = shape.head_count * shape.head_dim;
    add.vector(DS4_ROLE_ATTN_NORM, shape.embedding);
    add.matrix(DS4_ROLE_ATTN_Q_A, shape.embedding, shape.q_rank);
    add.vector(DS4_ROLE_ATTN_Q_A_NORM, shape.q_rank);
    add.matrix(DS4_ROLE_ATTN_Q_B, shape.q_rank, queries);
    add.matrix(DS4_ROLE_ATTN_KV, shape.embedding, shape.head_dim);
    add.vector(DS4_ROLE_ATTN_KV_A_NORM, shape.head_dim);
    add.vector(DS4_ROLE_ATTN_SINKS, shape.head_count);
    add.matrix(DS4_ROLE_ATTN_OUTPUT_A, queries / shape.output_groups, shape.output_groups * shape.output_rank);
    add.matrix(DS4_ROLE_ATTN_OUTPUT_B, shape.output_groups * shape.output_rank, shape.embedding);
}

void add_compression(const Shape &shape, int64_t layer, Adder add) {
    const int64_t ratio = shape.ratio(layer);
    if (ratio == 0) {
        return;
    }
    const int64_t row = shape.halves(layer) * shape.head_dim;
    add.matrix(DS4_ROLE_COMPRESSOR_KV, shape.embedding, row);
    add.matrix(DS4_ROLE_COMPRESSOR_GATE, shape.embedding, row);
    add.matrix(DS4_ROLE_COMPRESSOR_APE, row, ratio);
    add.vector(DS4_ROLE_COMPRESSOR_NORM, shape.head_dim);
    if (!shape.has_indexer(layer)) {
        return;
    }
    const int64_t indexer_row = shape.halves(layer) * shape.indexer_dim;
    add.matrix(DS4_ROLE_INDEXER_Q_B, shape.q_rank, shape.indexer_heads * shape.indexer_dim);
    add.matrix(DS4_ROLE_INDEXER_PROJ, shape.embedding, shape.indexer_heads);
    add.matrix(DS4_ROLE_INDEXER_COMPRESSOR_KV, shape.embedding, indexer_row);
    add.matrix(DS4_ROLE_INDEXER_COMPRESSOR_GATE, shape.embedding, indexer_row);
    add.matrix(DS4_ROLE_INDEXER_COMPRESSOR_APE, indexer_row, ratio);
    add.vector(DS4_ROLE_INDEXER_COMPRESSOR_NORM, shape.indexer_dim);
}

void add_experts(const Shape &shape, int64_t layer, Adder add) {
    add.vector(DS4_ROLE_FFN_NORM, shape.embedding);
    add.matrix(DS4_ROLE_ROUTER, shape.embedding, shape.expert_count);
    if (shape.routes_by_hash(layer)) {
        add.hash(DS4_ROLE_ROUTER_HASH, shape.expert_used, shape.vocab);
    } else {
        add.vector(DS4_ROLE_ROUTER_BIAS, shape.expert_count);
    }
    add.experts(DS4_ROLE_EXPERT_GATE, shape.embedding, shape.expert_width, shape.expert_count);
    add.experts(DS4_ROLE_EXPERT_UP, shape.embedding, shape.expert_width, shape.expert_count);
    add.experts(DS4_ROLE_EXPERT_DOWN, shape.expert_width, shape.embedding, shape.expert_count);
    if (shape.expert_shared > 0) {
        add.matrix(DS4_ROLE_SHARED_GATE, shape.embedding, shape.expert_width);
        add.matrix(DS4_ROLE_SHARED_UP, shape.embedding, shape.expert_width);
        add.matrix(DS4_ROLE_SHARED_DOWN, shape.expert_width, shape.embedding);
    }
}

void add_head(const Shape &shape, Adder add) {
    add.matrix(DS4_ROLE_OUTPUT, shape.embedding, shape.vocab);
    add.vector(DS4_ROLE_OUTPUT_NORM, shape.embedding);
    add.matrix(DS4_ROLE_OUTPUT_HC_FN, shape.hc_count * shape.embedding, shape.hc_count);
    add.vector(DS4_ROLE_OUTPUT_HC_BASE, shape.hc_count);
    add.vector(DS4_ROLE_OUTPUT_HC_SCALE, 1);
}

} // namespace

std::vector<ExpectedTensor> expected_tensors(const Shape &shape, const Slice &slice) {
    std::vector<ExpectedTensor> list;
    Adder                       outside(list, -1);
    if (slice.embedding) {
        outside.matrix(DS4_ROLE_TOKEN_EMBEDDING, shape.embedding, shape.vocab);
    }
    for (int64_t layer = slice.first; layer <= slice.last; ++layer) {
        const Adder add(list, layer);
        add_hyper_connections(shape, add);
        add_attention(shape, add);
        add_compression(shape, layer, add);
        add_experts(shape, layer, add);
    }
    if (slice.head) {
        add_head(shape, outside);
    }
    return list;
}

std::string tensor_name(uint32_t role, int64_t layer) {
    std::string name = "role " + std::to_string(role);
    for (const RoleName &entry : kRoleNames) {
        if (entry.role == role) {
            name = entry.name;
        }
    }
    return layer < 0 ? name : "blk." + std::to_string(layer) + "." + name;
}

} // namespace ds4::model
