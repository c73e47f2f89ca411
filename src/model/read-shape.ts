import type { GgufFile } from '../gguf/index.js';
import { KeyReader } from './key-reader.js';
import type { Range } from './key-reader.js';
import type { ModelShape } from './shape.js';

export const architecture = 'deepseek4';

/** The engine's limits: far above any real model, and products of three of them fit in 64 bits. */
const dimension: Range = { least: 1, most: 2 ** 18 };
const layers: Range = { least: 1, most: 2 ** 12 };
const vocabulary: Range = { least: 1, most: 2 ** 24 };
const usedExperts: Range = { least: 1, most: 64 };
const streams: Range = { least: 1, most: 16 };
const sinkhorn: Range = { least: 1, most: 1000 };
const contextLength: Range = { least: 1, most: 2 ** 40 };
const ratio: Range = { least: 0, most: 2 ** 18 };

/** What the released models use, for files whose writer left the keys out. */
const usualYarn = { factor: 16, originalContext: 65_536, betaFast: 32, betaSlow: 1 } as const;

/** Router scores are the square root of the softplus. */
const sqrtSoftplus = 4;

/**
 * Reads the hyper-parameters.
 *
 * @returns the shape, unusable when `problems` is not empty.
 */
export function readShape(gguf: GgufFile): { shape: ModelShape; problems: readonly string[] } {
  const { metadata } = gguf;
  const keys = new KeyReader(metadata, `${architecture}.`);
  const layerCount = readLayerCount(keys, gguf);
  const headDim = keys.integer('attention.key_length', dimension);
  const clampRouted = keys.limitPerLayer('swiglu_clamp_exp', layerCount);

  const shape: ModelShape = {
    layerCount,
    embedding: keys.integer('embedding_length', dimension),
    vocab: readVocab(keys, gguf),
    headCount: keys.integer('attention.head_count', dimension),
    headDim,
    ropeDims: keys.integer('rope.dimension_count', { ...dimension, least: 2 }),
    qRank: keys.integer('attention.q_lora_rank', dimension),
    outputGroups: keys.integer('attention.output_group_count', dimension),
    outputRank: keys.integer('attention.output_lora_rank', dimension),
    window: keys.integer('attention.sliding_window', dimension),
    indexerHeads: keys.integer('attention.indexer.head_count', dimension),
    indexerDim: keys.integer('attention.indexer.key_length', dimension),
    indexerTopK: keys.integer('attention.indexer.top_k', dimension),
    expertCount: keys.integer('expert_count', dimension),
    expertUsed: keys.integer('expert_used_count', usedExperts),
    expertShared: keys.integer('expert_shared_count', { least: 0, most: 1 }),
    expertWidth: keys.integer('expert_feed_forward_length', dimension),
    hashLayers: keys.integer('hash_layer_count', { least: 0, most: layers.most }),
    hcCount: keys.integer('hyper_connection.count', streams),
    sinkhornIterations: keys.integer('hyper_connection.sinkhorn_iterations', sinkhorn),
    normaliseWeights: keys.boolean('expert_weights_norm'),
    roundTrips: new KeyReader(metadata, '').boolean('ds4.kv_round_trip', true),
    rmsEpsilon: keys.float('attention.layer_norm_rms_epsilon', 0),
    hcEpsilon: keys.float('hyper_connection.epsilon', 0),
    ropeBase: keys.float('rope.freq_base', 0),
    compressRopeBase: keys.float('attention.compress_rope_freq_base', 1),
    yarnFactor: keys.float('rope.scaling.factor', 0, usualYarn.factor),
    yarnBetaFast: keys.float('rope.scaling.yarn_beta_fast', 0, usualYarn.betaFast),
    yarnBetaSlow: keys.float('rope.scaling.yarn_beta_slow', 0, usualYarn.betaSlow),
    yarnOriginalContext: keys.integer(
      'rope.scaling.original_context_length',
      contextLength,
      usualYarn.originalContext,
    ),
    expertScale: keys.float('expert_weights_scale', 0),
    trainedContext: keys.integer('context_length', contextLength, 0),
    compressRatio: keys.integerPerLayer('attention.compress_ratios', layerCount, ratio),
    clampRouted,
    clampShared: keys.has('swiglu_clamp_shexp')
      ? keys.limitPerLayer('swiglu_clamp_shexp', layerCount)
      : clampRouted,
  };
  checkFixedValues(keys, headDim);
  return { shape, problems: [...keys.problems, ...contradictions(shape)] };
}

