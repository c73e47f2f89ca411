import { characterOfByte } from '../../../src/tokenizer/byte-alphabet.js';
import type { VocabularyData } from '../../../src/tokenizer/index.js';

/** A vocabulary of the 256 bytes, what the merges need and make, and then the given special tokens. */
export function byteLevel(
  merges: readonly string[],
  specials: readonly (readonly [literal: string, type: 3 | 4])[] = [],
): VocabularyData {
  const ordinary = new Set(characterOfByte);
  for (const merge of merges) {
    const [left = '', right = ''] = merge.split(' ');
    ordinary.add(left).add(right).add(`${left}${right}`);
  }
  return {
    tokens: [...ordinary, ...specials.map(([literal]) => literal)],
    tokenTypes: [...Array.from(ordinary, () => 1), ...specials.map(([, type]) => type)],
    merges,
  };
}
