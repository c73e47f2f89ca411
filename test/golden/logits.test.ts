// Logits of the prompt and of a teacher-forced continuation against float64 reference values.
// Tolerances: test/golden/README.md.
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Engine } from '../../src/engine/index.js';
import { evaluate, openEngine } from './evaluate.js';
import { GoldenSet, report, rowErrors } from './golden-set.js';

interface Bounds {
  readonly median: number;
  readonly worst: number;
  readonly argmaxShare: number;
}

interface Case {
  readonly tag: string;
  readonly roundTrips: boolean;
  readonly arithmetic: 'exact' | 'fast';
  readonly bounds: Bounds;
}

const float32: Bounds = { median: 1e-4, worst: 1e-4, argmaxShare: 1 };
const any = Number.POSITIVE_INFINITY;

const cases: Case[] = [
  ...['a-f32', 'a-f16', 'a-q8_0', 'b-iq2', 'b-q4k', 'b-mxfp4'].map((tag): Case => ({
    tag,
    roundTrips: false,
    arithmetic: 'exact',
    bounds: float32,
  })),
  // Values that fall on the other side of a rounding boundary move whole rows; argmax may flip on near ties.
  {
    tag: 'b-iq2-qat',
    roundTrips: true,
    arithmetic: 'exact',
    bounds: { median: 3e-3, worst: 1e-2, argmaxShare: 0.9 },
  },
  // Float weights keep float32 activations on the fast path too.
  ...['a-f32', 'a-f16'].map((tag): Case => ({
    tag,
    roundTrips: false,
    arithmetic: 'fast',
    bounds: float32,
  })),
  // 8-bit activations: medians only, because a flipped expert choice moves a row by any amount.
  ...['b-iq2', 'b-q4k', 'b-mxfp4'].map((tag): Case => ({
    tag,
    roundTrips: false,
    arithmetic: 'fast',
    bounds: { median: 0.1, worst: any, argmaxShare: 0.7 },
  })),
  // Rounding KV rows after 8-bit activations doubles the noise: 0.05 to 0.10 was measured.
  {
    tag: 'b-iq2-qat',
    roundTrips: true,
    arithmetic: 'fast',
    bounds: { median: 0.2, worst: any, argmaxShare: 0.7 },
  },
  {
    tag: 'a-q8_0',
    roundTrips: false,
    arithmetic: 'fast',
    bounds: { median: 0.25, worst: any, argmaxShare: 0.6 },
  },
];

const present = cases.filter(({ tag }) => GoldenSet.find(tag) !== undefined);

test('the golden sets of the tree are all present', () => {
  const tags = new Set(present.map(({ tag }) => tag));

  expect([...tags]).toEqual(expect.arrayContaining(['a-f16', 'a-q8_0', 'b-iq2', 'b-iq2-qat']));
});

describe.each(present)(
  '$tag, $arithmetic arithmetic',
  ({ tag, roundTrips, arithmetic, bounds }) => {
    const golden = GoldenSet.find(tag)!;
    const vocab = golden.info.vocab_size;
    let engine: Engine;

    beforeAll(async () => {
      engine = await openEngine(golden.modelPath, { arithmetic, roundTrips });
    });
    afterAll(async () => {
      await engine.close();
    });

    /** A wrong epsilon hides under the bound of the long sequences; five tokens show it. */
    const worstOf = (name: string): number =>
      name === 's5' && bounds === float32 ? 5e-6 : bounds.worst;

    function check(name: string, what: string, got: Float32Array, want: Float32Array): void {
      const errors = rowErrors(got, want, vocab);
      report(`${tag} ${arithmetic} ${name} ${what}`, errors);
      expect(errors.median).toBeLessThanOrEqual(bounds.median);
      expect(errors.worst).toBeLessThanOrEqual(worstOf(name));
      expect(errors.argmaxShare).toBeGreaterThanOrEqual(bounds.argmaxShare);
    }

    test.each(golden.info.sequences)(
      '$name: prompt and continuation match',
      async ({ name, logits_from }) => {
        const prompt = golden.integers(`${name}/tokens`).values;
        const continuation = golden.integers(`${name}/decode_tokens`).values;
        await using session = await engine.openSession({ context: 1024, prefillChunk: 256 });

        const prefill = await evaluate(session, prompt, 256);
        const decode = await evaluate(session, continuation, 1);

        check(
          name,
          'prefill',
          prefill.logits.subarray(logits_from * vocab),
          golden.floats(`${name}/logits`).values,
        );
        check(name, 'decode', decode.logits, golden.floats(`${name}/decode_logits`).values);
      },
    );
  },
);
