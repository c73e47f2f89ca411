import { Ds4Error, ExitCode } from '../error/index.js';
import { logprobOf } from '../sampling/index.js';
import { NoFiniteLogitError } from './errors.js';
import type { Timeline } from './timeline.js';

/** Tokens at the start that are read and not scored, so that every scored one has some context. */
export const unscoredTokens = 32;

export interface Perplexity {
  readonly tokens: number;
  readonly scored: number;
  /** Sum of the negative natural log-probabilities. */
  readonly nll: number;
}

/** Logits that one evaluation may return: all rows of a chunk are in memory at once. */
const logitsAtOnce = 2 ** 24;

/** There is nothing to score. */
export class TextTooShortError extends Ds4Error {
  readonly exitCode = ExitCode.runtime;

  constructor(readonly tokens: number) {
    super(`the text has ${tokens} tokens; scoring needs more than ${unscoredTokens}`);
  }
}

/**
 * Scores a text: how likely the model finds each token after the ones before it. Reads at most `maxScored` tokens
 * after the first 32, and no more than the context holds.
 *
 * @param onScored called after each chunk with the tokens scored so far and in all
 */
export async function scoreText(
  timeline: Timeline,
  tokens: Int32Array,
  options: { readonly maxScored: number; readonly vocab: number },
  onScored?: (scored: number, total: number) => void,
): Promise<Perplexity> {
  if (tokens.length <= unscoredTokens) {
    throw new TextTooShortError(tokens.length);
  }
  const total = Math.min(
    options.maxScored,
    tokens.length - unscoredTokens,
    timeline.context - unscoredTokens,
  );
  if (total < 1) {
    throw new TextTooShortError(Math.min(tokens.length, timeline.context));
  }
  // The last scored token is only predicted, never evaluated.
  const evaluated = unscoredTokens + total - 1;
  const chunk = Math.max(
    1,
    Math.min(timeline.prefillChunk, Math.floor(logitsAtOnce / options.vocab)),
  );
  let nll = 0;
  let scored = 0;
  for (let start = 0; start < evaluated; start += chunk) {
    const end = Math.min(start + chunk, evaluated);
    const firstRow = Math.max(start, unscoredTokens - 1);
    const rows = Math.max(0, end - firstRow);
    const { logits } = await timeline.eval(tokens.slice(start, end), { logitsRows: rows });
    for (let row = 0; row < rows; row += 1) {
      const target = firstRow + row + 1;
      const rowLogits = (logits ?? new Float32Array()).subarray(
        row * options.vocab,
        (row + 1) * options.vocab,
      );
      const logprob = logprobOf(rowLogits, tokens[target] ?? 0);
      if (logprob === undefined) {
        throw new NoFiniteLogitError(target);
      }
      nll -= logprob;
      scored += 1;
    }
    onScored?.(scored, total);
  }
  return { tokens: tokens.length, scored, nll };
}
