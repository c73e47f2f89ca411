import type { ModelShape } from '../model/index.js';

const floatBytes = 4;

/**
 * Main memory for the hidden states of one prefill chunk on their way between the parts of a model, at the most: a part
 * that is not the first has them twice when it begins (as they came, and where the library reads them), and one that is not
 * the last twice when it ends.
 */
export function hiddenStateBytes(
  { hcCount, embedding }: ModelShape,
  prefillChunk: number,
  partCount: number,
): number {
  const copies = partCount < 2 ? 0 : partCount === 2 ? 2 : 4;
  return copies * prefillChunk * hcCount * embedding * floatBytes;
}
