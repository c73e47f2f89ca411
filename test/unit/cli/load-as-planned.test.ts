import { describe, expect, it } from 'vitest';
import { loadAsPlanned } from '../../../src/cli/load-as-planned.js';
import { CancelledError, DeviceError, NoMemoryError } from '../../../src/engine/index.js';
import { PlanError } from '../../../src/plan/index.js';
import type { LoadPlan } from '../../../src/plan/index.js';

const plan = (place: string): LoadPlan => ({ weights: { place } }) as unknown as LoadPlan;

const noMemory = new NoMemoryError('ds4_model_open', 2, 'needs 81 GiB, 80 GiB free');
const deviceLost = new DeviceError('ds4_model_open', 5, 'the copy failed');

/** A planner that copies unless a copy has failed, and a loader that fails as told. */
function scripted(failures: Error[]) {
  const facts: (string | undefined)[] = [];
  const loads: string[] = [];
  return {
    facts,
    loads,
    steps: {
      plan: (failedCopy: string | undefined) => {
        facts.push(failedCopy);
        return plan(failedCopy === undefined ? 'device' : 'mappedExperts');
      },
      load: ({ weights }: LoadPlan) => {
        loads.push(weights.place);
        const failure = failures.shift();
        return failure === undefined ? Promise.resolve('engine') : Promise.reject(failure);
      },
    },
  };
}

describe('loading as planned', () => {
  it('asks the planner once when the load succeeds', async () => {
    const { steps, facts } = scripted([]);

    expect(await loadAsPlanned(steps)).toMatchObject({ loaded: 'engine' });
    expect(facts).toEqual([undefined]);
  });

  it.each([noMemory, deviceLost])('plans again after %s, with that fact', async (failure) => {
    const { steps, facts, loads } = scripted([failure]);

    const result = await loadAsPlanned(steps);

    expect(facts).toEqual([undefined, failure.message]);
    expect(loads).toEqual(['device', 'mappedExperts']);
    expect(result.plan.weights.place).toBe('mappedExperts');
  });

  it('gives up when the second way fails too', async () => {
    const { steps, loads } = scripted([noMemory, deviceLost]);

    await expect(loadAsPlanned(steps)).rejects.toBe(deviceLost);
    expect(loads).toHaveLength(2);
  });

  it('takes any other failure as the end', async () => {
    const cancelled = new CancelledError('ds4_model_open', 6, 'cancelled');
    const { steps, facts } = scripted([cancelled]);

    await expect(loadAsPlanned(steps)).rejects.toBe(cancelled);
    expect(facts).toHaveLength(1);
  });

  it('does not plan again for a model that is not copied whole', async () => {
    await expect(
      loadAsPlanned({
        plan: () => plan('host'),
        load: () => Promise.reject(noMemory),
      }),
    ).rejects.toBe(noMemory);
  });

  it('names the failed copy when nothing else fits', async () => {
    const failing = loadAsPlanned({
      plan: (failedCopy) => {
        if (failedCopy !== undefined) {
          throw new PlanError('the experts fit nowhere');
        }
        return plan('device');
      },
      load: () => Promise.reject(noMemory),
    });

    await expect(failing).rejects.toThrow(/needs 81 GiB, 80 GiB free.*the experts fit nowhere/);
    await expect(failing).rejects.toBeInstanceOf(PlanError);
  });
});
