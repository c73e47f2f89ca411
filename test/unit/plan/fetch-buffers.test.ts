import { describe, expect, test } from 'vitest';
import { hostBytesOf } from '../../../src/plan/index.js';
import { card, gib, hostPlan, plan, refusal, texts } from './machines.js';

/** Two buffers of 4 MiB and two blocks for each reader, and for whoever waits. */
const perReader = 2 * (4 * 2 ** 20 + 8192);

const streaming = { experts: { streaming: true } } as const;

describe('readers of weights', () => {
  test.each([undefined, 3])('%s named are counted with their buffers', (readThreads) => {
    const readers = readThreads ?? 16;
    for (const planned of [
      hostPlan({ ...streaming, readThreads }),
      plan(card(24), {}, { ...streaming, readThreads }),
      plan(card(24), {}, { paging: { slots: 4 }, readThreads }),
    ]) {
      expect(planned.weights).toMatchObject({
        readThreads: readers,
        fetchBytes: (readers + 1) * perReader,
      });
      expect(texts(planned, 'note')).toMatch(
        new RegExp(`readers of weights: ${readers}, with [0-9.]+ MiB of main memory`),
      );
    }
  });

  test.each([
    ['on the processor', (readThreads: number) => hostPlan({ ...streaming, readThreads })],
    [
      'on a GPU',
      (readThreads: number) =>
        plan(card(24), {}, { experts: { streaming: true, hostTier: false }, readThreads }),
    ],
  ])('%s take their buffers of main memory', (_, planFor) => {
    const few = planFor(1);
    const many = planFor(101);

    expect(many.weights.fetchBytes! - few.weights.fetchBytes!).toBe(100 * perReader);
    const slots = (planned: typeof few): number =>
      planned.backend === 'cpu' ? (planned.weights.experts?.slotBytes ?? 0) : 0;
    const beside = (planned: typeof few): number => hostBytesOf(planned) - slots(planned);
    expect(beside(many) - beside(few)).toBe(100 * perReader);
  });

  test('are fewer where main memory is short, unless they are named', () => {
    const short = { ...streaming, experts: { ...streaming.experts, hostTier: false }, ramGib: 0.5 };

    expect(plan(card(24), {}, short).weights.readThreads).toBe(4);
    expect(plan(card(24), {}, { ...short, readThreads: 16 }).weights.readThreads).toBe(16);
  });

  test('leave no less than the tier in main memory needs', () => {
    const planned = plan(card(24), {}, { ...streaming, ramGib: 12, readThreads: 1023 });

    expect(planned.weights.fetchBytes).toBe(1024 * perReader);
    expect(planned.weights.experts!.hostBytes).toBeGreaterThan(0);
    expect(hostBytesOf(planned)).toBeLessThanOrEqual(12 * gib);
  });

  test.each([
    ['on the processor', () => hostPlan({ ...streaming, ramGib: 4, readThreads: 1023 })],
    ['on a GPU', () => plan(card(24), {}, { ...streaming, ramGib: 4, readThreads: 1023 })],
  ])('that main memory has no buffers for are refused %s, with both numbers', (_, work) => {
    expect(refusal(work)).toMatch(
      /1023 readers.* need 8\.02 GiB of main memory, (4\.00|3\.75) GiB are free/,
    );
  });

  test('are none where everything has its place', () => {
    for (const planned of [hostPlan({}), plan(card(96))]) {
      expect(planned.weights).not.toHaveProperty('fetchBytes');
      expect(texts(planned, 'note')).not.toContain('readers of weights');
    }
  });
});

describe('buffers of a session on the processor', () => {
  test('are counted and said', () => {
    const planned = hostPlan({});

    expect(planned.bufferBytes).toBeGreaterThan(2 ** 27);
    expect(hostBytesOf(planned)).toBe(planned.kv.bytes + planned.bufferBytes);
    expect(texts(planned, 'note')).toMatch(/KV cache: .* and at most [0-9.]+ MiB of buffers/);
  });

  test('grow with the prefill chunk', () => {
    expect(hostPlan({ prefillChunk: 1024 }).bufferBytes).toBeGreaterThan(
      1.5 * hostPlan({ prefillChunk: 256 }).bufferBytes,
    );
  });

  test('count for the largest context', () => {
    const ramGib = (hostPlan({}).kv.bytes + hostPlan({}).bufferBytes - 2 ** 20) / gib;

    expect(refusal(() => hostPlan({ ramGib }))).toMatch(/KV cache and buffers.* try --ctx [0-9]+/);
  });
});
