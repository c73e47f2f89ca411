import { Chat } from '../../chat/index.js';
import type { Tokenizer } from '../../tokenizer/index.js';
import { RunError } from '../errors.js';
import type { BenchPrompt, BenchSettings } from './options.js';

/** Ids as `ds4 --dump-tokens` prints them in its first line, or with nothing but blanks between them. */
function readIds({ path, text }: BenchPrompt, vocab: number): Int32Array {
  const words = Buffer.from(text)
    .toString('latin1')
    .split(/[\s,[\]]+/)
    .filter((word) => word !== '');
  return Int32Array.from(words, (word) => {
    if (!/^[0-9]{1,9}$/.test(word) || Number(word) >= vocab) {
      throw new RunError(
        `token file ${path}: '${word}' is no token of this model; ids are 0 to ${vocab - 1}`,
      );
    }
    return Number(word);
  });
}

function tokensOf(
  prompt: BenchPrompt,
  system: string,
  tokenizer: Tokenizer,
  vocab: number,
): Int32Array {
  switch (prompt.form) {
    case 'raw':
      return tokenizer.encodeWithSpecials(prompt.text);
    case 'tokens':
      return readIds(prompt, vocab);
    case 'chat':
      return new Chat(tokenizer).render(
        [
          { role: 'system', content: system },
          { role: 'user', content: prompt.text },
        ],
        { think: 'none' },
      );
  }
}

/**
 * The tokens to evaluate.
 *
 * @throws RunError when there are too few of them.
 */
export function promptTokens(
  bench: BenchSettings,
  tokenizer: Tokenizer,
  vocab: number,
): Int32Array {
  const [prompt] = bench.prompts;
  if (prompt === undefined) {
    throw new Error('the prompt was not checked');
  }
  const { contextMax, replay, generate } = bench;
  const tokens = tokensOf(prompt, bench.system, tokenizer, vocab);
  const has = `prompt file ${prompt.path} has ${tokens.length} tokens`;
  if (tokens.length < contextMax) {
    throw new RunError(
      `${has}, and --ctx-max asks for ${contextMax}; use a longer text or a smaller --ctx-max`,
    );
  }
  if (replay && tokens.length < contextMax + generate) {
    throw new RunError(
      `${has}, and --replay needs the ${generate} after --ctx-max ${contextMax} too; ` +
        'use a longer text or fewer --gen-tokens',
    );
  }
  return tokens;
}
