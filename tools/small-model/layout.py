"""The model as ds4's GGUF: names, types and metadata in one direction, and back to weights in the other."""
import numpy as np

import blocks
import gguf
from config import Config
from vocabulary import BOS, EOS, PAD, Vocabulary

# (our name in a layer, GGUF suffix, type).
_LAYER = [
    ("attn_hc.fn", "hc_attn_fn.weight", blocks.F16), ("attn_hc.base", "hc_attn_base.weight", blocks.F32), ("attn_hc.scale", "hc_attn_scale.weight", blocks.F32),
    ("input_layernorm.weight", "attn_norm.weight", blocks.F32),
    ("self_attn.q_a_proj.weight", "attn_q_a.weight", blocks.Q8_0), ("self_attn.q_a_norm.weight", "attn_q_a_norm.weight", blocks.F32),
    ("self_attn.q_b_proj.weight", "attn_q_b.weight", blocks.Q8_0), ("self_attn.kv_proj.weight", "attn_kv.weight", blocks.Q8_0),
    ("self_attn.kv_norm.weight", "attn_kv_a_norm.weight", blocks.F32), ("self_attn.sinks", "attn_sinks.weight", blocks.F32),
    ("self_attn.o_a_proj.weight", "attn_output_a.weight", blocks.Q8_0), ("self_attn.o_b_proj.weight", "attn_output_b.weight", blocks.Q8_0),
    ("ffn_hc.fn", "hc_ffn_fn.weight", blocks.F16), ("ffn_hc.base", "hc_ffn_base.weight", blocks.F32), ("ffn_hc.scale", "hc_ffn_scale.weight", blocks.F32),
    ("post_attention_layernorm.weight", "ffn_norm.weight", blocks.F32),
    ("mlp.gate.weight", "ffn_gate_inp.weight", blocks.F16),
    ("mlp.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight", blocks.Q8_0), ("mlp.shared_experts.up_proj.weight", "ffn_up_shexp.weight", blocks.Q8_0),
    ("mlp.shared_experts.down_proj.weight", "ffn_down_shexp.weight", blocks.Q8_0),
]
_COMPRESSOR = [
    ("self_attn.compressor.kv_proj.weight", "attn_compressor_kv.weight", blocks.F16), ("self_attn.compressor.gate_proj.weight", "attn_compressor_gate.weight", blocks.F16),
    ("self_attn.compressor.position_bias", "attn_compressor_ape.weight", blocks.F16), ("self_attn.compressor.kv_norm.weight", "attn_compressor_norm.weight", blocks.F32),
]
_INDEXER = [
    ("self_attn.compressor.indexer.q_b_proj.weight", "indexer.attn_q_b.weight", blocks.F16), ("self_attn.compressor.indexer.scorer.weights_proj.weight", "indexer.proj.weight", blocks.F16),
    ("self_attn.compressor.indexer.kv_proj.weight", "indexer_compressor_kv.weight", blocks.F16), ("self_attn.compressor.indexer.gate_proj.weight", "indexer_compressor_gate.weight", blocks.F16),
    ("self_attn.compressor.indexer.position_bias", "indexer_compressor_ape.weight", blocks.F16), ("self_attn.compressor.indexer.kv_norm.weight", "indexer_compressor_norm.weight", blocks.F32),
]
_TOP = [
    ("model.embed_tokens.weight", "token_embd.weight", blocks.F16), ("lm_head.weight", "output.weight", blocks.Q8_0), ("model.norm.weight", "output_norm.weight", blocks.F32),
    ("model.hc_head.hc_fn", "output_hc_fn.weight", blocks.F16), ("model.hc_head.hc_base", "output_hc_base.weight", blocks.F32), ("model.hc_head.hc_scale", "output_hc_scale.weight", blocks.F32),
]
_EXPERTS = blocks.Q4_K  # in Q8_0 the file would be 16.5 MiB


def _entries(c):
    """(our full name, GGUF name, type) of everything but routed experts and router tables."""
    yield from _TOP
    for i, ratio in enumerate(c.ratios):
        for ours, theirs, kind in _LAYER + (_COMPRESSOR if ratio else []) + (_INDEXER if ratio == 4 else []):
            yield f"model.layers.{i}.{ours}", f"blk.{i}.{theirs}", kind


def tensors(c, state):
    """state: our names -> float arrays. Returns what gguf.write wants."""
    made = []

    def put(name, array, kind):
        made.append((name, array.shape, kind, blocks.quantise(array, kind)))

    for ours, theirs, kind in _entries(c):
        put(theirs, state[ours], kind)
    for i in range(len(c.ratios)):
        M, G = f"model.layers.{i}.mlp.", f"blk.{i}."
        both = state[M + "experts.gate_up_proj"]
        put(G + "ffn_gate_exps.weight", both[:, :c.expert_width], _EXPERTS)
        put(G + "ffn_up_exps.weight", both[:, c.expert_width:], _EXPERTS)
        put(G + "ffn_down_exps.weight", state[M + "experts.down_proj"], _EXPERTS)
        if i < c.hash_layers:
            put(G + "ffn_gate_tid2eid.weight", state[M + "gate.tid2eid"].astype(np.int32), blocks.I32)
        else:
            put(G + "exp_probs_b.bias", state[M + "gate.e_score_correction_bias"], blocks.F32)
    return made


