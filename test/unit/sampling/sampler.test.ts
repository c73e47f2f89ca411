import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { Sampler, Xorshift64Star } from '../../../src/sampling/index.js';
import type { Candidates, SamplingOptions } from '../../../src/sampling/index.js';

const f32 = Math.fround;

function options(changes: Partial<SamplingOptions> = {}): SamplingOptions {
  return { temperature: 1, topP: 1, minP: 0, seed: 42n, ...changes };
}

function ids(sampler: Sampler, logits: ArrayLike<number>, count: number): (number | undefined)[] {
  const row = Float32Array.from(logits);
  return Array.from({ length: count }, () => sampler.sample(row));
}

/** The `count` best of a row, as the engine gives them. */
function best(logits: Float32Array, count: number): Candidates {
  const order = Array.from(logits.keys())
    .sort((a, b) => logits[b]! - logits[a]! || a - b)
    .slice(0, count);
  return {
    ids: Int32Array.from(order),
    logits: Float32Array.from(order, (id) => logits[id]!),
  };
}

/** The rules in the plainest words, with a full sort: what the sampler must agree with. */
function sampleByTheRules(logits: Float32Array, setting: SamplingOptions): number | undefined {
  const finite = Array.from(logits.keys()).filter((id) => Number.isFinite(logits[id]));
  const sorted = [...finite].sort((a, b) => logits[b]! - logits[a]! || a - b);
  const [top] = sorted;
  if (top === undefined || setting.temperature <= 0) {
    return top;
  }
  const temperature = f32(setting.temperature);
  const weight = (id: number) => f32(Math.exp(f32(f32(logits[id]! - logits[top]!) / temperature)));
  const sum = (list: readonly number[]) => list.reduce((all, id) => f32(all + weight(id)), 0);
  const minP = Math.max(0, f32(setting.minP));
  const topP = setting.topP > 0 && setting.topP <= 1 ? f32(setting.topP) : 1;
  const topK = Math.min(1024, setting.topK ?? 0);

  let kept: number[];
  let fallback = top;
  if (topP === 1 && topK === 0) {
    kept = finite.filter((id) => weight(id) >= minP);
  } else {
    const pool = topK > 0 ? sorted.slice(0, topK) : sorted;
    const total = topK > 0 ? sum(pool) : sum(finite);
    const light = pool.findIndex((id, index) => index > 0 && weight(id) < minP);
    const heavy = light < 0 ? pool : pool.slice(0, light);
    const crossing = heavy.findIndex(
      (_, index) => f32(sum(heavy.slice(0, index + 1)) / total) >= topP,
    );
    kept = crossing < 0 ? heavy : heavy.slice(0, crossing + 1);
    fallback = kept.at(-1)!;
  }

  let rest = f32(new Xorshift64Star(setting.seed).nextFloat() * sum(kept));
  return kept.find((id) => (rest = f32(rest - weight(id))) <= 0) ?? fallback;
}

const logit = fc.oneof(
  fc.float({ min: -12, max: 12, noNaN: true }),
  fc.integer({ min: -4, max: 4 }),
  fc.constantFrom(-Infinity, NaN, Infinity, 0, -0),
);
const row = fc
  .array(logit, { minLength: 1, maxLength: 80 })
  .map((values) => Float32Array.from(values));
const setting: fc.Arbitrary<SamplingOptions> = fc.record({
  temperature: fc.constantFrom(0, 0.3, 1, 1, 2.5, 100, 1e-6),
  topP: fc.constantFrom(1, 1, 0.95, 0.5, 0.05, 0, 1e-7),
  minP: fc.constantFrom(0, 0.05, 0.05, 0.3, 1, 2, -1),
  topK: fc.constantFrom(0, 0, 1, 5, 40),
  seed: fc.bigInt({ min: 0n, max: 2n ** 64n - 1n }),
});

