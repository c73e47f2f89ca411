import { GgufError } from './errors.js';
import type { GgufFile, GgufTensor } from './gguf-file.js';
import { Metadata } from './metadata.js';
import type { Part } from './part.js';
import { printable } from './printable.js';

/**
 * Puts parts together into one model.
 *
 * @param first the part with the metadata.
 * @param parts all of them, it included.
 * @throws GgufError when two of them have the same tensor.
 */
export function assembled(first: Part, parts: readonly Part[]): GgufFile {
  const owners = new Map<string, Part>();
  const tensors: GgufTensor[] = [];
  for (const part of parts) {
    for (const tensor of part.tensors) {
      const owner = owners.get(tensor.name);
      if (owner !== undefined) {
        throw new GgufError(
          `cannot open model '${first.path}': tensor '${printable(tensor.name)}' is in '${owner.path}' ` +
            `and again in '${part.path}'`,
        );
      }
      owners.set(tensor.name, part);
      tensors.push(tensor);
    }
  }
  return {
    version: first.header.version,
    alignment: first.header.alignment,
    files: parts.map(({ path, bytes }) => ({ path, bytes })),
    metadata: new Metadata(first.header.values),
    tensors,
  };
}
