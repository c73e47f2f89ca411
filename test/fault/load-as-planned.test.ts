// A load on a simulated GPU that fails on its way: the planner is asked again, and what it says then works.
import { resolve } from 'node:path';
import { afterEach, beforeAll, describe, expect, test } from 'vitest';
import { loadAsPlanned } from '../../src/cli/load-as-planned.js';
import { plannedOptions } from '../../src/cli/planned-options.js';
import { Engine, listDevices, simulate } from '../../src/engine/index.js';
import type { SimulatedFailure, TelemetrySnapshot } from '../../src/engine/index.js';
import { openGguf } from '../../src/gguf/index.js';
import { describeModel } from '../../src/model/index.js';
import { PlanError, planLoad } from '../../src/plan/index.js';
import type { LoadPlan, PlanFailure, PlanRequest } from '../../src/plan/index.js';
import { simulatedMachine } from '../support/simulated-machine.js';

const description = describeModel(
  openGguf(resolve(import.meta.dirname, '../fixtures/a-q8_0.gguf')),
);
const tokens = Int32Array.from({ length: 24 }, (_, index) => (index * 37 + 5) % 512);

const machine = { ...simulatedMachine, vramBytes: 8 * 2 ** 30 };

async function logitsOf(engine: Engine, { context, prefillChunk }: LoadPlan): Promise<Buffer> {
  await using session = await engine.openSession({ context, prefillChunk });
  const { logits } = await session.eval(tokens, { logitsRows: tokens.length });
  return Buffer.from(logits?.slice().buffer ?? new ArrayBuffer());
}

interface Course {
  readonly plans: readonly LoadPlan[];
  readonly logits: Buffer;
  /** Since the load that succeeded began. */
  readonly files: TelemetrySnapshot['files'];
}

/** Plans, loads and evaluates on a machine whose call fails. */
async function run(
  request: PlanRequest,
  failure?: SimulatedFailure,
  kind: 'discrete' | 'integrated' = 'discrete',
): Promise<Course> {
  simulate(machine);
  const [device] = listDevices('sim');
  if (device === undefined) {
    throw new Error('there is no simulated device');
  }
  const facts = {
    memoryAvailable: 2 ** 36,
    gpu: { ...device, backend: 'sim' as const, kind },
  };
  const plans: LoadPlan[] = [];
  simulate(failure === undefined ? machine : { ...machine, failure });
  const { plan, loaded: engine } = await loadAsPlanned({
    plan: (failures: readonly PlanFailure[]) =>
      planLoad(description, facts, { context: 64, ...request, failures }),
    announce: (next) => {
      plans.push(next);
    },
    load: async (next) => {
      const attempt = new Engine({
        description,
        backend: 'sim',
        threads: 2,
        ...plannedOptions(next),
      });
      try {
        await attempt.load();
        return attempt;
      } catch (thrown) {
        await attempt.close();
        expect(attempt.telemetry().simulation).toMatchObject({ allocations: 0, pinnedBytes: 0 });
        throw thrown;
      }
    },
  });
  try {
    return { plans, logits: await logitsOf(engine, plan), files: engine.telemetry().files };
  } finally {
    await engine.close();
  }
}

function warnings({ reasons }: LoadPlan): string[] {
  return reasons.filter(({ kind }) => kind === 'warning').map(({ text }) => text);
}

function place({ weights }: LoadPlan): string {
  return 'pinCopies' in weights && weights.pinCopies ? `${weights.place} in copies` : weights.place;
}

function uploadOf(plan: LoadPlan): string {
  return plan.backend === 'cpu' ? 'none' : plan.upload.path;
}

function pinnedOf({ weights }: LoadPlan): number {
  return 'pinnedBytes' in weights ? weights.pinnedBytes : 0;
}

let right: Buffer;
beforeAll(async () => {
  ({ logits: right } = await run({}));
});
afterEach(() => {
  simulate(machine);
});

