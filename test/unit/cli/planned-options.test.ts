import { expect, it } from 'vitest';
import { plannedOptions } from '../../../src/cli/planned-options.js';
import { card, hostPlan, model, plan } from '../plan/machines.js';

it('a model that is copied whole needs nothing besides', () => {
  expect(plannedOptions(plan(card(140)))).toEqual({
    device: 0,
    placement: 'resident',
    source: 'read',
    upload: { slots: 4, slotBytes: 64 * 2 ** 20 },
    weights: { lock: false, pinCopies: false, dropReadPages: false },
  });
});

it('mapped experts have slots, and limits go along', () => {
  const planned = plan(card(10), {}, { readThreads: 3 });

  expect(plannedOptions(planned)).toMatchObject({
    placement: 'mappedExperts',
    source: 'read',
    weights: { deviceWeightBytes: planned.weights.deviceWeightBytes, readThreads: 3 },
  });
  expect(planned.weights.deviceWeightBytes).toBeLessThan(model.bytes.nonRouted);
  expect(plannedOptions(plan(card(48))).weights?.experts?.slotBytes).toBeGreaterThan(2 ** 34);
});

it('pages and streamed experts are named with their sizes', () => {
  const planned = plan(card(48), {}, { paging: { slots: 5 }, experts: { streaming: true } });

  expect(plannedOptions(planned)).toMatchObject({
    placement: 'streamExperts',
    weights: { pageSlots: 5, experts: planned.weights.experts },
  });
});

it('the CPU streams from the file, or uses it as it is', () => {
  expect(plannedOptions(hostPlan({ lock: true }))).toEqual({
    placement: 'auto',
    source: 'mmap',
    weights: { lock: true },
  });
  expect(plannedOptions(hostPlan({ experts: { streaming: true } }))).toMatchObject({
    placement: 'streamExperts',
    weights: { experts: { hostBytes: 0 } },
  });
});
