import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { characterOfByte } from '../../../src/tokenizer/byte-alphabet.js';
import { Tokenizer } from '../../../src/tokenizer/index.js';
import type { VocabularyData } from '../../../src/tokenizer/index.js';
import { byteLevel } from './byte-level.js';

/** Merges as the rule says it, word for word: the lowest rank, the leftmost of equals, until none is left. */
function mergedByTheRule(piece: string, { tokens, merges }: VocabularyData): number[] {
  const symbols = piece.split('');
  for (;;) {
    const ranks = symbols
      .slice(1)
      .map((right, index) => merges.indexOf(`${symbols[index] ?? ''} ${right}`));
    const lowest = Math.min(...ranks.filter((rank) => rank >= 0));
    const at = ranks.indexOf(lowest);
    if (at < 0) {
      return symbols.map((symbol) => tokens.indexOf(symbol));
    }
    symbols.splice(at, 2, symbols.slice(at, at + 2).join(''));
  }
}

/** Merges over a and b in random order; a pair may come before the merges that make its parts. */
const merges = fc
  .uniqueArray(
    fc.tuple(
      fc.string({ unit: fc.constantFrom('a', 'b'), minLength: 1, maxLength: 4 }),
      fc.string({ unit: fc.constantFrom('a', 'b'), minLength: 1, maxLength: 4 }),
    ),
    { maxLength: 30, selector: (pair) => pair.join(' ') },
  )
  .map((pairs) => pairs.map((pair) => pair.join(' ')));

/** Merges that build on each other, so that most of a text over a and b merges, some of it many times over. */
const growingMerges = fc
  .array(fc.tuple(fc.nat(), fc.nat()), { minLength: 3, maxLength: 40 })
  .map((choices) => {
    const symbols = ['a', 'b'];
    const pairs = choices.map(([first, second]) => {
      const left = symbols[first % symbols.length]!;
      const right = symbols[second % symbols.length]!;
      symbols.push(left + right);
      return `${left} ${right}`;
    });
    return [...new Set(pairs)];
  });

describe('byte pair merging', () => {
  it.each([
    ['a short piece', 0, 40],
    ['a long piece', 41, 120],
  ])('follows the rule for %s', (_, minLength, maxLength) => {
    fc.assert(
      fc.property(
        fc.oneof(merges, growingMerges),
        fc.string({ unit: fc.constantFrom('a', 'b'), minLength, maxLength }),
        (list, piece) => {
          const data = byteLevel(list);

          const ids = new Tokenizer(data).encode(piece);

          expect(Array.from(ids)).toEqual(mergedByTheRule(piece, data));
        },
      ),
      { numRuns: 250, seed: 2 },
    );
  });

  it('takes the leftmost of overlapping pairs with one rank', () => {
    const data = byteLevel(['a a']);
    const tokenizer = new Tokenizer(data);

    const spelled = (count: number) =>
      Array.from(tokenizer.encode('a'.repeat(count)), (id) => tokenizer.storedPiece(id));

    expect(spelled(3)).toEqual(['aa', 'a']);
    expect(spelled(101)).toEqual([...Array.from({ length: 50 }, () => 'aa'), 'a']);
  });

  it('merges a run of 300 000 letters, which a look at every pair per merge would not finish', () => {
    const doubling = ['a a', 'aa aa', 'aaaa aaaa', 'aaaaaaaa aaaaaaaa'];
    const tokenizer = new Tokenizer(byteLevel(doubling));

    const ids = tokenizer.encode('a'.repeat(300_000));

    expect(ids.length).toBe(300_000 / 16);
  });

  it('spells every byte when nothing merges', () => {
    const tokenizer = new Tokenizer(byteLevel([]));
    const bytes = Uint8Array.from({ length: 256 }, (_, byte) => byte);

    const ids = tokenizer.encode(bytes);

    expect(Array.from(ids, (id) => tokenizer.storedPiece(id))).toEqual(characterOfByte);
    expect(tokenizer.decode(ids)).toEqual(bytes);
  });
});
