import fc from 'fast-check';
import { expect, test } from 'vitest';
import { deviceBytesOf, hostBytesOf, placesOf } from '../../../src/plan/index.js';
import { factsOf, machine, planned, propertyTimeout, request, runs } from './generators.js';
import { gib, model } from './machines.js';

test(
  'no plan takes more than any budget',
  () => {
    let made = 0;
    fc.assert(
      fc.property(machine, request, (described, wanted) => {
        const facts = factsOf(described);
        const plan = planned(facts, wanted);
        if (plan === undefined) {
          return;
        }
        made += 1;
        const { weights } = plan;
        const device = plan.backend === 'cpu' ? 0 : deviceBytesOf(plan);
        const shared = plan.backend !== 'cpu' && plan.device.kind === 'integrated' ? device : 0;
        expect(hostBytesOf(plan) + shared).toBeLessThanOrEqual(facts.memoryAvailable);
        if (plan.backend !== 'cpu') {
          expect(device).toBeLessThanOrEqual(plan.device.budgetBytes);
          expect(plan.device.budgetBytes).toBeLessThan(plan.device.freeBytes);
          expect(plan.device.budgetBytes).toBeLessThanOrEqual(
            (wanted.gpu?.budgetGib ?? Infinity) * gib,
          );
        }
        // What a GPU reads in main memory is pinned, which the limit does not concern.
        if (weights.lock && plan.backend === 'cpu') {
          const locked = weights.bytes;
          const most = weights.place === 'streamExperts' ? locked - weights.routedBytes : locked;
          expect(most).toBeLessThanOrEqual(facts.lockableBytes ?? Infinity);
        }
        expect(plan.prefillChunk).toBeLessThanOrEqual(plan.context);
      }),
      runs(500),
    );
    expect(made).toBeGreaterThan(150);
  },
  propertyTimeout,
);

test(
  'every tensor of the slice has exactly one place',
  () => {
    fc.assert(
      fc.property(machine, request, (described, wanted) => {
        const plan = planned(factsOf(described), wanted);
        if (plan === undefined) {
          return;
        }
        const places = placesOf(plan, model, wanted);
        const names = places.flatMap(({ tensors }) => tensors);
        const { first, last } = wanted.layers ?? { first: 0, last: 42 };
        const expected = model.tensors
          .filter(({ role, layer }) =>
            layer >= 0
              ? layer >= first && layer <= last
              : role === 'output'
                ? last === 42
                : first === 0,
          )
          .map(({ tensor }) => tensor.name);
        expect([...names].sort()).toEqual([...expected].sort());
        const sum = (wantedPlaces: readonly string[]): number =>
          places
            .filter(({ place }) => wantedPlaces.includes(place))
            .reduce((bytes, group) => bytes + group.bytes, 0);
        expect(places.reduce((bytes, group) => bytes + group.bytes, 0)).toBe(plan.weights.bytes);
        if (plan.backend !== 'cpu') {
          expect(sum(['pinnedMapping', 'pinnedMemory'])).toBe(plan.weights.pinnedBytes);
          if (plan.weights.pageSlots === undefined) {
            expect(sum(['device'])).toBe(plan.weights.deviceBytes);
          }
        }
      }),
      runs(150),
    );
  },
  propertyTimeout,
);
