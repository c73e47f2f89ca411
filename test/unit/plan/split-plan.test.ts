import fc from 'fast-check';
import { describe, expect, it, test } from 'vitest';
import {
  deviceBytesOf,
  hostBytesOf,
  isSameLoad,
  PlanError,
  planSplit,
  planSplitSession,
  sharedPlan,
} from '../../../src/plan/index.js';
import type { GpuFacts, PlanRequest, SplitPlan } from '../../../src/plan/index.js';
import { card, gib, model, refusal } from './machines.js';

const lastLayer = model.shape.layerCount - 1;
const context = 32768;

function cards(...freeGib: number[]): GpuFacts[] {
  return freeGib.map((free, index) => ({ ...card(free), index }));
}

function split(gpus: readonly GpuFacts[], request: PlanRequest = {}, ramGib = 256): SplitPlan {
  return planSplit(model, { memoryAvailable: ramGib * gib, gpus }, { context, ...request });
}

function places({ parts }: SplitPlan): (number | 'cpu')[] {
  return parts.map(({ plan }) => (plan.backend === 'cpu' ? 'cpu' : plan.device.index));
}

function texts({ reasons }: SplitPlan, kind: string): string {
  return reasons
    .filter((reason) => reason.kind === kind)
    .map(({ text }) => text)
    .join('\n');
}

