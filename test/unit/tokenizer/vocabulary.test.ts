import { describe, expect, it } from 'vitest';
import { Tokenizer, TokenizerError } from '../../../src/tokenizer/index.js';
import type { VocabularyData } from '../../../src/tokenizer/index.js';
import { byteLevel } from './byte-level.js';

function withToken(token: string, type: number): VocabularyData {
  const { tokens, tokenTypes, merges } = byteLevel(['a b'], [['<s>', 3]]);
  return { tokens: [...tokens, token], tokenTypes: [...Array.from(tokenTypes), type], merges };
}

describe('a hostile vocabulary', () => {
  it.each<[string, VocabularyData, RegExp]>([
    ['without tokens', { tokens: [], tokenTypes: [], merges: [] }, /256 of the 256 single bytes/],
    ['with a repeated token', withToken('ab', 1), /tokens 256 and 258 are both "ab"/],
    ['with a repeated special token', withToken('<s>', 4), /tokens 257 and 258 are both "<s>"/],
    ['with an empty token', withToken('', 1), /token 258 is empty/],
    ['with an empty special token', withToken('', 3), /token 258 is empty/],
    [
      'without a byte',
      {
        tokens: byteLevel([]).tokens.filter((token) => token !== 'Ġ'),
        tokenTypes: new Int32Array(255).fill(1),
        merges: [],
      },
      /1 of the 256 single bytes have no token, the first is 0x20/,
    ],
    [
      'whose byte is a control token',
      {
        ...byteLevel([]),
        tokenTypes: Int32Array.from({ length: 256 }, (_, id) => (id === 65 ? 3 : 1)),
      },
      /the first is 0x41/,
    ],
    [
      'with too few token types',
      { ...byteLevel([]), tokenTypes: [1, 1] },
      /256 tokens but 2 token types/,
    ],
    [
      'whose merge names an unknown part',
      { ...byteLevel([]), merges: ['a xyz'] },
      /merge 0 .*"xyz"/,
    ],
    ['whose merge makes an unknown token', { ...byteLevel([]), merges: ['a b'] }, /merge 0 .*"ab"/],
    ['with a merge of one part', { ...byteLevel([]), merges: ['ab'] }, /merge 0 is "ab"/],
    ['with a merge of three parts', { ...byteLevel([]), merges: ['a b c'] }, /merge 0 is "a b c"/],
    ['with an empty merge', { ...byteLevel([]), merges: [''] }, /merge 0 is ""/],
    ['with a merge of nothing', { ...byteLevel([]), merges: [' '] }, /merge 0 is " "/],
    ['with an endless merge', { ...byteLevel([]), merges: ['y'.repeat(1e6)] }, /"y{60}\.\.\."/],
    [
      'with a merge that moves the cursor',
      { ...byteLevel([]), merges: ['\u001b[2J\u009b'] },
      /"\\u001b\[2J\\u\{9b\}"/,
    ],
  ])('%s is refused with a sentence', (_, data, sentence) => {
    const build = () => new Tokenizer(data);

    expect(build).toThrow(TokenizerError);
    expect(build).toThrow(sentence);
  });

  it('may have unused slots that are empty or repeat a token', () => {
    const { tokens, tokenTypes, merges } = byteLevel(['a b']);

    const tokenizer = new Tokenizer({
      tokens: ['ab', ...tokens, '', '', 'ab'],
      tokenTypes: [5, ...Array.from(tokenTypes), 5, 5, 5],
      merges,
    });

    expect(tokenizer.vocab).toBe(tokens.length + 4);
    expect(Array.from(tokenizer.encode('ab'))).toEqual([257]);
    expect(tokenizer.pieceBytes(tokens.length + 1)).toEqual(new Uint8Array(0));
  });

  it('leaves out merges that would make or take a special token', () => {
    const { tokens, merges } = byteLevel(['a b', 'ab c', 'b c']);
    const tokenTypes = tokens.map((token) => (token === 'ab' ? 4 : 1));

    const tokenizer = new Tokenizer({ tokens, tokenTypes, merges });

    expect(Array.from(tokenizer.encode('abc'), (id) => tokenizer.storedPiece(id))).toEqual([
      'a',
      'bc',
    ]);
  });

  it('takes the first of two equal merges', () => {
    const { tokens, tokenTypes } = byteLevel(['a b', 'b c']);

    const tokenizer = new Tokenizer({ tokens, tokenTypes, merges: ['b c', 'a b', 'b c'] });

    expect(Array.from(tokenizer.encode('abc'), (id) => tokenizer.storedPiece(id))).toEqual([
      'a',
      'bc',
    ]);
  });

  it('may hold an ordinary token outside the byte alphabet, which then stands for itself', () => {
    const tokenizer = new Tokenizer(withToken('你 好', 1));

    expect(Buffer.from(tokenizer.pieceBytes(258)).toString()).toBe('你 好');
  });

  it.each([-1, 258, 1.5, NaN])('has no token %d, and says so', (id) => {
    const tokenizer = new Tokenizer(byteLevel(['a b'], [['<s>', 3]]));

    expect(() => tokenizer.pieceBytes(id)).toThrow(TokenizerError);
    expect(() => tokenizer.storedPiece(id)).toThrow(/the vocabulary has 258 tokens/);
    expect(tokenizer.isSpecial(id)).toBe(false);
  });
});
