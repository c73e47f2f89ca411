import { existsSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { GgufError } from './errors.js';
import { Metadata } from './metadata.js';
import type { Part } from './part.js';

/** What a part says about the set it belongs to. */
export interface Split {
  /** Counted from 0. */
  readonly index: number;
  /** At least 2. */
  readonly count: number;
  /** Of the whole set. */
  readonly tensorCount: number | undefined;
}

const indexKey = 'split.no';
const countKey = 'split.count';
const tensorCountKey = 'split.tensors.count';

const partName = /^(.*)-(\d{5})-of-(\d{5})\.gguf$/s;

/** Missing parts a message names before it says that there are more. */
const namedParts = 5;

/**
 * Reads the split keys. The metadata decides, not the name: a complete file may carry a part's name, for instance
 * because it was derived from one.
 *
 * @returns `undefined` for a file that is complete on its own.
 */
export function splitOf({ path, header, tensors }: Part): Split | undefined {
  const metadata = new Metadata(header.values);
  const value = (key: string): number | undefined => {
    const number = metadata.integer(key);
    if (metadata.has(key) && (number === undefined || number < 0)) {
      throw new GgufError(
        `cannot open model '${path}': ${key} is ${metadata.describe(key) ?? ''}, must be a count`,
      );
    }
    return number;
  };
  const index = value(indexKey) ?? 0;
  const count = value(countKey) ?? 0;
  const tensorCount = value(tensorCountKey);
  if (count <= 1) {
    if (tensorCount !== undefined && tensorCount !== tensors.length && count === 1) {
      throw new GgufError(
        `cannot open model '${path}': it holds ${tensors.length} tensors, ${tensorCountKey} says ${tensorCount}`,
      );
    }
    return undefined;
  }
  if (index >= count) {
    throw new GgufError(
      `cannot open model '${path}': ${indexKey} is ${index}, but there are ${count} parts`,
    );
  }
  return { index, count, tensorCount };
}

/**
 * Names of all parts, in order, derived from the given one. They lie beside the given path, not beside what it links
 * to: a blob store keeps the parts under names of its own.
 *
 * @throws GgufError naming what is missing.
 */
export function partPaths(path: string, { index, count }: Split): string[] {
  const match = partName.exec(basename(path));
  if (match === null) {
    throw new GgufError(
      `cannot open model '${path}': it is part ${index + 1} of ${count}, but its name does not end in ` +
        `'${numbered('', index, count)}', so the other parts cannot be found; rename it as it was`,
    );
  }
  const [, prefix = '', number = '', total = ''] = match;
  if (Number(number) !== index + 1 || Number(total) !== count) {
    throw new GgufError(
      `cannot open model '${path}': by its name it is part ${Number(number)} of ${Number(total)}, ` +
        `by its content part ${index + 1} of ${count}; rename it as it was`,
    );
  }
  const folder = dirname(path);
  const pathOf = (part: number): string =>
    part === index ? path : join(folder, numbered(prefix, part, count));
  const missing = firstMissing(pathOf, count);
  if (missing.length > 0) {
    const named = missing.slice(0, namedParts).map((part) => `'${part}'`);
    const more = missing.length > namedParts ? ' and more' : '';
    throw new GgufError(
      `cannot open model '${path}': it has ${count} parts, missing: ${named.join(', ')}${more}`,
    );
  }
  return Array.from({ length: count }, (_, part) => pathOf(part));
}

/** Looks no further once it has enough for a message: a part may claim that there are 65 535 of them. */
function firstMissing(pathOf: (part: number) => string, count: number): string[] {
  const missing: string[] = [];
  for (let part = 0; part < count && missing.length <= namedParts; part += 1) {
    const path = pathOf(part);
    if (!existsSync(path)) {
      missing.push(path);
    }
  }
  return missing;
}

function numbered(prefix: string, index: number, count: number): string {
  const digits = (value: number): string => String(value).padStart(5, '0');
  return `${prefix}-${digits(index + 1)}-of-${digits(count)}.gguf`;
}
