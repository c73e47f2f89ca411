import { describe, expect, test } from 'vitest';
import { placesOf, tokenCost } from '../../../src/plan/index.js';
import type { ExpertRequest } from '../../../src/plan/index.js';
import { card, gib, hostPlan, model, plan, refusal, session, texts } from './machines.js';

const unit = 7_077_888;

/** A 48 GB card that nobody else uses. */
const w7800 = { ...card(47.984), backend: 'rocm' } as const;

function experts(request: ExpertRequest, ramGib = 256, context = 32768) {
  const planned = plan(
    w7800,
    { budgetGib: 48 },
    { ramGib, context, experts: { streaming: true, ...request } },
  );
  return { planned, memory: planned.weights.experts! };
}

describe('an automatic cache', () => {
  test('takes 80 percent of the card less the other weights, when the reserve leaves more', () => {
    const { memory, planned } = experts({ reserveGib: 0 }, 256, 1024);

    expect(memory.slots).toBe(4580);
    expect(memory.slotBytes).toBe(4580 * unit);
    expect(memory.boundBy).toMatch(
      /80 % of 47\.98 GiB less 8\.20 GiB for the rest leave 30\.19 GiB.*0\.00 GiB in reserve; the 80 % bind/,
    );
    expect(texts(planned, 'headline')).toContain(memory.boundBy);
  });

  test('leaves the reserve free, 16 GiB unless said otherwise', () => {
    const { memory, planned } = experts({});

    const free = planned.device.freeBytes - memory.slotBytes - memory.transitBytes;
    const other = planned.weights.deviceBytes + planned.kv.bytes + planned.bufferBytes;
    expect(free - other).toBeGreaterThanOrEqual(planned.device.freeBytes / 3);
    expect(memory.boundBy).toMatch(/15\.99 GiB in reserve; what is free binds/);
    expect(memory.reserveBytes).toBeCloseTo(planned.device.freeBytes / 3, -1);
    expect(experts({ reserveGib: 4.5 }).memory.slots).toBeGreaterThan(memory.slots);
  });

  test('takes the share that the environment names', () => {
    expect(experts({ reserveGib: 0, percent: 50 }).memory.slots).toBe(
      Math.floor((47.984 * gib * 0.5 - model.bytes.nonRouted) / unit),
    );
  });

  test('that would hold less than one token is left out, and that is said', () => {
    const planned = plan(card(12), {}, { experts: { streaming: true, reserveGib: 11 } });

    expect(planned.weights.experts).toMatchObject({ slots: 0, slotBytes: 0 });
    expect(planned.weights.experts!.transitBytes).toBeGreaterThanOrEqual(6 * unit);
    expect(texts(planned, 'headline')).toMatch(/no expert is kept/);
    // One token's experts are in what was to stay free.
    expect(planned.weights.experts).toMatchObject({ reserveBytes: 0 });
  });
});

describe('a cache of so many experts', () => {
  test.each([6, 7, 256])('has exactly %i slots', (count) => {
    const { memory } = experts({ cache: { kind: 'experts', count } });

    expect(memory.slots).toBe(count);
    // What passes through has what is left, two layers of experts at most.
    expect(memory.transitBytes).toBe(2 * 256 * unit);
  });

  test('holds the experts of one token at least', () => {
    expect(refusal(() => experts({ cache: { kind: 'experts', count: 5 } }))).toMatch(
      /--ssd-streaming-cache-experts 5 .*6 experts \(40\.50 MiB\)/,
    );
  });

  test('is capped with a sentence when there is no room for it', () => {
    const { memory, planned } = experts({ cache: { kind: 'experts', count: 6000 } });

    expect(memory.slots).toBeLessThan(6000);
    expect(texts(planned, 'warning')).toMatch(/6000 is more than/);
  });
});

describe('a cache of so many GiB', () => {
  test('gives two layers of it to prefill', () => {
    const { memory } = experts({ cache: { kind: 'gib', gib: 20 } });

    expect(memory.transitBytes).toBe(2 * 256 * unit);
    expect(memory.transitBytes / gib).toBe(3.375);
    expect(memory.slots).toBe(Math.floor((20 * gib - 2 * 256 * unit) / unit));
  });

  test('is refused when prefill leaves less than one token of it', () => {
    expect(refusal(() => experts({ cache: { kind: 'gib', gib: 3 } }))).toMatch(
      /3GB is too little.*3\.38 GiB.*at least 4GB/,
    );
  });

  test('is capped with a sentence when there is no room for it', () => {
    const { memory, planned } = experts({ cache: { kind: 'gib', gib: 45 } });

    expect(texts(planned, 'warning')).toMatch(/45GB is more than there is room for/);
    expect(memory.slotBytes + memory.transitBytes).toBeLessThan(40 * gib);
  });
});

test('a budget that is nearly there has no more slots than the whole of it', () => {
  const slots = (budgetGib: number) =>
    plan(
      card(48),
      { budgetGib },
      { prefillChunk: 512, experts: { streaming: true, cache: { kind: 'gib', gib: 4 } } },
    ).weights.experts!;
  const cut = slots(13);
  const whole = slots(20);

  expect(cut.slotBytes + cut.transitBytes).toBeLessThan(4 * gib);
  expect(whole).toMatchObject({ slots: 94, transitBytes: 2 * 256 * unit });
  expect(cut.slots).toBeLessThanOrEqual(94);
});

