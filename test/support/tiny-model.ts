import { deepseekMetadata, deepseekTensors } from './gguf-deepseek.js';
import type { ModelDims } from './gguf-deepseek.js';
import { byteVocabulary, vocabularyMetadata } from './gguf-vocabulary.js';
import type { BlockType, GgufSpec, WrittenTensor } from './gguf-writer.js';

export type TinyType = 'F32' | 'F16' | 'Q8_0';

export interface TinyOptions {
  readonly dims?: Partial<ModelDims>;
  /** Of all matrices and experts. */
  readonly type?: TinyType;
  readonly seed?: number;
  /**
   * `zero` leaves the data out, which is faster, for tests that only look at the header. `outside` leaves out that of the
   * routed experts: tokens choose them as they would, and a large file is written in no time.
   */
  readonly weights?: 'random' | 'zero' | 'outside';
}

/** Small enough to write in milliseconds, with every kind of layer; all rows are whole Q8_0 blocks. */
export const tinyDims: ModelDims = {
  layers: 4,
  embedding: 64,
  vocab: 320,
  heads: 4,
  headDim: 32,
  ropeDims: 16,
  qRank: 32,
  groups: 2,
  outputRank: 32,
  window: 16,
  indexerHeads: 4,
  indexerDim: 32,
  topK: 8,
  experts: 4,
  used: 2,
  width: 64,
  hashLayers: 1,
  streams: 4,
  expertScale: 1.5,
  ratios: [0, 4, 16, 4, 0],
};

/**
 * A deepseek4 model with random weights and a byte-level vocabulary. The same options give the same file. The answer
 * is plain data: a test that wants a damaged model edits it, then writes it with `writeGguf(...).save(path)`.
 */
export function tinyModel(options: TinyOptions = {}): GgufSpec {
  const dims = { ...tinyDims, ...options.dims };
  const type = options.type ?? 'Q8_0';
  const random = uniform(options.seed ?? 1);
  const tensors = deepseekTensors(dims, {
    embedding: type,
    projection: type,
    small: type,
    gateUp: () => type,
    down: () => type,
  });
  const { weights: kept = 'random' } = options;
  for (const tensor of tensors) {
    const isExpert = tensor.name.endsWith('_exps.weight');
    if (kept === 'random' || (kept === 'outside' && !isExpert)) {
      tensor.data = weights(tensor, dims, random);
    }
  }
  return {
    metadata: [
      ...deepseekMetadata(dims, 'tiny'),
      ...vocabularyMetadata(byteVocabulary(dims.vocab)),
    ],
    tensors,
  };
}

/** Numbers from -1 to 1; three shifts are random enough for weights, and fast. */
function uniform(seed: number): () => number {
  // The state must not be zero, and neighbouring seeds should not begin alike.
  let state = Math.imul(seed, 0x9e3779b1) || 1;
  return () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return state / 2 ** 31;
  };
}

function weights(tensor: WrittenTensor, dims: ModelDims, random: () => number): Uint8Array {
  const count = tensor.dims.reduce((product, dim) => product * dim, 1);
  if (tensor.type === 'I32') {
    return expertTable(count, dims, random);
  }
  const { centre, spread } = distribution(tensor);
  const values = Float32Array.from({ length: count }, () => centre + spread * random());
  return encodeValues(tensor.type, values);
}

/** Keeps activations near 1: matrices divide by the square root of their inputs, norms are close to one. */
function distribution({ name, dims }: WrittenTensor): { centre: number; spread: number } {
  if (name.endsWith('norm.weight')) {
    return { centre: 1, spread: 0.1 };
  }
  if (name.endsWith('_scale.weight')) {
    return { centre: 0.5, spread: 0.1 };
  }
  if (dims.length === 1 || name.endsWith('_ape.weight')) {
    return { centre: 0, spread: 0.3 };
  }
  return { centre: 0, spread: name === 'token_embd.weight' ? 1 : Math.sqrt(3 / (dims[0] ?? 1)) };
}

/** For each token `used` different experts. */
function expertTable(count: number, dims: ModelDims, random: () => number): Uint8Array {
  const table = new Int32Array(count);
  for (let row = 0; row < count; row += dims.used) {
    const first = Math.floor(((random() + 1) / 2) * dims.experts) % dims.experts;
    for (let slot = 0; slot < dims.used; slot += 1) {
      table[row + slot] = (first + slot) % dims.experts;
    }
  }
  return new Uint8Array(table.buffer);
}

/** Stores values in an element type. */
export function encodeValues(type: BlockType, values: Float32Array): Uint8Array {
  switch (type) {
    case 'F32':
      return new Uint8Array(values.slice().buffer);
    case 'F16':
      return new Uint8Array(Uint16Array.from(values, halfBits).buffer);
    case 'Q8_0':
      return encodeQ8(values);
    default:
      throw new Error(`a tiny model has no ${type}`);
  }
}

/** A scale per 32 values, then the values as signed bytes. */
function encodeQ8(values: Float32Array): Uint8Array {
  const bytes = Buffer.alloc((values.length / 32) * 34);
  for (let block = 0; block * 32 < values.length; block += 1) {
    const part = values.subarray(block * 32, block * 32 + 32);
    const scale = part.reduce((most, value) => Math.max(most, Math.abs(value)), 0) / 127;
    bytes.writeUInt16LE(halfBits(scale), block * 34);
    part.forEach((value, index) => {
      bytes.writeInt8(scale === 0 ? 0 : Math.round(value / scale), block * 34 + 2 + index);
    });
  }
  return bytes;
}

/** Bits of the half-precision number nearest to a value below 65504. */
function halfBits(value: number): number {
  const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0;
  const size = Math.abs(value);
  if (size < 2 ** -14) {
    return sign + Math.round(size * 2 ** 24);
  }
  const exponent = Math.floor(Math.log2(size));
  // A mantissa that rounds up to 1024 carries into the exponent, which is what the format wants.
  return sign + ((exponent + 15) << 10) + Math.round((size / 2 ** exponent - 1) * 1024);
}
