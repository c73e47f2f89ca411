import { readFileSync } from 'node:fs';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { openGguf } from '../../../src/gguf/index.js';
import { Tokenizer, TokenizerError } from '../../../src/tokenizer/index.js';
import type { VocabularyData } from '../../../src/tokenizer/index.js';
import { deepseekV3Vocabulary, deepseekV4Vocabulary } from '../../support/deepseek-vocabulary.js';
import { scratchFolder } from '../../support/gguf-scratch.js';
import { byteLevel } from './byte-level.js';
import { sampleText } from './sample-text.js';

function vocabularyOf(path: string): VocabularyData {
  const { metadata } = openGguf(path);
  return {
    tokens: metadata.strings('tokenizer.ggml.tokens') ?? [],
    tokenTypes: metadata.integers('tokenizer.ggml.token_type') ?? [],
    merges: metadata.strings('tokenizer.ggml.merges') ?? [],
  };
}

function text(bytes: Uint8Array): string {
  return Buffer.from(bytes).toString();
}

const v4 = new Tokenizer(deepseekV4Vocabulary());
const markers = [
  '<｜begin▁of▁sentence｜>',
  '<｜end▁of▁sentence｜>',
  '<｜User｜>',
  '<｜Assistant｜>',
  '<think>',
  '</think>',
  '｜DSML｜',
] as const;

/** Mixed text with markers in it. */
const markedText = fc
  .array(
    fc.oneof(
      fc.nat(5000).map((seed) => sampleText(seed, 5)),
      fc.constantFrom(...markers),
    ),
    {
      maxLength: 8,
    },
  )
  .map((parts) => parts.join(''));

describe('the vocabulary of a small model file', () => {
  const cases = JSON.parse(readFileSync('test/fixtures/tokenizer-cases.json', 'utf8')) as {
    text: string;
    ids: number[];
  }[];
  const tokenizer = new Tokenizer(vocabularyOf('test/fixtures/a-f16.gguf'));

  it.each(cases)('encodes $text', ({ text: prompt, ids }) => {
    expect(Array.from(tokenizer.encodeWithSpecials(prompt))).toEqual(ids);
  });
});

describe('a vocabulary that went through a GGUF file', () => {
  const scratch = scratchFolder();

  it('encodes as it did before', () => {
    const { tokens, tokenTypes, merges } = deepseekV3Vocabulary();
    const path = scratch.save('vocabulary.gguf', {
      metadata: [
        ['tokenizer.ggml.tokens', { type: 'array', element: 'string', values: tokens }],
        ['tokenizer.ggml.token_type', { type: 'array', element: 'i32', values: tokenTypes }],
        ['tokenizer.ggml.merges', { type: 'array', element: 'string', values: merges }],
      ],
      tensors: [{ name: 't', type: 'F32', dims: [1] }],
    });
    const direct = new Tokenizer({ tokens, tokenTypes, merges });
    const texts = Array.from({ length: 300 }, (_, seed) => sampleText(seed));

    const read = new Tokenizer(vocabularyOf(path));

    expect(texts.map((prompt) => read.encodeWithSpecials(prompt))).toEqual(
      texts.map((prompt) => direct.encodeWithSpecials(prompt)),
    );
  });
});

