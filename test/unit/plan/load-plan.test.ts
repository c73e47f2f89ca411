import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { PlanError, planLoad, sessionBytes } from '../../../src/plan/index.js';
import type { ModelDescription } from '../../../src/model/index.js';
import { flash, gib, modelOf } from './machines.js';

/** So many bytes, nine tenths of them in routed experts. */
function model(totalBytes: number): ModelDescription {
  const expert = (totalBytes * 0.9) / flash.layerCount / flash.expertCount / 3;
  return modelOf(flash, {
    expert: [expert, expert, expert],
    embedding: totalBytes * 0.02,
    head: totalBytes * 0.02,
    layer: (totalBytes * 0.06) / flash.layerCount,
  });
}

const everything = { first: 0, last: 42 };

describe('the KV cache', () => {
  test('grows by 13 760 bytes a position on Flash', () => {
    expect(sessionBytes(flash, everything, 32768, 512).perPosition).toBe(13_760);
  });

  test('of a slice and its complement add up to the whole', () => {
    const whole = sessionBytes(flash, everything, 32768, 512).kv;

    const front = sessionBytes(flash, { first: 0, last: 20 }, 32768, 512).kv;
    const back = sessionBytes(flash, { first: 21, last: 42 }, 32768, 512).kv;

    expect(front + back).toBe(whole);
  });
});

describe('a CPU plan', () => {
  test('leaves the weights in the mapping and says so', () => {
    const plan = planLoad(model(81 * gib), { memoryAvailable: 128 * gib }, { context: 32768 });

    expect(plan.weights).toMatchObject({ place: 'host', source: 'mmap' });
    expect(plan.weights.bytes / gib).toBeCloseTo(81);
    expect(plan.reasons.every(({ kind }) => kind === 'note')).toBe(true);
  });

  test('warns when the weights exceed the memory', () => {
    const plan = planLoad(model(81 * gib), { memoryAvailable: 16 * gib }, { context: 4096 });

    const warnings = plan.reasons.filter(({ kind }) => kind === 'warning');
    expect(warnings.map(({ text }) => text).join()).toMatch(/81\.00 GiB.*16\.00 GiB/);
  });

  test('warns when the context exceeds what the model was trained for', () => {
    const plan = planLoad(model(gib), { memoryAvailable: 64 * gib }, { context: 2_000_000 });

    expect(plan.reasons.at(-1)).toMatchObject({ kind: 'warning' });
    expect(plan.reasons.at(-1)?.text).toContain('1048576');
  });

  test('refuses to read weights that memory cannot hold', () => {
    const request = { context: 4096, source: 'read' } as const;

    expect(() => planLoad(model(81 * gib), { memoryAvailable: 64 * gib }, request)).toThrow(
      /--no-mmap/,
    );
  });

  test('refuses a context that memory cannot hold, and names one that it can', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 2 ** 31 - 1 }),
        fc.integer({ min: 1, max: 256 }),
        (context, memoryGib) => {
          const facts = { memoryAvailable: memoryGib * gib };
          try {
            const plan = planLoad(model(gib), facts, { context });
            expect(plan.kv.bytes).toBeLessThanOrEqual(facts.memoryAvailable);
          } catch (error) {
            expect(error).toBeInstanceOf(PlanError);
            const fitting = Number(/--ctx (\d+)/.exec((error as PlanError).message)?.[1]);
            expect(planLoad(model(gib), facts, { context: fitting }).context).toBe(fitting);
          }
        },
      ),
    );
  });

  test.each([
    [1_048_576, 32_768],
    [8_192, 8_192],
    [0, 32_768],
  ])('of a model trained for %i positions takes %i by default', (trained, context) => {
    const small = model(gib);
    const description = { ...small, shape: { ...small.shape, trainedContext: trained } };

    const plan = planLoad(description, { memoryAvailable: 64 * gib }, {});

    expect(plan.context).toBe(context);
    expect(plan.reasons.every(({ kind }) => kind === 'note')).toBe(true);
  });

  test('takes the whole context as one chunk when asked to', () => {
    const request = { context: 4000, prefillChunk: 'whole' } as const;

    expect(planLoad(model(gib), { memoryAvailable: 64 * gib }, request).prefillChunk).toBe(4000);
  });

  test('never makes a prefill chunk larger than the context', () => {
    expect(planLoad(model(gib), { memoryAvailable: gib }, { context: 16 }).prefillChunk).toBe(16);
  });
});
