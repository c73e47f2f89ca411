import { bestTokens } from './order.js';

/** One entry of a list of likely tokens; `logprob` is natural, over the whole vocabulary at temperature 1. */
export interface TokenLogprob {
  readonly id: number;
  readonly logit: number;
  readonly logprob: number;
}

/**
 * ln of the sum of exp over all finite logits, in double precision.
 *
 * @returns undefined when no logit is finite.
 */
export function logSumExp(logits: Float32Array): number | undefined {
  let max = -Infinity;
  for (const logit of logits) {
    if (logit > max && logit < Infinity) {
      max = logit;
    }
  }
  if (max === -Infinity) {
    return undefined;
  }
  let sum = 0;
  for (const logit of logits) {
    if (Number.isFinite(logit)) {
      sum += Math.exp(logit - max);
    }
  }
  return max + Math.log(sum);
}

/**
 * Log-probability of one token at temperature 1.
 *
 * @returns undefined when `id` is outside the logits or its logit is not finite.
 */
export function logprobOf(logits: Float32Array, id: number): number | undefined {
  const logit = logits[id];
  if (logit === undefined || !Number.isFinite(logit)) {
    return undefined;
  }
  const normaliser = logSumExp(logits);
  return normaliser === undefined ? undefined : logit - normaliser;
}

/** The `count` likeliest tokens, best first, ties by lower id; fewer when fewer logits are finite, none when none is. */
export function topLogprobs(logits: Float32Array, count: number): TokenLogprob[] {
  const normaliser = logSumExp(logits);
  if (normaliser === undefined) {
    return [];
  }
  const entries: TokenLogprob[] = [];
  for (const id of bestTokens(logits, count)) {
    const logit = logits[id];
    if (logit !== undefined) {
      entries.push({ id, logit, logprob: logit - normaliser });
    }
  }
  return entries;
}
