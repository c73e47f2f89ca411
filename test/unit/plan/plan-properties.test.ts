import fc from 'fast-check';
import { expect, test } from 'vitest';
import {
  deviceBytesOf,
  hostBytesOf,
  PlanError,
  placesOf,
  planLoad,
  tokenCost,
} from '../../../src/plan/index.js';
import type {
  GpuRequest,
  LoadPlan,
  MachineFacts,
  PlanFailure,
  PlanRequest,
} from '../../../src/plan/index.js';
import { card, gib, model } from './machines.js';

const failures = fc.array(
  fc.record({
    step: fc.constantFrom(
      'copy',
      'weights',
      'ring',
      'map',
      'pin',
      'readers',
      'pages',
      'hostTier',
      'slots',
    ),
    reason: fc.constant('it failed'),
  }),
  { maxLength: 4 },
) satisfies fc.Arbitrary<PlanFailure[]>;

/** Sixteenths, spread evenly: most floating-point numbers are next to nothing, and such machines have no GPU. */
function gibs(least: number, most: number): fc.Arbitrary<number> {
  return fc.integer({ min: 16 * least, max: 16 * most }).map((sixteenths) => sixteenths / 16);
}

const machine = fc.record({
  vramGib: gibs(0, 160),
  ramGib: gibs(1, 200),
  kind: fc.constantFrom('discrete', 'integrated'),
  lockableGib: fc.option(fc.integer({ min: 0, max: 100 }), { nil: undefined }),
});

const cache = fc.oneof(
  fc.record({ kind: fc.constant('experts'), count: fc.integer({ min: 1, max: 12_000 }) }),
  fc.record({ kind: fc.constant('gib'), gib: fc.integer({ min: 1, max: 100 }) }),
);

const request = fc.record(
  {
    context: fc.integer({ min: 1, max: 300_000 }),
    prefillChunk: fc.constantFrom<(number | 'whole')[]>(64, 2048),
    source: fc.constantFrom('mmap', 'read', 'direct'),
    lock: fc.boolean(),
    layers: fc.constantFrom({ first: 0, last: 20 }, { first: 21, last: 42 }, { first: 3, last: 5 }),
    gpu: fc.record(
      {
        resident: fc.boolean(),
        budgetGib: fc.integer({ min: 1, max: 160 }),
        copyForbiddenBy: fc.constant('DS4_CUDA_NO_MODEL_COPY'),
      },
      { requiredKeys: [] },
    ),
    experts: fc.record(
      {
        streaming: fc.boolean(),
        cache,
        hostGib: fc.integer({ min: 0, max: 100 }),
        hostTier: fc.boolean(),
        reserveGib: fc.double({ min: 0, max: 32, noNaN: true }),
        outsideGib: fc.integer({ min: 1, max: 16 }),
      },
      { requiredKeys: [] },
    ),
    paging: fc.record({ slots: fc.integer({ min: 1, max: 60 }) }, { requiredKeys: [] }),
    failures,
  },
  { requiredKeys: [] },
) as fc.Arbitrary<PlanRequest>;

type Machine = typeof machine extends fc.Arbitrary<infer Value> ? Value : never;

function factsOf({ vramGib, ramGib, kind, lockableGib }: Machine): MachineFacts {
  return {
    memoryAvailable: ramGib * gib,
    lockableBytes: lockableGib === undefined ? undefined : lockableGib * gib,
    gpu: vramGib < 0.5 ? undefined : card(vramGib, kind),
  };
}

/** Undefined when the planner refuses, which it may. */
function planned(facts: MachineFacts, wanted: PlanRequest): LoadPlan | undefined {
  try {
    return planLoad(model, facts, wanted);
  } catch (thrown) {
    expect(thrown).toBeInstanceOf(PlanError);
    return undefined;
  }
}

test('no plan takes more than any budget', () => {
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
    { numRuns: 500 },
  );
  expect(made).toBeGreaterThan(150);
});

test('every tensor of the slice has exactly one place', () => {
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
    { numRuns: 150 },
  );
});

function pageSlotsOf(plan: LoadPlan | undefined): number | undefined {
  return plan === undefined || plan.backend === 'cpu' ? undefined : plan.weights.pageSlots;
}

/**
 * Paging's one exception: the second slot for pages takes memory from experts, and what it is for, that the next layer
 * arrives while one is computed, does not show in a cost model in which nothing overlaps.
 */
function isForOverlap(small: LoadPlan, large: LoadPlan | undefined): boolean {
  return pageSlotsOf(small) === 1 && pageSlotsOf(large) === 2;
}

/**
 * The other exception: who forbids copies of experts gets none as soon as main memory can hold them all, also where a large
 * cache of a GPU was faster.
 */
function isForbidden(wanted: PlanRequest, small: LoadPlan, large: LoadPlan | undefined): boolean {
  return (
    wanted.gpu?.resident === false &&
    small.weights.place === 'streamExperts' &&
    large?.weights.place === 'mappedExperts'
  );
}

test('a larger budget never makes a token dearer', () => {
  const wish = fc.record(
    {
      resident: fc.boolean(),
      streaming: fc.boolean(),
      hostTier: fc.boolean(),
      context: fc.constantFrom(1024, 32768, 200_000),
      paging: fc.record({ slots: fc.integer({ min: 1, max: 50 }) }, { requiredKeys: [] }),
    },
    { requiredKeys: [] },
  );
  const budget = fc.oneof(
    fc.integer({ min: 1, max: 150 }),
    // Where pages and experts compete.
    fc.double({ min: 1, max: 14, noNaN: true }),
  );
  let compared = 0;
  let paged = 0;
  fc.assert(
    fc.property(
      machine,
      wish,
      budget,
      fc.oneof(fc.integer({ min: 0, max: 8 }), fc.double({ min: 0, max: 1, noNaN: true })),
      fc.double({ min: 0, max: 64, noNaN: true }),
      (
        described,
        { resident, streaming, hostTier, context, paging },
        budgetGib,
        moreGib,
        moreRam,
      ) => {
        const planFor = (gpuGib: number, ramGib: number): [LoadPlan | undefined, number] => {
          const gpu: GpuRequest = { resident, budgetGib: gpuGib };
          const facts = factsOf({ ...described, ramGib, vramGib: 160 });
          const plan = planned(facts, { context, gpu, paging, experts: { streaming, hostTier } });
          return [plan, plan === undefined ? Infinity : tokenCost(plan, model, facts).seconds];
        };
        const [plan, cost] = planFor(budgetGib, described.ramGib);
        if (plan === undefined) {
          return;
        }
        compared += 1;
        paged += pageSlotsOf(plan) === undefined ? 0 : 1;
        const roundedUp = cost * (1 + 1e-9);
        const [larger, costOfLarger] = planFor(budgetGib + moreGib, described.ramGib);
        const [withRam, costWithRam] = planFor(budgetGib, described.ramGib + moreRam);
        const isException = (other: LoadPlan | undefined): boolean =>
          isForOverlap(plan, other) || isForbidden({ gpu: { resident } }, plan, other);
        expect(isException(larger) ? 0 : costOfLarger).toBeLessThanOrEqual(roundedUp);
        expect(isException(withRam) ? 0 : costWithRam).toBeLessThanOrEqual(roundedUp);
      },
    ),
    { numRuns: 500 },
  );
  expect(compared).toBeGreaterThan(150);
  expect(paged).toBeGreaterThan(100);
});