describe('Sampler', () => {
  it('chooses what the rules say, for any row and setting', () => {
    fc.assert(
      fc.property(row, setting, (logits, chosen) => {
        expect(new Sampler(chosen).sample(logits)).toBe(sampleByTheRules(logits, chosen));
      }),
      { numRuns: 3000, seed: 1 },
    );
  });

  it('walks over equal weights in id order', () => {
    // 0.339 and 0.782 of 4: inside the second and the fourth of four equal weights.
    expect(ids(new Sampler(options()), [0, 0, 0, 0], 2)).toEqual([1, 3]);
  });

  it('walks in id order without top-p and in logit order with it', () => {
    // 0.339 of the sum 1.553 lies behind e^-3 + e^-2 but inside the best token's 1.
    const logits = [-3, -2, -1, 0];

    expect(ids(new Sampler(options()), logits, 1)).toEqual([2]);
    expect(ids(new Sampler(options({ topP: 0.999 })), logits, 1)).toEqual([3]);
  });

  it('returns the token at which nothing is left of the drawn number', () => {
    const half = 12108632093278387723n;
    expect(new Xorshift64Star(half).nextFloat()).toBe(0.5);

    expect(ids(new Sampler(options({ seed: half })), [0, 0], 1)).toEqual([0]);
  });

  it('draws each token as often as its probability says', () => {
    const logits = [0.1, 0.2, 0.3, 0.4].map(Math.log);

    const drawn = ids(new Sampler(options({ seed: 9n })), logits, 20_000);

    const share = (id: number) => drawn.filter((token) => token === id).length / drawn.length;
    expect(share(0)).toBeCloseTo(0.1, 1.7);
    expect(share(1)).toBeCloseTo(0.2, 1.7);
    expect(share(2)).toBeCloseTo(0.3, 1.7);
    expect(share(3)).toBeCloseTo(0.4, 1.7);
  });

  it.each([
    ['min-p keeps a token at the threshold', { minP: 0.5 }, [0, 1]],
    ['min-p drops a token below it', { minP: 0.51 }, [0]],
    ['top-p keeps the token that crosses it', { topP: 0.6 }, [0, 1]],
    ['top-p stops behind the token that reaches it', { topP: 0.5 }, [0]],
    ['top-p of 0 is no filter', { topP: 0 }, [0, 1, 2, 3]],
    ['top-p above 1 is no filter', { topP: 1.5 }, [0, 1, 2, 3]],
    ['a negative min-p is no filter', { minP: -0.5 }, [0, 1, 2, 3]],
    ['a min-p above 1 leaves the best', { minP: 3 }, [0]],
    ['top-k keeps that many', { topK: 3 }, [0, 1, 2]],
    ['top-p counts within top-k', { topK: 2, topP: 0.6 }, [0]],
    ['a low temperature leaves the best', { temperature: 1e-6 }, [0]],
  ])('%s', (_, changes, possible) => {
    const logits = [0.5, 0.25, 0.125, 0.125].map(Math.log);

    const drawn = ids(new Sampler(options({ seed: 3n, ...changes })), logits, 400);

    expect([...new Set(drawn)].sort()).toEqual(possible);
  });

  it.each([
    ['greedy', options({ temperature: 0 })],
    ['a temperature that is zero in float32', options({ temperature: 1e-60 })],
    ['a negative temperature', options({ temperature: -1 })],
  ])('takes the lowest of equal best ids with %s', (_, chosen) => {
    expect(ids(new Sampler(chosen), [1, 7, 3, 7, 7], 3)).toEqual([1, 1, 1]);
  });

  it('draws the same tokens for the same seed, and others for another', () => {
    const logits = Array.from({ length: 50 }, (_, id) => Math.sin(id));

    const first = ids(new Sampler(options({ seed: 7n })), logits, 32);

    expect(ids(new Sampler(options({ seed: 7n })), logits, 32)).toEqual(first);
    expect(ids(new Sampler(options({ seed: 8n })), logits, 32)).not.toEqual(first);
  });

  it('takes one number from the generator per sampled token and none for a certain one', () => {
    const generator = new Xorshift64Star(5n);
    const sampler = new Sampler(options({ seed: 5n }));
    const expected = Array.from({ length: 20 }, () => Math.ceil(generator.nextFloat() * 1024) - 1);

    expect(ids(sampler, new Float32Array(1024), 20)).toEqual(expected);
  });

  it.each([
    ['an empty row', []],
    ['NaN alone', [NaN, NaN]],
    ['negative infinity alone', [-Infinity, -Infinity]],
    ['no finite value', [NaN, Infinity, -Infinity]],
  ])('chooses nothing from %s', (_, logits) => {
    for (const temperature of [0, 1, 1e-6, 1e6]) {
      for (const changes of [{}, { topP: 0 }, { topP: 0.5 }, { minP: 1 }, { topK: 3 }]) {
        const sampler = new Sampler(options({ temperature, ...changes }));
        expect(sampler.sample(Float32Array.from(logits))).toBeUndefined();
      }
    }
  });

  it('never chooses a NaN or infinite logit', () => {
    const logits = [NaN, 0, Infinity, 0.5, -Infinity, NaN];

    for (const changes of [{}, { topP: 0.9 }, { minP: 0.01 }, { topK: 4 }, { temperature: 0 }]) {
      const drawn = ids(new Sampler(options(changes)), logits, 100);
      expect(drawn.filter((id) => id !== 1 && id !== 3)).toEqual([]);
    }
  });

  it.each(['temperature', 'topP', 'minP', 'topK'])('refuses NaN as %s', (name) => {
    expect(() => new Sampler(options({ [name]: NaN }))).toThrow(name);
  });

  it('survives logits at the ends of float32', () => {
    const sampler = new Sampler(options({ topP: 0.9 }));

    expect(ids(sampler, [3.4e38, -3.4e38, 3.4e38], 50)).not.toContain(1);
  });
});

