import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { logprobOf, logSumExp, topLogprobs } from '../../../src/sampling/index.js';

const rows = fc
  .array(fc.float({ min: -30, max: 30, noNaN: true }), { minLength: 1, maxLength: 60 })
  .map((values) => Float32Array.from(values));

describe('log-probabilities', () => {
  it('sum to one over the vocabulary', () => {
    fc.assert(
      fc.property(rows, (logits) => {
        const sum = topLogprobs(logits, logits.length).reduce(
          (all, { logprob }) => all + Math.exp(logprob),
          0,
        );
        expect(sum).toBeCloseTo(1, 12);
      }),
      { seed: 1 },
    );
  });

  it('are sorted, ties by lower id, and equal those of single tokens', () => {
    fc.assert(
      fc.property(rows, fc.nat(70), (logits, count) => {
        const entries = topLogprobs(logits, count);
        const order = Array.from(logits.keys())
          .sort((a, b) => logits[b]! - logits[a]! || a - b)
          .slice(0, count);

        expect(entries.map(({ id }) => id)).toEqual(order);
        expect(entries.map(({ logit }) => logit)).toEqual(order.map((id) => logits[id]));
        expect(entries.map(({ logprob }) => logprob)).toEqual(
          order.map((id) => logprobOf(logits, id)),
        );
      }),
      { seed: 2 },
    );
  });

  it('are computed in double precision', () => {
    const logits = new Float32Array(129_280).fill(0.1);

    expect(logprobOf(logits, 5)).toBeCloseTo(-Math.log(129_280), 9);
  });

  it('do not overflow for large logits', () => {
    expect(logprobOf(Float32Array.of(3e38, 3e38), 0)).toBeDefined();
    expect(logSumExp(Float32Array.of(1000, 1000))).toBeCloseTo(1000 + Math.LN2, 9);
  });

  it('leave out what is not finite', () => {
    const logits = Float32Array.of(NaN, 1, Infinity, 1, -Infinity);

    expect(topLogprobs(logits, 5).map(({ id }) => id)).toEqual([1, 3]);
    expect(logprobOf(logits, 1)).toBeCloseTo(-Math.LN2, 12);
    expect(logprobOf(logits, 0)).toBeUndefined();
    expect(logprobOf(logits, 4)).toBeUndefined();
  });

  it('are none when no logit is finite, or for a token that does not exist', () => {
    expect(topLogprobs(Float32Array.of(NaN, -Infinity), 3)).toEqual([]);
    expect(logSumExp(Float32Array.of(Infinity))).toBeUndefined();
    expect(logprobOf(Float32Array.of(1), 1)).toBeUndefined();
    expect(logprobOf(Float32Array.of(1), -1)).toBeUndefined();
  });
});
