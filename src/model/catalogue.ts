import type { TensorRole } from './roles.js';
import type { ModelShape } from './shape.js';

/** What a tensor may be stored as: `vector` F32, `table` I32, `matrix` and `experts` any type the engine multiplies with. */
export type TensorClass = 'vector' | 'matrix' | 'table' | 'experts';

/** A tensor that the model must have. */
export interface TensorSpec {
  readonly role: TensorRole;
  /** -1 outside the layers. */
  readonly layer: number;
  readonly name: string;
  /** Fastest first. */
  readonly dims: readonly number[];
  readonly class: TensorClass;
}

/** Without role and place: a row of the tables below. */
type Row = readonly [TensorRole, string, TensorClass, ...number[]];

/** All tensors of a model, in the order of its graph. Names are the same in ds4's own files and in llama.cpp's. */
export function* tensorCatalogue(shape: ModelShape): Generator<TensorSpec> {
  yield* specs(-1, '', embeddingRows(shape));
  for (let layer = 0; layer < shape.layerCount; layer += 1) {
    const prefix = `blk.${layer}.`;
    yield* specs(layer, prefix, mixingRows(shape));
    yield* specs(layer, prefix, attentionRows(shape));
    yield* specs(layer, prefix, compressorRows(shape, shape.compressRatio[layer] ?? 0));
    yield* specs(layer, prefix, expertRows(shape, layer));
  }
  yield* specs(-1, '', headRows(shape));
}

function* specs(layer: number, prefix: string, rows: readonly Row[]): Generator<TensorSpec> {
  for (const [role, name, tensorClass, ...dims] of rows) {
    yield { role, layer, name: prefix + name, dims, class: tensorClass };
  }
}

function embeddingRows({ embedding, vocab }: ModelShape): Row[] {
  return [['tokenEmbedding', 'token_embd.weight', 'matrix', embedding, vocab]];
}

function headRows({ embedding, vocab, hcCount }: ModelShape): Row[] {
  return [
    ['outputHcFn', 'output_hc_fn.weight', 'matrix', hcCount * embedding, hcCount],
    ['outputHcBase', 'output_hc_base.weight', 'vector', hcCount],
    ['outputHcScale', 'output_hc_scale.weight', 'vector', 1],
    ['outputNorm', 'output_norm.weight', 'vector', embedding],
    ['output', 'output.weight', 'matrix', embedding, vocab],
  ];
}

/** Each sublayer mixes the residual streams with a vector of pre (hc), post (hc) and combination (hc x hc) weights. */
function mixingRows({ embedding, hcCount }: ModelShape): Row[] {
  const mix = 2 * hcCount + hcCount * hcCount;
  return [
    ['hcAttnFn', 'hc_attn_fn.weight', 'matrix', hcCount * embedding, mix],
    ['hcAttnBase', 'hc_attn_base.weight', 'vector', mix],
    ['hcAttnScale', 'hc_attn_scale.weight', 'vector', 3],
    ['hcFfnFn', 'hc_ffn_fn.weight', 'matrix', hcCount * embedding, mix],
    ['hcFfnBase', 'hc_ffn_base.weight', 'vector', mix],
    ['hcFfnScale', 'hc_ffn_scale.weight', 'vector', 3],
  ];
}

function attentionRows(shape: ModelShape): Row[] {
  const { embedding, headCount, headDim, qRank, outputGroups, outputRank } = shape;
  const groupInput = (headCount / outputGroups) * headDim;
  return [
    ['attnNorm', 'attn_norm.weight', 'vector', embedding],
    ['attnQA', 'attn_q_a.weight', 'matrix', embedding, qRank],
    ['attnQANorm', 'attn_q_a_norm.weight', 'vector', qRank],
    ['attnQB', 'attn_q_b.weight', 'matrix', qRank, headCount * headDim],
    ['attnKv', 'attn_kv.weight', 'matrix', embedding, headDim],
    ['attnKvANorm', 'attn_kv_a_norm.weight', 'vector', headDim],
    ['attnSinks', 'attn_sinks.weight', 'vector', headCount],
    // One [groupInput -> outputRank] matrix per group, stored as one.
    ['attnOutputA', 'attn_output_a.weight', 'matrix', groupInput, outputGroups * outputRank],
    ['attnOutputB', 'attn_output_b.weight', 'matrix', outputGroups * outputRank, embedding],
  ];
}

function compressorRows(shape: ModelShape, ratio: number): Row[] {
  if (ratio === 0) {
    return [];
  }
  const { embedding, headDim, qRank, indexerHeads, indexerDim } = shape;
  const indexed = ratio === 4;
  // Overlapping windows keep two halves per channel: one for the window's own row, one for the next.
  const halves = indexed ? 2 : 1;
  const rows: Row[] = [
    ['compressorKv', 'attn_compressor_kv.weight', 'matrix', embedding, halves * headDim],
    ['compressorGate', 'attn_compressor_gate.weight', 'matrix', embedding, halves * headDim],
    ['compressorApe', 'attn_compressor_ape.weight', 'matrix', halves * headDim, ratio],
    ['compressorNorm', 'attn_compressor_norm.weight', 'vector', headDim],
  ];
  const indexer: Row[] = [
    ['indexerQB', 'indexer.attn_q_b.weight', 'matrix', qRank, indexerHeads * indexerDim],
    ['indexerProj', 'indexer.proj.weight', 'matrix', embedding, indexerHeads],
    ['indexerCompressorKv', 'indexer_compressor_kv.weight', 'matrix', embedding, 2 * indexerDim],
    [
      'indexerCompressorGate',
      'indexer_compressor_gate.weight',
      'matrix',
      embedding,
      2 * indexerDim,
    ],
    ['indexerCompressorApe', 'indexer_compressor_ape.weight', 'matrix', 2 * indexerDim, ratio],
    ['indexerCompressorNorm', 'indexer_compressor_norm.weight', 'vector', indexerDim],
  ];
  return indexed ? [...rows, ...indexer] : rows;
}

function expertRows(shape: ModelShape, layer: number): Row[] {
  const { embedding, expertCount, expertWidth, expertUsed, vocab } = shape;
  const router: Row =
    layer < shape.hashLayers
      ? ['routerHash', 'ffn_gate_tid2eid.weight', 'table', expertUsed, vocab]
      : ['routerBias', 'exp_probs_b.bias', 'vector', expertCount];
  const rows: Row[] = [
    ['ffnNorm', 'ffn_norm.weight', 'vector', embedding],
    ['router', 'ffn_gate_inp.weight', 'matrix', embedding, expertCount],
    router,
    ['expertGate', 'ffn_gate_exps.weight', 'experts', embedding, expertWidth, expertCount],
    ['expertUp', 'ffn_up_exps.weight', 'experts', embedding, expertWidth, expertCount],
    ['expertDown', 'ffn_down_exps.weight', 'experts', expertWidth, embedding, expertCount],
  ];
  const shared: Row[] = [
    ['sharedGate', 'ffn_gate_shexp.weight', 'matrix', embedding, expertWidth],
    ['sharedUp', 'ffn_up_shexp.weight', 'matrix', embedding, expertWidth],
    ['sharedDown', 'ffn_down_shexp.weight', 'matrix', expertWidth, embedding],
  ];
  return shape.expertShared > 0 ? [...rows, ...shared] : rows;
}
