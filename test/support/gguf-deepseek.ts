import type { BlockType, GgufSpec, WrittenTensor, WrittenValue } from './gguf-writer.js';
import { f32, list, text, u32 } from './gguf-spec.js';

/** Dimensions of a deepseek4 model. */
export interface ModelDims {
  readonly layers: number;
  readonly embedding: number;
  readonly vocab: number;
  readonly heads: number;
  readonly headDim: number;
  readonly ropeDims: number;
  readonly qRank: number;
  readonly groups: number;
  readonly outputRank: number;
  readonly window: number;
  readonly indexerHeads: number;
  readonly indexerDim: number;
  readonly topK: number;
  readonly experts: number;
  readonly used: number;
  readonly width: number;
  readonly hashLayers: number;
  readonly streams: number;
  readonly expertScale: number;
  /** One per layer, or more. */
  readonly ratios: readonly number[];
}

/** Element types of a file by the job of a tensor. */
export interface FileTypes {
  readonly embedding: BlockType;
  /** Attention projections, shared experts, output head. */
  readonly projection: BlockType;
  /** Mixing, compressor, indexer, router. */
  readonly small: BlockType;
  readonly gateUp: (layer: number) => BlockType;
  readonly down: (layer: number) => BlockType;
}

function alternating(layers: number, first: number): number[] {
  return Array.from({ length: layers + 1 }, (_, layer) => {
    if (layer === layers) {
      return 0;
    }
    return layer < 2 ? first : layer % 2 === 0 ? 4 : 128;
  });
}

export const flashDims: ModelDims = {
  layers: 43,
  embedding: 4096,
  vocab: 129_280,
  heads: 64,
  headDim: 512,
  ropeDims: 64,
  qRank: 1024,
  groups: 8,
  outputRank: 1024,
  window: 128,
  indexerHeads: 64,
  indexerDim: 128,
  topK: 512,
  experts: 256,
  used: 6,
  width: 2048,
  hashLayers: 3,
  streams: 4,
  expertScale: 1.5,
  ratios: alternating(43, 0),
};

export const proDims: ModelDims = {
  ...flashDims,
  layers: 61,
  embedding: 7168,
  heads: 128,
  qRank: 1536,
  groups: 16,
  topK: 1024,
  experts: 384,
  width: 3072,
  expertScale: 2.5,
  ratios: alternating(61, 128),
};

/** The layout of the published ds4 files, with the given expert types. */
export function ds4Types(
  gateUp: (layer: number) => BlockType,
  down: (layer: number) => BlockType,
): FileTypes {
  return { embedding: 'F16', projection: 'Q8_0', small: 'F16', gateUp, down };
}

/** The tensors of a whole model, without data, written down by hand from the format's description. */
export function deepseekTensors(dims: ModelDims, types: FileTypes): WrittenTensor[] {
  const tensors: WrittenTensor[] = [];
  const add = (name: string, type: BlockType, ...shape: number[]): void => {
    tensors.push({ name, type, dims: shape });
  };
  const { embedding: e, headDim: d, streams, qRank } = dims;
  const mix = 2 * streams + streams ** 2;
  const outputWidth = dims.groups * dims.outputRank;
  add('token_embd.weight', types.embedding, e, dims.vocab);
  for (let layer = 0; layer < dims.layers; layer += 1) {
    const p = `blk.${layer}.`;
    const ratio = dims.ratios[layer] ?? 0;
    for (const site of ['attn', 'ffn']) {
      add(`${p}hc_${site}_fn.weight`, types.small, streams * e, mix);
      add(`${p}hc_${site}_base.weight`, 'F32', mix);
      add(`${p}hc_${site}_scale.weight`, 'F32', 3);
    }
    add(`${p}attn_norm.weight`, 'F32', e);
    add(`${p}attn_q_a.weight`, types.projection, e, qRank);
    add(`${p}attn_q_a_norm.weight`, 'F32', qRank);
    add(`${p}attn_q_b.weight`, types.projection, qRank, dims.heads * d);
    add(`${p}attn_kv.weight`, types.projection, e, d);
    add(`${p}attn_kv_a_norm.weight`, 'F32', d);
    add(`${p}attn_sinks.weight`, 'F32', dims.heads);
    add(`${p}attn_output_a.weight`, types.projection, (dims.heads * d) / dims.groups, outputWidth);
    add(`${p}attn_output_b.weight`, types.projection, outputWidth, e);
    if (ratio !== 0) {
      const width = ratio === 4 ? 2 * d : d;
      add(`${p}attn_compressor_kv.weight`, types.small, e, width);
      add(`${p}attn_compressor_gate.weight`, types.small, e, width);
      add(`${p}attn_compressor_ape.weight`, types.small, width, ratio);
      add(`${p}attn_compressor_norm.weight`, 'F32', d);
    }
    if (ratio === 4) {
      const width = 2 * dims.indexerDim;
      add(`${p}indexer.attn_q_b.weight`, types.small, qRank, dims.indexerHeads * dims.indexerDim);
      add(`${p}indexer.proj.weight`, types.small, e, dims.indexerHeads);
      add(`${p}indexer_compressor_kv.weight`, types.small, e, width);
      add(`${p}indexer_compressor_gate.weight`, types.small, e, width);
      add(`${p}indexer_compressor_ape.weight`, types.small, width, ratio);
      add(`${p}indexer_compressor_norm.weight`, 'F32', dims.indexerDim);
    }
    add(`${p}ffn_norm.weight`, 'F32', e);
    add(`${p}ffn_gate_inp.weight`, types.small, e, dims.experts);
    if (layer < dims.hashLayers) {
      add(`${p}ffn_gate_tid2eid.weight`, 'I32', dims.used, dims.vocab);
    } else {
      add(`${p}exp_probs_b.bias`, 'F32', dims.experts);
    }
    add(`${p}ffn_gate_exps.weight`, types.gateUp(layer), e, dims.width, dims.experts);
    add(`${p}ffn_up_exps.weight`, types.gateUp(layer), e, dims.width, dims.experts);
    add(`${p}ffn_down_exps.weight`, types.down(layer), dims.width, e, dims.experts);
    add(`${p}ffn_gate_shexp.weight`, types.projection, e, dims.width);
    add(`${p}ffn_up_shexp.weight`, types.projection, e, dims.width);
    add(`${p}ffn_down_shexp.weight`, types.projection, dims.width, e);
  }
  add('output_hc_fn.weight', types.small, streams * e, streams);
  add('output_hc_base.weight', 'F32', streams);
  add('output_hc_scale.weight', 'F32', 1);
  add('output_norm.weight', 'F32', e);
  add('output.weight', types.projection, e, dims.vocab);
  return tensors;
}

