// Plans for a model file that is in main memory already, beside what is available of that.
import { describe, expect, it } from 'vitest';
import { hostBytesOf, planLoad, planSplit, tokenCost } from '../../../src/plan/index.js';
import type { GpuPlan, MachineFacts, PlanRequest } from '../../../src/plan/index.js';
import { card, gib, model, refusal, texts } from './machines.js';

/** 128 GiB, of which the file (81 GiB) has taken its part. */
const beside: MachineFacts = { memoryAvailable: 40 * gib, isFileInRamDisk: true };
const sentence = /the model file is in a RAM disk/;

function gpuPlan(facts: MachineFacts, request: PlanRequest = {}): GpuPlan {
  const planned = planLoad(model, { gpu: card(24), ...facts }, { context: 32768, ...request });
  if (planned.backend === 'cpu') {
    throw new Error('planned for the CPU');
  }
  return planned;
}

describe('a GPU beside a file in a RAM disk', () => {
  it('reads the experts in place, where they would not fit a second time', () => {
    const planned = gpuPlan(beside);

    expect(planned.weights).toMatchObject({
      place: 'mappedExperts',
      source: 'mmap',
      pinCopies: false,
      dropReadPages: false,
    });
    expect(texts(planned, 'note')).toMatch(sentence);
    expect(hostBytesOf(planned)).toBeLessThan(gib);
  });

  it('on a disk they would be streamed, and nothing is said of a RAM disk', () => {
    const planned = gpuPlan({ memoryAvailable: 40 * gib });

    expect(planned.weights.place).toBe('streamExperts');
    expect(texts(planned, 'note')).not.toMatch(sentence);
  });

  it('shares its memory with it', () => {
    const gpu = card(40, 'integrated');

    expect(gpuPlan({ ...beside, gpu }).weights.place).toBe('mappedExperts');
    expect(gpuPlan({ ...beside, gpu, isFileInRamDisk: false }).weights.place).toBe('streamExperts');
  });

  it('takes main memory for copies as ever', () => {
    for (const request of [
      { source: 'read' },
      { failures: [{ step: 'map', reason: 'the driver refuses' }] },
    ] as const) {
      expect(gpuPlan(beside, request).weights.place).toBe('streamExperts');

      const large = gpuPlan({ ...beside, memoryAvailable: 128 * gib }, request);
      expect(large.weights).toMatchObject({ place: 'mappedExperts', pinCopies: true });
      expect(hostBytesOf(large)).toBeGreaterThan(72 * gib);
    }
  });

  it('that streams all the same reads no disk, and not past a page cache', () => {
    const request = { experts: { streaming: true } };
    const planned = gpuPlan(beside, request);
    const facts = { ...beside, isFileInRamDisk: false };
    const onDisk = gpuPlan(facts, request);

    expect(planned.weights).toMatchObject({ source: 'read', dropReadPages: false });
    expect(onDisk.weights).toMatchObject({ source: 'direct', dropReadPages: true });
    expect(tokenCost(planned, model, beside).diskBytes).toBe(0);
    expect(tokenCost(onDisk, model, facts).diskBytes).toBeGreaterThan(0);
  });

  it('pins weights that a small GPU has no room for out of it', () => {
    const tiny: PlanRequest = { context: 4096, experts: { streaming: true, hostTier: false } };
    const facts = { memoryAvailable: 2 * gib, gpu: card(6) };

    expect(gpuPlan({ ...facts, isFileInRamDisk: true }, tiny).weights.pinnedBytes).toBeGreaterThan(
      2 * gib,
    );
    expect(refusal(() => gpuPlan(facts, tiny))).toMatch(/fit neither into GPU memory/);
  });
});

describe('several GPUs beside a file in a RAM disk', () => {
  it('each read their experts in place after the copies have failed', () => {
    const gpus = [0, 1].map((index) => ({ ...card(60), index }));
    const failures = [0, 1].map((device) => ({ step: 'copy', device, reason: 'no' }) as const);
    const split = planSplit(model, { ...beside, gpus }, { context: 32768, failures });

    expect(split.parts.map(({ plan }) => plan.weights.place)).toEqual([
      'mappedExperts',
      'mappedExperts',
    ]);
    expect(split.reasons.filter(({ text }) => sentence.test(text))).toHaveLength(1);
  });
});

describe('the processor beside a file in a RAM disk', () => {
  const host = (facts: MachineFacts, request: PlanRequest = {}) =>
    planLoad(model, facts, { context: 4096, ...request });

  it('does not warn of a disk, and computes from none', () => {
    const planned = host(beside);
    const onDisk = host({ memoryAvailable: 40 * gib });

    expect(texts(planned, 'warning')).toBe('');
    expect(texts(planned, 'note')).toMatch(sentence);
    expect(tokenCost(planned, model, beside).diskBytes).toBe(0);
    expect(texts(onDisk, 'warning')).toMatch(/read from disk again and again/);
    expect(tokenCost(onDisk, model, { memoryAvailable: 40 * gib }).diskBytes).toBeGreaterThan(0);
  });

  it('may lock what is there, but not a copy of it', () => {
    expect(host(beside, { lock: true }).weights.lock).toBe(true);
    expect(host({ memoryAvailable: 40 * gib }, { lock: true }).weights.lock).toBe(false);
    expect(refusal(() => host(beside, { source: 'read' }))).toMatch(/--no-mmap/);
  });
});
