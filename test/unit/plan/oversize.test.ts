import { describe, expect, test } from 'vitest';
import { OversizeError, planLoad } from '../../../src/plan/index.js';
import type { ExpertRequest, GpuFacts, LoadPlan } from '../../../src/plan/index.js';
import { card, gib, model, refusal, texts } from './machines.js';

const unit = 7_077_888;

interface Machine {
  readonly gpu?: GpuFacts;
  readonly budgetGib?: number;
  /** Main memory that is free, and that there is. */
  readonly ram?: readonly [free: number, all: number];
}

function streamed(request: ExpertRequest, { gpu, budgetGib, ram }: Machine): LoadPlan {
  const [free, all] = ram ?? [64, 64];
  return planLoad(
    model,
    { memoryAvailable: free * gib, memoryTotal: all * gib, gpu },
    { context: 4096, gpu: { budgetGib }, experts: { streaming: true, ...request } },
  );
}

/** A card of 24 GiB of which 20 are free. */
const busy: GpuFacts = { ...card(24), freeBytes: 20 * gib };

describe('a size that the machine can never have is refused with both numbers', () => {
  test.each<[string, ExpertRequest, Machine, RegExp]>([
    [
      'a tier larger than main memory',
      { hostGib: 5000 },
      { gpu: busy },
      /^--host-expert-cache 5000 asks for 5000\.00 GiB of main memory, and the machine has 64\.00 GiB; /,
    ],
    [
      'more experts than the model has',
      { cache: { kind: 'experts', count: 100_000 } },
      { gpu: card(96) },
      /^--ssd-streaming-cache-experts 100000 is more than the 11008 experts \(72\.56 GiB\) that there are; name at most 11008$/,
    ],
    [
      'more experts than the card can hold',
      { cache: { kind: 'experts', count: 9000 } },
      { gpu: busy },
      /^--ssd-streaming-cache-experts 9000 asks for 59\.33 GiB, and cuda device 0 \(a card\) has 24\.00 GiB in all; /,
    ],
    [
      'a cache larger than the card',
      { cache: { kind: 'gib', gib: 25 } },
      { gpu: busy },
      /^--ssd-streaming-cache-experts 25GB asks for 25\.00 GiB, and cuda device 0 .* has 24\.00 GiB in all; /,
    ],
    [
      'a cache on the CPU larger than main memory',
      { cache: { kind: 'gib', gib: 65 } },
      {},
      /^--ssd-streaming-cache-experts 65GB asks for 65\.00 GiB, and main memory has 64\.00 GiB in all; /,
    ],
    [
      'a cache larger than the budget of the card',
      { cache: { kind: 'gib', gib: 17 } },
      { gpu: busy, budgetGib: 16 },
      /^--ssd-streaming-cache-experts 17GB and --gpu-vram 16 contradict each other: 17\.00 GiB .* 16\.00 GiB for everything$/,
    ],
  ])('%s', (_name, request, machine, sentence) => {
    const work = (): LoadPlan => streamed(request, machine);

    expect(refusal(work)).toMatch(sentence);
    expect(work).toThrow(OversizeError);
  });
});

describe('a size that is only cut to what is free is a warning with both numbers', () => {
  test.each<[string, ExpertRequest, Machine, RegExp]>([
    [
      'the tier',
      { hostGib: 40 },
      { gpu: busy },
      /--host-expert-cache 40 is more than there is room for: 63\.75 GiB of main memory can be pinned .*half of that .* 31\.\d\d GiB are taken/,
    ],
    [
      'a number of experts',
      { cache: { kind: 'experts', count: 2500 } },
      { gpu: busy },
      /--ssd-streaming-cache-experts 2500 is more than the \d+\.\d\d GiB that are left take: \d+ experts/,
    ],
    [
      'a budget',
      { cache: { kind: 'gib', gib: 15 } },
      { gpu: busy },
      /--ssd-streaming-cache-experts 15GB is more than there is room for: \d+\.\d\d GiB are taken/,
    ],
    [
      'a cache on the CPU of a busy machine',
      { cache: { kind: 'gib', gib: 40 } },
      { ram: [32, 64] },
      /--ssd-streaming-cache-experts 40GB is more than there is room for: \d+\.\d\d GiB are taken/,
    ],
  ])('%s', (_name, request, machine, sentence) => {
    expect(texts(streamed(request, machine), 'warning')).toMatch(sentence);
  });

  test('the budget of a card, as it is larger than the card or than what is free of it', () => {
    const warning = (budgetGib: number): string =>
      texts(streamed({}, { gpu: busy, budgetGib }), 'warning');

    expect(warning(40)).toMatch(
      /--gpu-vram 40 is more than what device 0 has, 24\.00 GiB, of which 20\.00 GiB are free: no more/,
    );
    expect(warning(22)).toMatch(/--gpu-vram 22 is more than what is free on device 0, 20\.00 GiB/);
    expect(warning(20)).toBe('');
  });
});

test('a tier that fits is as large as was said, without a warning', () => {
  const planned = streamed({ hostGib: 31 }, { gpu: busy });

  expect(planned.weights.experts?.hostBytes).toBe(Math.floor((31 * gib) / unit) * unit);
  expect(texts(planned, 'warning')).toBe('');
});

test('a tier smaller than one expert holds none, and that is a warning', () => {
  const planned = streamed({ hostGib: 0.002 }, { gpu: busy });

  expect(planned.weights.experts?.hostBytes).toBe(0);
  expect(texts(planned, 'warning')).toMatch(
    /--host-expert-cache 0\.002 \(2\.05 MiB\) is less than one expert \(6\.75 MiB\)/,
  );
});

test('nothing is too much for a main memory of unknown size', () => {
  const planned = planLoad(
    model,
    { memoryAvailable: 64 * gib, gpu: busy },
    { experts: { streaming: true, hostGib: 5000 } },
  );

  expect(texts(planned, 'warning')).toMatch(/--host-expert-cache 5000 is more than there is room/);
});
