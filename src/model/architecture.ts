import { printable } from '../gguf/index.js';
import type { GgufFile } from '../gguf/index.js';
import { architecture } from './read-shape.js';

const architectureKey = 'general.architecture';

/** Files that accompany a model: they hold the blocks of a draft model and cannot answer anything alone. */
const draftArchitectures: readonly string[] = ['deepseek4-dspark', 'dflash'];
const draftTensor = /^mtp\.\d+\./;

/** Says why a file is not a model of ours, or `undefined` when it is one. */
export function architectureProblem(gguf: GgufFile): string | undefined {
  const { metadata, tensors } = gguf;
  const found = metadata.string(architectureKey);
  if (found === undefined) {
    const held = metadata.describe(architectureKey);
    return held === undefined
      ? `required metadata key is missing: ${architectureKey}; ds4 runs ${architecture} models`
      : `metadata key ${architectureKey} is ${held}, must be a string`;
  }
  if (draftArchitectures.includes(found)) {
    return (
      `the architecture '${printable(found)}' is that of a draft model, which accompanies a ${architecture} model ` +
      'and cannot run alone; give the model itself with -m'
    );
  }
  if (found !== architecture) {
    return (
      `required metadata key is missing: ${architecture}.block_count; ` +
      `the architecture is '${printable(found)}', ds4 runs ${architecture} (DeepSeek-V4) models`
    );
  }
  const draftOnly =
    tensors.some(({ name }) => draftTensor.test(name)) &&
    !tensors.some(({ name }) => name === 'token_embd.weight' || name.startsWith('blk.'));
  return draftOnly
    ? 'the file holds only a draft model (tensors mtp.*), which accompanies a model and cannot run alone; ' +
        'give the model itself with -m'
    : undefined;
}