describe('several devices', () => {
  it('share the layers in order, the embedding on the first and the head on the last', () => {
    const { parts } = split(cards(50, 50, 50));

    expect(parts.map(({ embedding, head }) => [embedding, head])).toEqual([
      [true, false],
      [false, true],
    ]);
    expect(parts[0].layers.first).toBe(0);
    expect(parts[1]?.layers).toEqual({ first: parts[0].layers.last + 1, last: lastLayer });
    expect(parts.map(({ plan }) => plan.weights.place)).toEqual(['device', 'device']);
    expect(parts.reduce((bytes, { plan }) => bytes + plan.weights.bytes, 0)).toBe(
      model.bytes.total,
    );
  });

  it('say where the layers go, and which device stays empty', () => {
    const plan = split(cards(50, 50, 50));

    expect(texts(plan, 'headline')).toMatch(
      /layers 0 to \d+ with the embedding go to cuda device 0 .*\nlayers \d+ to 42 with the output head go to cuda device 1 /,
    );
    expect(texts(plan, 'headline')).toContain('cuda device 2 (a card) stays empty');
  });

  it('of which the first has room for all are one device', () => {
    const plan = split(cards(140, 140));

    expect(places(plan)).toEqual([0]);
    expect(plan.parts[0]).toMatchObject({ embedding: true, head: true });
    expect(texts(plan, 'headline')).toContain('device 1 (a card) stays empty, because one device');
    expect(sharedPlan(plan)).toMatchObject({ weights: { place: 'device' }, reasons: plan.reasons });
  });

  it('are passed over when not even one layer fits', () => {
    expect(places(split(cards(2, 100, 100)))).toEqual([1]);
    expect(places(split(cards(60, 2, 60)))).toEqual([0, 2]);
  });

  it('keep what fills a budget to the byte', () => {
    const roomy = split(cards(60, 60), { prefillChunk: 512 });
    const exact = deviceBytesOf(roomy.parts[0].plan as never) + gib / 2;
    const budget = (bytes: number): SplitPlan =>
      split([{ ...cards(60)[0]!, freeBytes: bytes }, { ...cards(60, 60)[1]! }], {
        prefillChunk: 512,
        gpu: { budgetsGib: [60, 60] },
      });

    expect(budget(exact).parts[0].layers).toEqual(roomy.parts[0].layers);
    expect(budget(exact - 1).parts[0].layers.last).toBe(roomy.parts[0].layers.last - 1);
  });

  it('have budgets of their own, less the margin of each', () => {
    const { parts } = split(cards(100, 100), { gpu: { budgetsGib: [40, 60] } });

    expect(parts.map(({ plan }) => plan.backend !== 'cpu' && plan.device.budgetBytes)).toEqual([
      39.5 * gib,
      59.5 * gib,
    ]);
  });

  it('leave to the processor what fits on none, and warn of it', () => {
    const plan = split(cards(40, 20));
    const last = plan.parts.at(-1);

    expect(places(plan)).toEqual([0, 1, 'cpu']);
    expect(last).toMatchObject({ head: true, layers: { last: lastLayer } });
    expect(texts(plan, 'warning')).toMatch(/layers \d+ to 42 with the output head .*processor/);
  });

  it('have one prefill chunk, the largest with the fewest layers on the processor', () => {
    const chunks = (gpus: readonly GpuFacts[]): number[] =>
      split(gpus).parts.map(({ plan }) => plan.prefillChunk);

    expect(new Set(chunks(cards(60, 60)))).toEqual(new Set([4096]));
    expect(new Set(chunks(cards(46, 44)))).toEqual(new Set([1024]));
    expect(chunks(cards(40, 20))).toHaveLength(3);
    expect(new Set(chunks(cards(40, 20))).size).toBe(1);
  });

  it('that hold nothing are refused with the sums', () => {
    expect(refusal(() => split(cards(2, 1)))).toMatch(
      /^layer 0 with the embedding .* needs .* GiB, .*device 0 .*device 1 .*--ctx.*--gpu-vram/,
    );
  });

  it.each([
    ['--ssd-streaming', { experts: { streaming: true } }],
    ['--weight-paging', { paging: {} }],
  ])('are refused with %s, for the real reason', (option, request) => {
    expect(refusal(() => split(cards(48, 48), request))).toMatch(
      new RegExp(`^${option} is for one GPU, .* shared by 2 \\(0, 1\\): .* belong.* to one device`),
    );
  });

  it.each([
    [{ resident: true }, 'headline', '--gpu-resident makes no difference'],
    [{ copyAskedBy: 'DS4_X' }, 'headline', 'DS4_X makes no difference'],
    [{ resident: false }, 'warning', '--no-gpu-resident has no effect'],
  ])('hold their layers whole whatever is said about the whole copy: %j', (gpu, kind, text) => {
    const plan = split(cards(48, 48), { gpu });

    expect(texts(plan, kind).split(text)).toHaveLength(2);
    expect(plan.parts.map((part) => part.plan.weights.place)).toEqual(['device', 'device']);
  });

  it('of which one fails to copy keep their layers, with the experts of that one in main memory', () => {
    const before = split(cards(48, 48));
    const after = split(cards(48, 48), {
      failures: [{ step: 'copy', device: 1, reason: 'the device said no' }],
    });

    expect(after.parts.map(({ layers }) => layers)).toEqual(
      before.parts.map(({ layers }) => layers),
    );
    expect(after.parts.map(({ plan }) => plan.weights.place)).toEqual(['device', 'mappedExperts']);
    expect(texts(after, 'warning')).toContain('device 1: the model could not be copied');
    expect(isSameLoad(sharedPlan(before), sharedPlan(after))).toBe(false);
  });

  it('that share main memory do not count it twice', () => {
    const gpus = cards(100, 100).map((gpu) => ({ ...gpu, kind: 'integrated' as const }));
    const plan = split(gpus, {}, 100);

    const taken = plan.parts.reduce(
      (bytes, part) => bytes + (part.plan.backend === 'cpu' ? 0 : deviceBytesOf(part.plan)),
      0,
    );
    expect(taken).toBeLessThan(100 * gib);
  });

  it('need main memory for the hidden states that go from one to the next', () => {
    const ofChunk = (plan: SplitPlan): number =>
      plan.hiddenStateBytes / (plan.parts[0].plan.prefillChunk * 4 * 4096 * 4);

    expect(ofChunk(split(cards(140, 140)))).toBe(0);
    expect(ofChunk(split(cards(60, 60)))).toBe(2);
    expect(ofChunk(split(cards(40, 40, 40)))).toBe(4);
    expect(texts(split(cards(60, 60)), 'note')).toMatch(
      /hidden states: 512\.00 MiB of main memory, for 4096 tokens on their way/,
    );
  });

  it('take a smaller prefill chunk where main memory has no room for those of a larger one', () => {
    const plan = split(cards(60, 60), {}, 0.8);

    expect(plan.parts.map((part) => part.plan.prefillChunk)).toEqual([2048, 2048]);
    expect(refusal(() => split(cards(60, 60), { prefillChunk: 4096 }, 0.4))).toMatch(
      /hidden states of 4096 tokens .* need 512\.00 MiB of main memory, 409\.60 MiB are free; try a smaller --prefill-chunk/,
    );
    expect(
      refusal(() =>
        planSplitSession(
          model,
          { memoryAvailable: 0.05 * gib, gpus: cards(20, 20) },
          { context },
          split(cards(60, 60)),
        ),
      ),
    ).toContain('hidden states of 512 tokens');
  });

  it('have room for the next session together or not at all', () => {
    const loaded = split(cards(60, 60));
    const facts = (free: number) => ({ memoryAvailable: 256 * gib, gpus: cards(free, free) });

    const second = planSplitSession(model, facts(8), { context: 8192 }, loaded);

    expect(second.parts.map(({ plan }) => plan.context)).toEqual([8192, 8192]);
    expect(new Set(second.parts.map(({ plan }) => plan.prefillChunk)).size).toBe(1);
    expect(
      refusal(() => planSplitSession(model, facts(0.6), { context: 900_000 }, loaded)),
    ).toMatch(/a context of 900000 needs/);
  });
});