/** Hyper-parameters as ds4's own files have them, with every key the format knows. */
export function deepseekMetadata(dims: ModelDims, name: string): [string, WrittenValue][] {
  const perLayer = (value: number): WrittenValue =>
    list('f32', new Float32Array(dims.layers).fill(value));
  const own: [string, WrittenValue][] = [
    ['block_count', u32(dims.layers)],
    ['context_length', u32(1_048_576)],
    ['embedding_length', u32(dims.embedding)],
    ['vocab_size', u32(dims.vocab)],
    ['attention.head_count', u32(dims.heads)],
    ['attention.head_count_kv', u32(1)],
    ['attention.key_length', u32(dims.headDim)],
    ['attention.value_length', u32(dims.headDim)],
    ['attention.layer_norm_rms_epsilon', f32(1e-6)],
    ['attention.q_lora_rank', u32(dims.qRank)],
    ['attention.output_lora_rank', u32(dims.outputRank)],
    ['attention.output_group_count', u32(dims.groups)],
    ['attention.sliding_window', u32(dims.window)],
    ['attention.compress_ratios', list('u32', dims.ratios)],
    ['attention.compress_rope_freq_base', f32(160_000)],
    ['attention.indexer.head_count', u32(dims.indexerHeads)],
    ['attention.indexer.key_length', u32(dims.indexerDim)],
    ['attention.indexer.top_k', u32(dims.topK)],
    ['rope.dimension_count', u32(dims.ropeDims)],
    ['rope.freq_base', f32(10_000)],
    ['rope.scaling.type', text('yarn')],
    ['rope.scaling.factor', f32(16)],
    ['rope.scaling.original_context_length', u32(65_536)],
    ['rope.scaling.yarn_beta_fast', f32(32)],
    ['rope.scaling.yarn_beta_slow', f32(1)],
    ['expert_count', u32(dims.experts)],
    ['expert_used_count', u32(dims.used)],
    ['expert_shared_count', u32(1)],
    ['expert_feed_forward_length', u32(dims.width)],
    ['expert_weights_scale', f32(dims.expertScale)],
    ['expert_weights_norm', { type: 'bool', value: true }],
    ['expert_gating_func', u32(4)],
    ['hash_layer_count', u32(dims.hashLayers)],
    ['swiglu_clamp_exp', perLayer(10)],
    ['hyper_connection.count', u32(dims.streams)],
    ['hyper_connection.sinkhorn_iterations', u32(20)],
    ['hyper_connection.epsilon', f32(1e-6)],
  ];
  return [
    ['general.architecture', text('deepseek4')],
    ['general.name', text(name)],
    ...own.map(([key, value]): [string, WrittenValue] => [`deepseek4.${key}`, value]),
  ];
}

/** A whole model without weights or vocabulary. */
export function deepseekSpec(dims: ModelDims, types: FileTypes, name = 'written'): GgufSpec {
  return { metadata: deepseekMetadata(dims, name), tensors: deepseekTensors(dims, types) };
}