describe('a copy of the model into GPU memory', () => {
  test.each(['allocate', 'copy', 'send', 'wait'] as const)(
    'whose %s fails leads to mapped experts with one warning and the same logits',
    async (call) => {
      const { plans, logits } = await run({}, { call, at: 1, count: 1 });

      expect(plans.map(place)).toEqual(['device', 'mappedExperts']);
      expect(plans.map(warnings)).toEqual([
        [],
        [expect.stringMatching(/^the model could not be copied into GPU memory: cannot /)],
      ]);
      expect(logits).toEqual(right);
    },
  );

  test.each(['discrete', 'integrated'] as const)(
    'into a GPU that is %s and has no pinned buffers comes from the mapping, with one warning and the same logits',
    async (kind) => {
      const { plans, logits } = await run({}, { call: 'pin', at: 1, count: 0 }, kind);

      expect(plans.map(place)).toEqual(['device', 'device']);
      expect(plans.map(uploadOf)).toEqual(['staged', 'mapping']);
      expect(plans.map(warnings)).toEqual([
        [],
        [
          expect.stringMatching(
            /^the pinned buffers through which weights are copied could not be had: cannot /,
          ),
        ],
      ]);
      expect(logits).toEqual(right);
    },
  );

  test('from the mapping, as --mmap wants it on shared memory, pins nothing and reads little', async () => {
    const { plans, logits, files } = await run({ source: 'mmap' }, undefined, 'integrated');
    const staged = await run({}, undefined, 'integrated');

    expect(plans.map(uploadOf)).toEqual(['mapping']);
    expect(logits).toEqual(right);
    expect(files).toMatchObject({ reads: 0, readBytes: 0 });
    expect(files.uploadBytes).toBe(staged.files.uploadBytes);
    expect(staged.files.readBytes).toBeGreaterThan(2 ** 20);
  });

  test('whose read fails once goes on', async () => {
    const { plans, logits } = await run({}, { call: 'read', at: 9, count: 1 });

    expect(plans.map(place)).toEqual(['device']);
    expect(logits).toEqual(right);
  });

  test('whose file cannot be read ends with its name, and no other way is tried', async () => {
    const all = run({}, { call: 'read', at: 9, count: 0 });

    await expect(all).rejects.toThrow(/a-q8_0\.gguf/);
    await expect(all).rejects.not.toBeInstanceOf(PlanError);
  });
});

describe('mapped experts', () => {
  const request: PlanRequest = { gpu: { resident: false } };

  test('whose mapping cannot be pinned are read into pinned memory', async () => {
    const { plans, logits } = await run(request, { call: 'map', at: 1, count: 0 });

    expect(plans.map(place)).toEqual(['mappedExperts', 'mappedExperts in copies']);
    expect(plans.map(warnings)).toEqual([
      [],
      [expect.stringMatching(/^the mapping of the file could not be pinned for the GPU: cannot /)],
    ]);
    expect(logits).toEqual(right);
  });

  test('that cannot be pinned at all end with the story of all attempts', async () => {
    const all = run(request, { call: 'pin', at: 1, count: 0 });

    await expect(all).rejects.toBeInstanceOf(PlanError);
    await expect(all).rejects.toThrow(
      /^the pinned buffers through which weights are copied could not be had: cannot .*; then the expert cache could not be set up: cannot .*; there is no other way$/,
    );
  });
});