test('every layer is in exactly one part, in order, and no budget is exceeded', () => {
  const gpus = fc.array(fc.double({ min: 0, max: 90, noNaN: true }), {
    minLength: 2,
    maxLength: 5,
  });
  fc.assert(
    fc.property(
      gpus,
      fc.double({ min: 4, max: 200, noNaN: true }),
      fc.integer({ min: 1, max: 200_000 }),
      fc.boolean(),
      (freeGib, ramGib, tokens, isNamed) => {
        const devices = cards(...freeGib);
        let plan: SplitPlan;
        try {
          plan = split(
            devices,
            {
              context: tokens,
              ...(isNamed ? { gpu: { budgetsGib: freeGib.map(Math.floor) } } : {}),
            },
            ramGib,
          );
        } catch (thrown) {
          expect(thrown).toBeInstanceOf(PlanError);
          return;
        }
        const layers = plan.parts.flatMap(({ layers: { first, last } }) =>
          Array.from({ length: last - first + 1 }, (_, index) => first + index),
        );
        expect(layers).toEqual(Array.from({ length: lastLayer + 1 }, (_, index) => index));
        expect(plan.parts.map(({ embedding }) => embedding).indexOf(true)).toBe(0);
        expect(plan.parts.map(({ head }) => head).indexOf(true)).toBe(plan.parts.length - 1);
        const order = places(plan).map((place) => (place === 'cpu' ? Infinity : place));
        expect(order).toEqual([...new Set(order)].sort((a, b) => a - b));
        expect(new Set(plan.parts.map((part) => part.plan.prefillChunk)).size).toBe(1);
        expect(plan.hiddenStateBytes).toBeLessThanOrEqual(ramGib * gib);
        for (const { plan: part } of plan.parts) {
          if (part.backend === 'cpu') {
            expect(hostBytesOf(part)).toBeLessThanOrEqual(ramGib * gib);
          } else {
            const free = devices[part.device.index]!.freeBytes;
            expect(part.weights.place).toBe('device');
            expect(deviceBytesOf(part)).toBeLessThanOrEqual(part.device.budgetBytes);
            expect(part.device.budgetBytes).toBeLessThanOrEqual(Math.max(0, free - gib / 2));
          }
        }
      },
    ),
    { numRuns: 150 },
  );
});