describe('sampling from candidates', () => {
  it('gives the token of the full row whenever it does not ask for all logits', () => {
    fc.assert(
      fc.property(row, setting, fc.integer({ min: 1, max: 90 }), (logits, chosen, count) => {
        const finite = logits.map((value) => (Number.isFinite(value) ? value : -Infinity));
        const candidates = best(finite, count);
        const sampler = new Sampler(chosen);
        fc.pre(!sampler.needsAllLogits(candidates, finite.length));

        expect(sampler.sampleCandidates(candidates, finite.length)).toBe(
          new Sampler(chosen).sample(finite),
        );
      }),
      { numRuns: 2500, seed: 2 },
    );
  });

  it('stays equal over a stream of tokens', () => {
    const rows = Array.from({ length: 40 }, (_, step) =>
      Float32Array.from({ length: 3000 }, (__, id) => 6 * Math.sin(id * (step + 1) * 12.9898)),
    );
    const full = new Sampler(options({ minP: 0.2 }));
    const narrow = new Sampler(options({ minP: 0.2 }));

    const fromAll = rows.map((logits) => full.sample(logits));
    const fromBest = rows.map((logits) => narrow.sampleCandidates(best(logits, 1024), 3000));

    expect(fromBest).toEqual(fromAll);
    expect(new Set(fromAll).size).toBeGreaterThan(20);
  });

  const logits = Float32Array.from({ length: 100 }, (_, id) => -id / 10);
  it.each([
    ['greedy', { temperature: 0 }, 1, false],
    ['min-p above the last candidate', { minP: 0.05 }, 40, false],
    ['min-p below the last candidate', { minP: 0.05 }, 20, true],
    ['a temperature that lifts the last candidate', { minP: 0.05, temperature: 5 }, 40, true],
    ['no filter', {}, 99, true],
    ['no filter but every token', {}, 100, false],
    ['top-p', { topP: 0.9, minP: 0.05 }, 99, true],
    ['top-p but every token', { topP: 0.9 }, 100, false],
    ['top-k within the candidates', { topK: 20 }, 20, false],
    ['top-k beyond the candidates', { topK: 21 }, 20, true],
    ['no candidates', { temperature: 0 }, 0, true],
  ])('with %s', (_, changes, count, needed) => {
    const sampler = new Sampler(options(changes));

    expect(sampler.needsAllLogits(best(logits, count), logits.length)).toBe(needed);
  });

  it('needs no more when the candidates end in negative infinity', () => {
    const candidates = best(Float32Array.of(0, 1, -Infinity, -Infinity), 3);

    expect(new Sampler(options()).needsAllLogits(candidates, 4)).toBe(false);
    expect(new Sampler(options({ topP: 0.5 })).needsAllLogits(candidates, 4)).toBe(false);
  });

  it('asks for all logits when a threshold falls on the last candidate', () => {
    // Both weights are exactly 0.5, and the token left out may have the same.
    const candidates = best(Float32Array.of(0, f32(Math.log(0.5))), 2);
    const weight = f32(Math.exp(f32(Math.log(0.5))));

    expect(new Sampler(options({ minP: weight })).needsAllLogits(candidates, 3)).toBe(true);
  });

  it('trusts no order that holds NaN or infinity', () => {
    const sampler = new Sampler(options({ temperature: 0 }));
    const candidates = { ids: Int32Array.of(4, 2), logits: Float32Array.of(NaN, 1) };

    expect(sampler.needsAllLogits(candidates, 9)).toBe(true);
    expect(
      sampler.needsAllLogits({ ids: candidates.ids, logits: Float32Array.of(Infinity, 1) }, 9),
    ).toBe(true);
  });

  it('chooses nothing when the whole vocabulary is not finite', () => {
    const candidates = { ids: Int32Array.of(0, 1), logits: Float32Array.of(NaN, -Infinity) };

    expect(new Sampler(options()).sampleCandidates(candidates, 2)).toBeUndefined();
  });

  it('refuses candidates that do not suffice', () => {
    const candidates = best(logits, 10);

    expect(() => new Sampler(options()).sampleCandidates(candidates, 100)).toThrow(
      /10 candidates of 100 tokens/,
    );
  });

  it.each([
    ['never', { temperature: 0, topP: 0.5 }],
    ['never', { topK: 40, topP: 0.5 }],
    ['sometimes', { minP: 0.05 }],
    ['always', {}],
    ['always', { topP: 0.5, minP: 0.05 }],
  ])('tells ahead that it needs all logits %s for %j', (need, changes) => {
    expect(new Sampler(options(changes)).allLogits).toBe(need);
  });
});

