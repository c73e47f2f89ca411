// Which weights are in GPU memory when it is limited: the planner counts what the native library chooses.
import { resolve } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { plannedOptions } from '../../src/cli/planned-options.js';
import { Engine, simulate } from '../../src/engine/index.js';
import { openGguf } from '../../src/gguf/index.js';
import { describeModel } from '../../src/model/index.js';
import { planLoad, PlanError } from '../../src/plan/index.js';
import type { GpuPlan } from '../../src/plan/index.js';
import { simulatedMachine } from '../support/simulated-machine.js';

const model = resolve(import.meta.dirname, '../fixtures/a-q8_0.gguf');
const description = describeModel(openGguf(model));
const gib = 2 ** 30;

/** With so many bytes beside the reserves of an automatic budget. */
function planWith(bytes: number): GpuPlan | undefined {
  const gpu = {
    backend: 'sim',
    index: 0,
    name: 'simulated',
    kind: 'discrete',
    totalBytes: 8 * gib,
    freeBytes: 2.5 * gib + bytes,
  } as const;
  const request = { context: 64, prefillChunk: 16, gpu: { resident: false } };
  try {
    const plan = planLoad(description, { memoryAvailable: 8 * gib, gpu }, request);
    return plan.backend === 'cpu' ? undefined : plan;
  } catch (thrown) {
    expect(thrown).toBeInstanceOf(PlanError);
    return undefined;
  }
}

beforeAll(() => {
  simulate(simulatedMachine);
});
afterAll(() => {
  simulate(simulatedMachine);
});

test('the planner and the library have the same weights in GPU memory, whatever the limit', async () => {
  const { nonRouted } = description.bytes;
  const planned = new Map<number, GpuPlan>();
  for (let bytes = 0; bytes < 200 * 2 ** 20; bytes += 2 ** 15) {
    const plan = planWith(bytes);
    if (plan?.weights.deviceWeightBytes !== undefined) {
      planned.set(plan.weights.deviceBytes, plan);
    }
  }
  expect(planned.size).toBeGreaterThan(5);
  for (const [deviceBytes, plan] of planned) {
    const engine = new Engine({ description, backend: 'sim', threads: 2, ...plannedOptions(plan) });
    await engine.load();
    try {
      expect(deviceBytes).toBeLessThan(nonRouted);
      expect(engine.info.deviceBytes).toBe(deviceBytes);
    } finally {
      await engine.close();
    }
  }
});
