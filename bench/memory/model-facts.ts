import { openGguf } from '../../src/gguf/index.js';
import { describeModel } from '../../src/model/index.js';
import type { ModelDescription } from '../../src/model/index.js';

/** What the arithmetic needs of a model file. */
export interface ModelFacts {
  readonly path: string;
  readonly description: ModelDescription;
  readonly layers: number;
  /** Routed experts of all layers. */
  readonly experts: number;
  /** Of those, in one layer for one token. */
  readonly used: number;
  readonly vocab: number;
  readonly routedBytes: number;
  /** Bytes of routed experts that one decoded token needs. */
  readonly tokenBytes: number;
}

export function factsOf(path: string, description: ModelDescription): ModelFacts {
  const { layerCount: layers, expertCount, expertUsed: used, vocab } = description.shape;
  const { routed } = description.bytes;
  return {
    path,
    description,
    layers,
    experts: layers * expertCount,
    used,
    vocab,
    routedBytes: routed,
    tokenBytes: (routed * used) / expertCount,
  };
}

/** Reads the file's directory, no weights. */
export function readModelFacts(path: string): ModelFacts {
  return factsOf(path, describeModel(openGguf(path)));
}

/** How many of the first layers of this model a file of at most `bytes` has room for. */
export function layersWithin({ description, layers }: ModelFacts, bytes: number): number {
  const sizes = new Map<number, number>();
  for (const { layer, tensor } of description.tensors) {
    sizes.set(layer, (sizes.get(layer) ?? 0) + tensor.bytes);
  }
  let left = bytes - (sizes.get(-1) ?? 0);
  let count = 0;
  while (count < layers && left >= (sizes.get(count) ?? 0)) {
    left -= sizes.get(count) ?? 0;
    count += 1;
  }
  return count;
}