describe('encode', () => {
  it('decodes to the text it was given', () => {
    fc.assert(
      fc.property(fc.oneof(markedText, fc.string({ unit: 'binary' })), (prompt) => {
        expect(text(v4.decode(v4.encode(prompt)))).toBe(prompt);
      }),
      { numRuns: 500, seed: 3 },
    );
  });

  it('never makes a special token, whatever the text says', () => {
    fc.assert(
      fc.property(markedText, (prompt) => {
        expect(Array.from(v4.encode(prompt)).filter((id) => v4.isSpecial(id))).toEqual([]);
      }),
      { numRuns: 300, seed: 4 },
    );
  });

  it.each(markers)('makes more than one token of %s', (marker) => {
    expect(v4.special(marker)).toBeDefined();
    expect(v4.encode(marker).length).toBeGreaterThan(1);
  });

  it.each([
    ['a high surrogate', 'a\ud83db'],
    ['a low surrogate', 'a\ude00b'],
    ['surrogates the wrong way round', '\ude00\ud83d'],
    ['a high surrogate at the end', 'x \ud83d'],
  ])('takes %s without its other half as U+FFFD', (_, prompt) => {
    const replaced = prompt.replace(/\p{Surrogate}/gu, '\ufffd');

    expect(v4.encode(prompt)).toEqual(v4.encode(replaced));
    expect(text(v4.decode(v4.encode(prompt)))).toBe(replaced);
  });

  it('gives the same ids for a string and for its bytes', () => {
    fc.assert(
      fc.property(fc.oneof(markedText, fc.string({ unit: 'binary' })), (prompt) => {
        expect(v4.encode(Buffer.from(prompt))).toEqual(v4.encode(prompt));
        expect(v4.encodeWithSpecials(Buffer.from(prompt))).toEqual(v4.encodeWithSpecials(prompt));
      }),
      { numRuns: 200, seed: 7 },
    );
  });

  it('keeps bytes that are not UTF-8 as they are', () => {
    const fragment = fc.oneof(
      fc.uint8Array({ maxLength: 12 }),
      fc.nat(500).map((seed) => new Uint8Array(Buffer.from(sampleText(seed, 3)))),
    );
    fc.assert(
      fc.property(fc.array(fragment, { maxLength: 6 }), (fragments) => {
        const bytes = new Uint8Array(Buffer.concat(fragments));

        expect(v4.decode(v4.encode(bytes))).toEqual(bytes);
        expect(v4.decode(v4.encodeWithSpecials(bytes))).toEqual(bytes);
      }),
      { numRuns: 400, seed: 8 },
    );
  });

  it('keeps a byte order mark at the start of bytes', () => {
    const bytes = Uint8Array.of(0xef, 0xbb, 0xbf, 0x68, 0x69);

    expect(v4.decode(v4.encode(bytes))).toEqual(bytes);
  });

  it('gives the same ids again when the cache has forgotten and when it remembers', () => {
    const prompt = sampleText(1, 40);
    const before = v4.encode(prompt);
    const remembered = v4.encode(prompt);

    v4.encode(Array.from({ length: 70_000 }, (_, index) => ` ${index.toString(26)}q`).join(''));

    expect(remembered).toEqual(before);
    expect(v4.encode(prompt)).toEqual(before);
  });
});

describe('encodeWithSpecials', () => {
  it('is the parts between the markers, each encoded alone, and the markers', () => {
    fc.assert(
      fc.property(
        fc.array(
          fc.tuple(
            fc.nat(5000).map((seed) => sampleText(seed, 4)),
            fc.constantFrom(...markers),
          ),
          {
            maxLength: 5,
          },
        ),
        (pairs) => {
          const prompt = pairs.flat().join('');
          const expected = pairs.flatMap(([span, marker]) => [
            ...v4.encodeWithSpecials(span),
            v4.special(marker),
          ]);

          expect(Array.from(v4.encodeWithSpecials(prompt))).toEqual(expected);
        },
      ),
      { numRuns: 300, seed: 9 },
    );
  });

  it.each([
    ['<ab>', ['<ab>']],
    ['<ab', ['<ab']],
    ['<a>', ['<a', '>']],
    ['x<ax<ab>>', ['x', '<a', 'x', '<ab>', '>']],
    ['<<ab', ['<', '<ab']],
    ['b>a>', ['b>a>']],
    ['b>ab', ['b', '>', 'a', 'b']],
  ])('cuts %s into the leftmost, then longest literals', (prompt, pieces) => {
    const tokenizer = new Tokenizer(
      byteLevel(
        [],
        [
          ['<a', 3],
          ['<ab', 3],
          ['<ab>', 4],
          ['b>a>', 4],
        ],
      ),
    );

    const ids = Array.from(tokenizer.encodeWithSpecials(prompt));

    expect(ids.map((id) => tokenizer.storedPiece(id))).toEqual(pieces);
  });

  it('finds a literal of one character and of characters outside the basic plane', () => {
    const tokenizer = new Tokenizer(
      byteLevel(
        [],
        [
          ['§', 3],
          ['😀!', 4],
        ],
      ),
    );

    expect(Array.from(tokenizer.encodeWithSpecials('§😀!'))).toEqual([256, 257]);
    expect(text(tokenizer.decode([256, 257]))).toBe('§😀!');
  });
});

describe('decode', () => {
  it('gives a special token as its literal', () => {
    expect(text(v4.decode(v4.encodeWithSpecials('<think>né</think>')))).toBe('<think>né</think>');
  });

  it('refuses an id outside the vocabulary with a sentence', () => {
    expect(() => v4.decode([5, v4.vocab])).toThrow(TokenizerError);
  });

  it('hands out bytes that the caller may change', () => {
    const first = v4.pieceBytes(100);
    first.fill(0);

    expect(v4.pieceBytes(100)).not.toEqual(first);
  });

  it('tells the stored spelling from the bytes', () => {
    const [id] = v4.encode(' a');

    expect(v4.storedPiece(id!)).toBe('Ġa');
    expect(text(v4.pieceBytes(id!))).toBe(' a');
  });
});
