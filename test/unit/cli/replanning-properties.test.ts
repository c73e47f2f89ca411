import fc from 'fast-check';
import { expect, test } from 'vitest';
import { loadAsPlanned } from '../../../src/cli/load-as-planned.js';
import { plannedOptions } from '../../../src/cli/planned-options.js';
import { NoMemoryError } from '../../../src/engine/index.js';
import type { LoadStep } from '../../../src/engine/index.js';
import { PlanError, planLoad, stepOf } from '../../../src/plan/index.js';
import type { LoadPlan, PlanStep } from '../../../src/plan/index.js';
import { factsOf, firstRequest, machine, propertyTimeout, runs } from '../plan/generators.js';
import { model } from '../plan/machines.js';

/** What a plan takes of what can fail by itself; 0: it does without. */
function needOf(plan: LoadPlan, step: PlanStep): number {
  const { weights } = plan;
  const { slotBytes = 0, hostBytes = 0 } = weights.experts ?? {};
  switch (step) {
    case 'slots':
      return slotBytes;
    case 'readers':
      return weights.fetchBytes ?? 0;
    default:
  }
  if (plan.backend === 'cpu') {
    return 0;
  }
  const { place, deviceBytes, pinnedBytes, pinCopies, pageSlots = 0 } = plan.weights;
  switch (step) {
    case 'copy':
      return place === 'device' ? deviceBytes : 0;
    case 'weights':
      return place === 'device' ? 0 : deviceBytes;
    case 'ring':
      return plan.upload.path === 'mapping' ? 0 : plan.upload.slots * plan.upload.slotBytes;
    case 'map':
      return pinCopies ? 0 : pinnedBytes;
    case 'pin':
      return pinCopies ? pinnedBytes : 0;
    case 'pages':
      return pageSlots;
    case 'hostTier':
      return hostBytes;
  }
}

const words: readonly LoadStep[] = [
  'weights',
  'ring',
  'map',
  'pin',
  'readers',
  'pages',
  'slots',
  'hostTier',
];

/** The steps that whoever loads by this plan can fail at, as the native library names them. */
function fallible(plan: LoadPlan): { readonly word: LoadStep; readonly step: PlanStep }[] {
  return words.flatMap((word) => {
    const step = word === 'other' ? undefined : stepOf(plan, word);
    // Experts in transit need memory even where no slot is planned, and then there is nothing to leave out.
    const canFail = step === 'slots' || (step !== undefined && needOf(plan, step) > 0);
    return step !== undefined && canFail ? [{ word, step }] : [];
  });
}

function failureAt(word: LoadStep): NoMemoryError {
  const failure = new NoMemoryError('ds4_model_open', 2, `no memory for ${word}`);
  failure.loadStep = word;
  return failure;
}

test(
  'planning again after failures ends: each plan takes less of what failed, none is tried twice',
  async () => {
    let triedPlans = 0;
    let longest = 0;
    await fc.assert(
      fc.asyncProperty(
        machine,
        firstRequest,
        fc.array(fc.nat({ max: 7 }), { minLength: 1, maxLength: 8 }),
        async (described, wanted, choices) => {
          const facts = factsOf(described);
          const tried: string[] = [];
          let failed: { readonly step: PlanStep; readonly need: number } | undefined;
          try {
            await loadAsPlanned({
              plan: (failures) => planLoad(model, facts, { ...wanted, failures }),
              load: (plan) => {
                const key = JSON.stringify([plan.backend, plannedOptions(plan)]);
                expect(tried).not.toContain(key);
                tried.push(key);
                if (failed !== undefined) {
                  expect(needOf(plan, failed.step)).toBeLessThan(failed.need);
                }
                const able = fallible(plan);
                const chosen = able[(choices[tried.length % choices.length] ?? 0) % able.length];
                if (chosen === undefined) {
                  return Promise.resolve('loaded');
                }
                failed = { step: chosen.step, need: needOf(plan, chosen.step) };
                return Promise.reject(failureAt(chosen.word));
              },
            });
          } catch (thrown) {
            if (!(thrown instanceof PlanError || thrown instanceof NoMemoryError)) {
              throw thrown;
            }
            expect(thrown.message).not.toMatch(/NaN|undefined|Infinity/);
          }
          triedPlans += tried.length;
          longest = Math.max(longest, tried.length);
          expect(tried.length).toBeLessThan(30);
        },
      ),
      runs(250),
    );
    expect(triedPlans).toBeGreaterThan(250);
    expect(longest).toBeGreaterThan(5);
  },
  propertyTimeout,
);
