import type { ModelShape } from '../model/index.js';

const floatBytes = 4;

/** Bytes of one session at full context, as native/runtime allocates them. */
export interface SessionBytes {
  /** Raw windows, compressor inputs, compressed rows, indexer rows. */
  readonly kv: number;
  /** What each further position of context adds, on average, once the rings have their full length. */
  readonly perPosition: number;
}

/** Every array of the cache begins at a multiple of this. */
const alignment = 64;

/**
 * Sizes the KV cache.
 *
 * Per layer: a ring of raw rows; with compression also rings of the compressor's keys and gates and one row per closed
 * window (and, for ratio 4, the same again for the indexer's rows). All values are float32. A ring holds the history a
 * state needs and two chunks, so that a failed step can be undone and a chunk be taken back; native/runtime/kv_cache.h
 * has the reasoning.
 */
export function sessionBytes(
  shape: ModelShape,
  layers: { readonly first: number; readonly last: number },
  context: number,
  prefillChunk: number,
): SessionBytes {
  let kv = 0;
  let perPosition = 0;
  const add = (rows: number, width: number): void => {
    kv += Math.ceil((rows * width * floatBytes) / alignment) * alignment;
  };
  const ringRows = (history: number): number =>
    Math.min(2 * prefillChunk + history, Math.max(prefillChunk + history, context));

  for (let layer = layers.first; layer <= layers.last; layer += 1) {
    add(ringRows(shape.window - 1), shape.headDim);
    const ratio = shape.compressRatio[layer] ?? 0;
    if (ratio === 0) {
      continue;
    }
    const overlapping = ratio === 4;
    const halves = overlapping ? 2 : 1;
    for (const dim of overlapping ? [shape.headDim, shape.indexerDim] : [shape.headDim]) {
      const inputRows = ringRows(halves * ratio - 1);
      add(inputRows, halves * dim);
      add(inputRows, halves * dim);
      add(Math.floor(context / ratio), dim);
      perPosition += (dim * floatBytes) / ratio;
    }
  }
  return { kv, perPosition };
}
