import { assembled } from './assembled.js';
import { GgufError } from './errors.js';
import type { GgufFile } from './gguf-file.js';
import { readPart } from './part.js';
import { partPaths, splitOf } from './split.js';

/**
 * Reads the header of a GGUF file, or of all files of a split model given any one of them. Touches only header bytes,
 * never weights, and leaves no file open. The file is hostile until proven good: every count, length, type, offset
 * and size in it is checked before it is used.
 *
 * @throws GgufError with one sentence.
 */
export function openGguf(path: string): GgufFile {
  const given = readPart(path, `model '${path}'`, 0);
  const split = splitOf(given);
  if (split === undefined) {
    return assembled(given, [given]);
  }
  const parts = partPaths(path, split).map((partPath, index) => {
    const part =
      index === split.index
        ? { ...given, tensors: given.tensors.map((tensor) => ({ ...tensor, file: index })) }
        : readPart(partPath, `model '${partPath}', part ${index + 1} of ${split.count}`, index);
    const found = splitOf(part);
    if (found?.count !== split.count || found.index !== index) {
      const what =
        found === undefined
          ? 'no part of a split model'
          : `part ${found.index + 1} of ${found.count}`;
      throw new GgufError(
        `cannot open model '${path}': '${partPath}' should be part ${index + 1} of ${split.count}, ` +
          `but says it is ${what}`,
      );
    }
    return part;
  });
  const whole = assembled(parts[0] ?? given, parts);
  if (split.tensorCount !== undefined && whole.tensors.length !== split.tensorCount) {
    throw new GgufError(
      `cannot open model '${path}': its ${split.count} parts hold ${whole.tensors.length} tensors, ` +
        `should hold ${split.tensorCount}; do all parts belong to the same model?`,
    );
  }
  return whole;
}