describe('the tier in main memory', () => {
  test('takes half of what is free, or what was said if that is less', () => {
    const half = experts({}, 64).memory.hostBytes;
    expect(half).toBeLessThanOrEqual(32 * gib);
    expect(half).toBeGreaterThan(31 * gib);
    expect(experts({ hostGib: 10 }, 64).memory.hostBytes).toBe(
      Math.floor((10 * gib) / unit) * unit,
    );
    expect(experts({ hostGib: 0 }, 64).memory.hostBytes).toBe(0);
  });

  test('holds no more experts than have no slot', () => {
    const { slots, hostBytes } = experts({}, 512).memory;

    expect(slots + hostBytes / unit).toBe(11_008);
  });

  test('is left out by the environment, and after it has failed', () => {
    expect(experts({ hostTier: false }).memory.hostBytes).toBe(0);
    const failures = [{ step: 'hostTier', reason: 'no pinned memory' }] as const;
    const planned = plan(w7800, {}, { experts: { streaming: true }, failures });
    expect(planned.weights.experts?.hostBytes).toBe(0);
    expect(texts(planned, 'warning')).toContain('no pinned memory');
  });
});

test('slots that could not be had are halved, four times at most', () => {
  const failing = (times: number) =>
    plan(
      w7800,
      {},
      {
        experts: { streaming: true },
        failures: Array.from({ length: times }, () => ({ step: 'slots', reason: 'no' }) as const),
      },
    ).weights.experts!.slots;
  const whole = failing(0);

  expect(failing(1)).toBe(Math.floor(whole / 2));
  expect(failing(4)).toBe(Math.floor(whole / 16));
  expect(failing(5)).toBe(failing(4));
});

describe('weights outside the experts that could not be copied', () => {
  const failing = (times: number) =>
    plan(
      w7800,
      {},
      {
        experts: { streaming: true },
        failures: Array.from({ length: times }, () => ({ step: 'weights', reason: 'no' }) as const),
      },
    );

  test('are halved each time, four times at most, and never to the same again', () => {
    const bytes = [0, 1, 2, 3, 4, 5].map((times) => failing(times).weights.deviceBytes);

    for (const times of [1, 2, 3, 4]) {
      expect(bytes[times]).toBeLessThanOrEqual(bytes[times - 1]! / 2);
    }
    expect(bytes[5]).toBe(bytes[4]);
    expect(texts(failing(1), 'warning')).toMatch(/because memory for more could not be had: they/);
  });

  test('are halved from what a variable allows', () => {
    const limited = plan(
      w7800,
      {},
      {
        experts: { streaming: true, outsideGib: 1 },
        failures: [{ step: 'weights', reason: 'no' }],
      },
    );

    expect(limited.weights.deviceBytes).toBeLessThanOrEqual(gib / 2);
    expect(limited.weights.deviceBytes).toBeGreaterThan(0.3 * gib);
  });

  test('leave the embedding behind first, of which a token reads one row', () => {
    const planned = plan(card(11.4), {}, { experts: { streaming: true } });
    const pinned = placesOf(planned, model).filter(({ place }) => place === 'pinnedMapping');

    expect(pinned).toMatchObject([{ part: 'embedding' }]);
    expect(texts(planned, 'note')).toMatch(/they are the embedding, .* a token reads one row/);
    expect(texts(planned, 'warning')).toBe('');
    const cost = tokenCost(planned, model, { memoryAvailable: 256 * gib });
    expect(cost.mappedBytes).toBeLessThan(2 * gib);
  });
});

describe('copies of mapped experts', () => {
  test('fill what is left of the budget', () => {
    const planned = plan(w7800);
    const memory = planned.weights.experts!;
    const left =
      planned.device.budgetBytes -
      planned.weights.deviceBytes -
      planned.kv.bytes -
      planned.bufferBytes;

    expect(memory.slots).toBe(Math.floor(left / unit));
    expect(memory.transitBytes).toBe(0);
  });

  test('are not made for less than one token of a layer', () => {
    const exact = (8.2 * gib + session(512) + 5 * unit + gib / 2) / gib + 2;

    expect(plan(card(exact)).weights).toMatchObject({ place: 'mappedExperts' });
    expect(plan(card(exact)).weights.experts).toBeUndefined();
  });

  test('are fewer after the copy of the whole model has failed', () => {
    const failures = [{ step: 'copy', reason: 'no' }] as const;

    expect(plan(card(140), {}, { failures }).weights.experts!.slotBytes).toBeLessThan(64 * gib);
  });
});

describe('on the CPU', () => {
  test('a cache takes its share of main memory and the rest stays mapped', () => {
    const planned = hostPlan({ ramGib: 32, experts: { streaming: true } });
    const { slotBytes, transitBytes, hostBytes } = planned.weights.experts!;

    expect(planned.weights).toMatchObject({ place: 'streamExperts', source: 'mmap' });
    expect(slotBytes).toBeGreaterThan(24 * gib);
    expect(slotBytes + transitBytes + planned.kv.bytes).toBeLessThanOrEqual(32 * gib);
    expect(hostBytes).toBe(0);
  });

  test('weights that are read count against it', () => {
    const mapped = hostPlan({ ramGib: 32, experts: { streaming: true } });
    const read = hostPlan({ ramGib: 32, source: 'read', experts: { streaming: true } });

    expect(read.weights.experts!.slotBytes).toBeLessThan(
      mapped.weights.experts!.slotBytes - 8 * gib,
    );
  });

  test('a named number of experts is taken, a smaller one than a token needs is refused', () => {
    const of = (count: number) =>
      hostPlan({ ramGib: 32, experts: { streaming: true, cache: { kind: 'experts', count } } });

    expect(of(100).weights.experts!.slots).toBe(100);
    expect(refusal(() => of(5))).toContain('6 experts');
  });
});
