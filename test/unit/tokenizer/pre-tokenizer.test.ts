import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { splitIntoPieces } from '../../../src/tokenizer/pre-tokenizer.js';
import { sampleText } from './sample-text.js';

function pieces(text: string): string[] {
  const found: string[] = [];
  splitIntoPieces(text, (piece) => found.push(piece));
  return found;
}

const whiteSpace = String.raw`\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000`;

/** The rules as the model's own tokenizer file writes them, with White_Space spelled out for `\s`. */
const rules = [
  String.raw`\p{N}{1,3}`,
  '[一-龥぀-ゟ゠-ヿ]+',
  [
    String.raw`[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_\x60{|}~][A-Za-z]+`,
    String.raw`[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+`,
    String.raw` ?[\p{P}\p{S}]+[\r\n]*`,
    String.raw`[${whiteSpace}]*[\r\n]+`,
    String.raw`[${whiteSpace}]+(?![^${whiteSpace}])`,
    String.raw`[${whiteSpace}]+`,
  ].join('|'),
].map((rule) => new RegExp(`(${rule})`, 'gu'));

/** Splitting at a captured group returns the matches and what lies between them. */
function piecesByExpressions(text: string): string[] {
  return rules
    .reduce((parts, rule) => parts.flatMap((part) => part.split(rule)), [text])
    .filter((part) => part !== '');
}

function isCutDifferently(text: string): boolean {
  return pieces(text).join('\0') !== piecesByExpressions(text).join('\0');
}

describe('splitIntoPieces', () => {
  it.each([
    ['12345', ['123', '45']],
    ['.foo _bar(.baz', ['.foo', ' _', 'bar', '(.', 'baz']],
    ['>;\nx', ['>;\n', 'x']],
    ['    int x', ['   ', ' int', ' x']],
    ['a   1', ['a', '   ', '1']],
    ['你好world，世界', ['你好', 'world', '，', '世界']],
    ['ア・イ', ['ア', '・', 'イ']],
    ['a \n \n  b', ['a', ' \n \n', ' ', ' b']],
    ['👨‍👩', ['👨', '\u200d', '👩']],
    ['', []],
  ])('cuts %j into %j', (text, expected) => {
    expect(pieces(text)).toEqual(expected);
  });

  it('agrees with the three expressions on 4000 mixed texts', () => {
    const texts = Array.from({ length: 4000 }, (_, seed) => sampleText(seed));

    expect(texts.filter(isCutDifferently)).toEqual([]);
  });

  it('agrees with the three expressions on arbitrary code points', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary', maxLength: 60 }), (text) => {
        expect(pieces(text)).toEqual(piecesByExpressions(text));
      }),
      { numRuns: 1000, seed: 1 },
    );
  });

  it('agrees with the three expressions on every character of the basic plane', () => {
    const contexts = [
      ['', ''],
      ['a', 'a'],
      [' ', '!'],
      ['你', ' 你'],
      ['\n', '\n'],
      ['1', '1'],
    ] as const;
    const texts = Array.from({ length: 0x10000 }, (_, unit) => {
      const character = String.fromCharCode(unit);
      const [before, after] = contexts[unit % contexts.length]!;
      return `${before}${character}${after} ${character}x`;
    }).filter((text) => !/\p{Surrogate}/u.test(text));

    expect(texts.filter(isCutDifferently)).toEqual([]);
  });

  it.each(['你', '😀'])('takes a run of five million %j as one piece', (character) => {
    const text = character.repeat(5_000_000);

    const found = pieces(text);

    expect(found.length).toBe(1);
    expect(found[0] === text).toBe(true);
  });
});
