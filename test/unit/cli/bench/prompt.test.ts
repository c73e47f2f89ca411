import { expect, test } from 'vitest';
import { defaultBenchSettings } from '../../../../src/cli/bench/options.js';
import type { BenchSettings } from '../../../../src/cli/bench/options.js';
import { promptTokens } from '../../../../src/cli/bench/prompt.js';
import { Tokenizer } from '../../../../src/tokenizer/index.js';
import { byteLevel } from '../../tokenizer/byte-level.js';

const vocab = 320;

function idsOf(text: string, more: Partial<BenchSettings> = {}): number[] {
  const bench = {
    ...defaultBenchSettings(),
    contextMax: 3,
    generate: 2,
    prompts: [{ form: 'tokens', path: 'ids.txt', text: Buffer.from(text) } as const],
    ...more,
  };
  return [...promptTokens(bench, new Tokenizer(byteLevel([])), vocab)];
}

test.each(['1 2 3 319', '[1, 2, 3, 319]\n', '1\n2\n3\n319\n'])(
  'token ids are read in any of their notations: %j',
  (text) => {
    expect(idsOf(text)).toEqual([1, 2, 3, 319]);
  },
);

test.each([
  ['1 2 3 320', /'320' is no token of this model; ids are 0 to 319/],
  ['1 2 three', /'three' is no token/],
  ['1 2 -3', /'-3' is no token/],
  ['1 2', /has 2 tokens, and --ctx-max asks for 3/],
])('a token file that cannot be used is refused: %j', (text, reason) => {
  expect(() => idsOf(text)).toThrow(reason);
});

test('a replay needs the tokens behind the last frontier', () => {
  expect(idsOf('1 2 3 4 5', { replay: true })).toHaveLength(5);
  expect(() => idsOf('1 2 3 4', { replay: true })).toThrow(
    '--replay needs the 2 after --ctx-max 3 too',
  );
});