describe('a row of full size', () => {
  it('follows top-p down a long tail of tiny weights', () => {
    const tail = new Float32Array(129_280).fill(-21);
    tail[70_000] = 0;
    const chosen = options({ topP: 0.99999, seed: 1n });
    const sorted = [70_000, ...Array.from(tail.keys()).filter((id) => id !== 70_000)];

    expect(new Sampler(chosen).sample(tail)).toBe(sampleSorted(tail, sorted, chosen));
  });

  const logits = Float32Array.from(
    { length: 129_280 },
    (_, id) => 8 * Math.sin(id * 78.233) * Math.cos(id * 0.317),
  );

  it.each([
    ['top-p', { topP: 0.95 }],
    ['top-p and min-p', { topP: 0.9, minP: 0.01 }],
    ['top-p at a high temperature', { topP: 0.99, temperature: 50 }],
    ['top-k', { topK: 1000 }],
    ['min-p', { minP: 0.05 }],
    ['no filter', {}],
  ])('gives with %s the token of the plain rules', (_, changes) => {
    const chosen = options({ seed: 11n, ...changes });
    const finite = Array.from(logits.keys());
    const sorted = finite.sort((a, b) => logits[b]! - logits[a]! || a - b);

    const token = new Sampler(chosen).sample(logits);

    expect(token).toBe(sampleSorted(logits, sorted, chosen));
  });
});

/** `sampleByTheRules` for long rows: the running sum is kept instead of made anew for each token. */
function sampleSorted(
  logits: Float32Array,
  sorted: readonly number[],
  setting: SamplingOptions,
): number | undefined {
  const top = logits[sorted[0]!]!;
  const weight = (id: number) =>
    f32(Math.exp(f32(f32(logits[id]! - top) / f32(setting.temperature))));
  const inIdOrder = setting.topP === 1 && setting.topK === undefined;
  const pool = setting.topK === undefined ? sorted : sorted.slice(0, setting.topK);
  const totalOrder = setting.topK === undefined ? Array.from(logits.keys()) : pool;
  const total = totalOrder.reduce((sum, id) => f32(sum + weight(id)), 0);
  const kept: number[] = [];
  let sum = 0;
  for (const id of inIdOrder ? totalOrder : pool) {
    if (weight(id) < f32(setting.minP) && (inIdOrder || kept.length > 0)) {
      if (inIdOrder) continue;
      break;
    }
    kept.push(id);
    sum = f32(sum + weight(id));
    if (!inIdOrder && f32(sum / total) >= f32(setting.topP)) break;
  }
  let rest = f32(new Xorshift64Star(setting.seed).nextFloat() * sum);
  return kept.find((id) => (rest = f32(rest - weight(id))) <= 0);
}
