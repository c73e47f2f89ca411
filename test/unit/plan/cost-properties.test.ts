import fc from 'fast-check';
import { expect, test } from 'vitest';
import { tokenCost } from '../../../src/plan/index.js';
import type { LoadPlan, PlanRequest } from '../../../src/plan/index.js';
import { factsOf, machine, planned, propertyTimeout, request, runs } from './generators.js';
import type { Machine } from './generators.js';
import { model } from './machines.js';

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
 * cache of a GPU was faster; and a device whose copy of the model has failed is asked for half as many.
 */
function hasFewerCopies(
  wanted: PlanRequest,
  small: LoadPlan,
  large: LoadPlan | undefined,
): boolean {
  const { gpu = {}, failures = [] } = wanted;
  return (
    (gpu.resident === false ||
      gpu.copyForbiddenBy !== undefined ||
      failures.some(({ step }) => step === 'copy')) &&
    small.weights.place === 'streamExperts' &&
    large?.weights.place === 'mappedExperts'
  );
}

/** Of GPU memory: small ones more often, where pages and experts compete. */
const gpuGib = fc.oneof(
  fc.integer({ min: 1, max: 150 }),
  fc.double({ min: 1, max: 14, noNaN: true }),
);
const moreGpuGib = fc.oneof(
  fc.integer({ min: 0, max: 8 }),
  fc.double({ min: 0, max: 1, noNaN: true }),
);
const moreRamGib = fc.double({ min: 0, max: 64, noNaN: true });

/** A machine as a plan sees it: what of it a comparison makes larger. */
interface Size {
  readonly vramGib: number;
  readonly ramGib: number;
  readonly budgetGib: number | undefined;
}

function costOf(
  described: Machine,
  wanted: PlanRequest,
  { vramGib, ramGib, budgetGib }: Size,
): { plan: LoadPlan | undefined; seconds: number } {
  const facts = factsOf({ ...described, vramGib, ramGib });
  const plan = planned(facts, {
    ...wanted,
    gpu: { ...wanted.gpu, budgetGib },
    // The processor has no pages.
    paging: vramGib === 0 ? undefined : wanted.paging,
  });
  const seconds = plan === undefined ? Infinity : tokenCost(plan, model, facts, wanted).seconds;
  return { plan, seconds };
}

test.each([
  {
    name: 'a budget on a large card',
    sizeOf: (vramGib: number, ramGib: number) => ({ vramGib: 160, ramGib, budgetGib: vramGib }),
    paging: 30,
  },
  {
    name: 'a card without a budget',
    sizeOf: (vramGib: number, ramGib: number) => ({ vramGib, ramGib, budgetGib: undefined }),
    paging: 30,
  },
  {
    name: 'the processor',
    sizeOf: (_vramGib: number, ramGib: number) => ({ vramGib: 0, ramGib, budgetGib: undefined }),
    paging: 0,
  },
])(
  'more memory never makes a token dearer: $name',
  ({ sizeOf, paging }) => {
    let compared = 0;
    let paged = 0;
    fc.assert(
      fc.property(
        machine,
        request,
        gpuGib,
        moreGpuGib,
        moreRamGib,
        (described, wanted, vramGib, moreGib, moreRam) => {
          const { ramGib } = described;
          const { plan, seconds } = costOf(described, wanted, sizeOf(vramGib, ramGib));
          if (plan === undefined) {
            return;
          }
          compared += 1;
          paged += pageSlotsOf(plan) === undefined ? 0 : 1;
          for (const size of [
            sizeOf(vramGib + moreGib, ramGib),
            sizeOf(vramGib, ramGib + moreRam),
            sizeOf(vramGib + moreGib, ramGib + moreRam),
          ]) {
            const larger = costOf(described, wanted, size);
            const isException =
              isForOverlap(plan, larger.plan) || hasFewerCopies(wanted, plan, larger.plan);
            expect(isException ? 0 : larger.seconds).toBeLessThanOrEqual(seconds * (1 + 1e-9));
          }
        },
      ),
      runs(300),
    );
    expect(compared).toBeGreaterThan(100);
    expect(paged).toBeGreaterThanOrEqual(paging);
  },
  propertyTimeout,
);