/** llama.cpp counts an embedded draft block as a layer; its name tells whether it is there. */
function readLayerCount(keys: KeyReader, gguf: GgufFile): number {
  const blocks = keys.integer('block_count', layers);
  const draftBlocks = keys.integer('nextn_predict_layers', { least: 0, most: 64 }, 0);
  const layerCount = blocks - draftBlocks;
  const draftProjection = `blk.${layerCount}.nextn.eh_proj.weight`;
  const embedded = draftBlocks > 0 && gguf.tensors.some(({ name }) => name === draftProjection);
  return embedded && layerCount > 0 ? layerCount : blocks;
}

/** llama.cpp's converter leaves the key out; then the output matrix or the vocabulary has it. */
function readVocab(keys: KeyReader, gguf: GgufFile): number {
  const rowsOf = (name: string): number | undefined =>
    gguf.tensors.find((tensor) => tensor.name === name)?.dims[1];
  return keys.integer(
    'vocab_size',
    vocabulary,
    rowsOf('output.weight') ??
      rowsOf('token_embd.weight') ??
      gguf.metadata.count('tokenizer.ggml.tokens'),
  );
}

function checkFixedValues(keys: KeyReader, headDim: number): void {
  const headsKv = keys.integer('attention.head_count_kv', dimension);
  if (headsKv > 1) {
    keys.problems.push(
      `metadata key deepseek4.attention.head_count_kv is ${headsKv}, must be 1: all heads share one key row`,
    );
  }
  const valueLength = keys.integer('attention.value_length', dimension);
  if (headDim > 0 && valueLength > 0 && valueLength !== headDim) {
    keys.problems.push(
      `metadata key deepseek4.attention.value_length is ${valueLength}, must be ` +
        `deepseek4.attention.key_length, ${headDim}: keys and values are the same row`,
    );
  }
  keys.fixed('expert_gating_func', [sqrtSoftplus], 'ds4 scores experts by sqrt(softplus)');
  keys.fixed('expert_group_count', [0, 1], 'ds4 has no expert groups');
  keys.fixed('expert_group_used_count', [0, 1], 'ds4 has no expert groups');
  keys.text('rope.scaling.type', 'yarn', 'ds4 has no other scaling');
}

/** Values that are fine alone but not together. A value with a problem of its own is 0 here and not judged again. */
function contradictions(shape: ModelShape): string[] {
  const problems: string[] = [];
  const indexed = shape.compressRatio.includes(4);
  if (shape.layerCount > 0 && shape.hashLayers > shape.layerCount) {
    problems.push(
      `metadata key deepseek4.hash_layer_count is ${shape.hashLayers}, more than the ${shape.layerCount} layers of the model`,
    );
  }
  if (shape.expertCount > 0 && shape.expertUsed > shape.expertCount) {
    problems.push(
      `metadata key deepseek4.expert_used_count is ${shape.expertUsed}, more than the ${shape.expertCount} experts of the model`,
    );
  }
  if (shape.ropeDims % 2 !== 0) {
    problems.push(
      `metadata key deepseek4.rope.dimension_count is ${shape.ropeDims}, must be even: values are rotated in pairs`,
    );
  }
  if (shape.headDim > 0 && shape.ropeDims > shape.headDim) {
    problems.push(
      `metadata key deepseek4.rope.dimension_count is ${shape.ropeDims}, more than the ${shape.headDim} values of a head`,
    );
  }
  if (indexed && shape.indexerDim > 0 && shape.ropeDims > shape.indexerDim) {
    problems.push(
      `metadata key deepseek4.rope.dimension_count is ${shape.ropeDims}, more than the ${shape.indexerDim} values of an indexer head`,
    );
  }
  if (indexed && shape.roundTrips && !Number.isInteger(Math.log2(Math.max(1, shape.indexerDim)))) {
    problems.push(
      `metadata key deepseek4.attention.indexer.key_length is ${shape.indexerDim}, must be a power of two: ` +
        'indexer values pass a Hadamard transform',
    );
  }
  if (shape.outputGroups > 0 && shape.headCount % shape.outputGroups !== 0) {
    problems.push(
      `metadata key deepseek4.attention.output_group_count is ${shape.outputGroups}, must divide the ${shape.headCount} heads`,
    );
  }
  return problems;
}