describe('streamed experts', () => {
  const request: PlanRequest = {
    experts: { streaming: true, cache: { kind: 'experts', count: 16 } },
  };

  const withoutTier: PlanRequest = { experts: { ...request.experts, hostTier: false } };

  // Uses of pinned memory: the upload, the readers, the tier, and the way from there into slots.
  test('that cannot be set up do without a host tier', async () => {
    const { plans, logits } = await run(request, { call: 'pin', at: 4, count: 1 });

    expect(plans.map(({ weights }) => weights.experts?.hostBytes)).toEqual([
      expect.toSatisfy((bytes: number) => bytes > 0),
      0,
    ]);
    expect(plans.map(warnings)).toEqual([
      [],
      [expect.stringMatching(/^the expert cache could not be set up with a tier in main memory: /)],
    ]);
    expect(logits).toEqual(right);
  });

  test('are read by one thread when there are no buffers for more', async () => {
    const { plans, logits } = await run(withoutTier, { call: 'pin', at: 2, count: 1 });

    expect(plans.map(({ weights }) => weights.readThreads)).toEqual([16, 1]);
    expect(plans.map(warnings)[1]).toEqual([
      expect.stringMatching(/^the buffers of the readers of missing weights could not be had: /),
    ]);
    expect(logits).toEqual(right);
  });

  // Uses of GPU memory: the weights outside the experts, norms and tables, then what belongs to the experts.
  test('that cannot be set up have half as many slots', async () => {
    const { plans, logits } = await run(withoutTier, { call: 'allocate', at: 3, count: 1 });

    expect(plans.map(({ weights }) => weights.experts?.slots)).toEqual([16, 8]);
    expect(plans.map(warnings)[1]).toEqual([
      expect.stringMatching(/^the expert cache could not be set up: /),
    ]);
    expect(logits).toEqual(right);
  });

  test('leave weights in main memory when those outside the experts cannot be copied', async () => {
    const { plans, logits } = await run(withoutTier, { call: 'allocate', at: 1, count: 1 });

    expect(plans.map((plan) => pinnedOf(plan) > 0)).toEqual([false, true]);
    expect(plans.map(warnings)[1]?.[0]).toMatch(
      /^the weights outside the experts could not be copied into GPU memory: /,
    );
    expect(logits).toEqual(right);
  });

  test('have copies of other weights in pinned memory when those cannot be pinned in the mapping', async () => {
    const { plans, logits } = await run(
      { experts: { ...withoutTier.experts, outsideGib: 0.0002 } },
      { call: 'map', at: 1, count: 0 },
    );

    expect(plans.map(place)).toEqual(['streamExperts', 'streamExperts in copies']);
    expect(plans.map(pinnedOf)).toEqual([pinnedOf(plans[0]!), pinnedOf(plans[0]!)]);
    expect(plans.map(warnings)[1]?.[0]).toMatch(
      /^the mapping of the file could not be pinned for the GPU: cannot /,
    );
    expect(logits).toEqual(right);
  });

  test('that fail again and again try less and less each time, and then it is said', async () => {
    const all = run(withoutTier, { call: 'allocate', at: 3, count: 0 });

    await expect(all).rejects.toBeInstanceOf(PlanError);
    await expect(all).rejects.toThrow(
      /^the expert cache could not be set up: .*; then the weights outside the experts could not be copied into GPU memory: .*there is no other way$/s,
    );
  });
});

describe('paged weights', () => {
  test('have half as many slots when those cannot be had', async () => {
    const { plans, logits } = await run(
      { paging: { slots: 4 } },
      { call: 'allocate', at: 3, count: 1 },
    );

    expect(
      plans.map(({ weights }) => ('pageSlots' in weights ? weights.pageSlots : undefined)),
    ).toEqual([4, 2]);
    expect(plans.map(warnings)[1]?.[0]).toMatch(/^the slots of --weight-paging could not be had: /);
    expect(logits).toEqual(right);
  });
});

test('a GPU that cannot tell how much memory is free is refused', () => {
  simulate({ ...machine, failure: { call: 'memory-info', at: 1, count: 0 } });
  const [device] = listDevices('sim');
  const gpu = { ...device!, backend: 'sim' as const, kind: 'discrete' as const };

  const plan = (): LoadPlan =>
    planLoad(description, { memoryAvailable: 2 ** 36, gpu }, { context: 64 });

  expect(gpu.freeBytes).toBe(0);
  expect(plan).toThrow(PlanError);
  expect(plan).toThrow(/no free memory, or cannot tell how much/);
});