def metadata(c, words, context=8192):
    p, layers = "deepseek4.", len(c.ratios)
    floats = (gguf.ARRAY, gguf.FLOAT32)
    return [
        ("general.architecture", gguf.STRING, "deepseek4"), ("general.type", gguf.STRING, "model"), ("general.name", gguf.STRING, "ds4-small"),
        ("general.alignment", gguf.U32, gguf.ALIGNMENT), ("general.quantization_version", gguf.U32, 2),
        ("ds4.kv_round_trip", gguf.BOOL, True),
        (p + "block_count", gguf.U32, layers), (p + "context_length", gguf.U32, context), (p + "embedding_length", gguf.U32, c.width), (p + "vocab_size", gguf.U32, c.vocabulary),
        (p + "attention.head_count", gguf.U32, c.heads), (p + "attention.head_count_kv", gguf.U32, 1),
        (p + "attention.key_length", gguf.U32, c.head_width), (p + "attention.value_length", gguf.U32, c.head_width),
        (p + "attention.layer_norm_rms_epsilon", gguf.FLOAT32, c.epsilon), (p + "attention.q_lora_rank", gguf.U32, c.query_rank),
        (p + "attention.output_lora_rank", gguf.U32, c.output_rank), (p + "attention.output_group_count", gguf.U32, c.output_groups),
        (p + "attention.sliding_window", gguf.U32, c.window),
        (p + "attention.compress_ratios", (gguf.ARRAY, gguf.U32), [*c.ratios, 0]),  # one more than layers, as in the released files
        (p + "attention.compress_rope_freq_base", gguf.FLOAT32, 160000.0),
        (p + "attention.indexer.head_count", gguf.U32, c.indexer_heads), (p + "attention.indexer.key_length", gguf.U32, c.indexer_width), (p + "attention.indexer.top_k", gguf.U32, c.top_k),
        (p + "rope.dimension_count", gguf.U32, c.rotary), (p + "rope.freq_base", gguf.FLOAT32, 10000.0), (p + "rope.scaling.type", gguf.STRING, "yarn"),
        (p + "rope.scaling.factor", gguf.FLOAT32, 16.0), (p + "rope.scaling.original_context_length", gguf.U32, 65536),
        (p + "rope.scaling.yarn_beta_fast", gguf.FLOAT32, 32.0), (p + "rope.scaling.yarn_beta_slow", gguf.FLOAT32, 1.0),
        (p + "expert_count", gguf.U32, c.experts), (p + "expert_used_count", gguf.U32, c.experts_used), (p + "expert_shared_count", gguf.U32, 1),
        (p + "expert_feed_forward_length", gguf.U32, c.expert_width), (p + "expert_weights_scale", gguf.FLOAT32, c.expert_scale),
        (p + "expert_weights_norm", gguf.BOOL, True), (p + "expert_gating_func", gguf.U32, 4), (p + "expert_group_count", gguf.U32, 0), (p + "expert_group_used_count", gguf.U32, 0),
        (p + "hash_layer_count", gguf.U32, c.hash_layers),
        (p + "swiglu_clamp_exp", floats, [c.clamp] * layers), (p + "swiglu_clamp_shexp", floats, [c.clamp] * layers),
        (p + "hyper_connection.count", gguf.U32, c.streams), (p + "hyper_connection.sinkhorn_iterations", gguf.U32, c.sinkhorn), (p + "hyper_connection.epsilon", gguf.FLOAT32, c.epsilon),
        ("tokenizer.ggml.model", gguf.STRING, "gpt2"), ("tokenizer.ggml.pre", gguf.STRING, "joyai-llm"),
        ("tokenizer.ggml.tokens", (gguf.ARRAY, gguf.STRING), words.tokens), ("tokenizer.ggml.token_type", (gguf.ARRAY, gguf.I32), words.types),
        ("tokenizer.ggml.merges", (gguf.ARRAY, gguf.STRING), words.merges),
        ("tokenizer.ggml.bos_token_id", gguf.U32, BOS), ("tokenizer.ggml.eos_token_id", gguf.U32, EOS), ("tokenizer.ggml.padding_token_id", gguf.U32, PAD),
        ("tokenizer.ggml.add_bos_token", gguf.BOOL, False), ("tokenizer.ggml.add_eos_token", gguf.BOOL, False),
    ]


def read(path):
    """(Config, weights under our names as float arrays, Vocabulary) of a file written here."""
    file = gguf.File(path)
    get = lambda key: file.get("deepseek4." + key)
    c = Config(vocabulary=get("vocab_size"), width=get("embedding_length"), ratios=tuple(get("attention.compress_ratios")[:get("block_count")]), hash_layers=get("hash_layer_count"),
               heads=get("attention.head_count"), head_width=get("attention.key_length"), rotary=get("rope.dimension_count"), query_rank=get("attention.q_lora_rank"),
               output_groups=get("attention.output_group_count"), output_rank=get("attention.output_lora_rank"), experts=get("expert_count"), experts_used=get("expert_used_count"),
               expert_width=get("expert_feed_forward_length"), indexer_heads=get("attention.indexer.head_count"), indexer_width=get("attention.indexer.key_length"),
               top_k=get("attention.indexer.top_k"), window=get("attention.sliding_window"), streams=get("hyper_connection.count"), sinkhorn=get("hyper_connection.sinkhorn_iterations"))
    state = {ours: file.array(theirs) for ours, theirs, _ in _entries(c)}
    for i in range(len(c.ratios)):
        M, G = f"model.layers.{i}.mlp.", f"blk.{i}."
        state[M + "experts.gate_up_proj"] = np.concatenate([file.array(G + "ffn_gate_exps.weight"), file.array(G + "ffn_up_exps.weight")], 1)
        state[M + "experts.down_proj"] = file.array(G + "ffn_down_exps.weight")
        if i < c.hash_layers:
            state[M + "gate.tid2eid"] = file.array(G + "ffn_gate_tid2eid.weight")
        else:
            state[M + "gate.e_score_correction_bias"] = file.array(G + "exp_probs_b.bias")
    return c, state, Vocabulary(file.get("tokenizer.ggml.tokens"), file.get("tokenizer.ggml.merges"))
