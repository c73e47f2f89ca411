import fc from 'fast-check';
import { expect } from 'vitest';
import { PlanError, planLoad } from '../../../src/plan/index.js';
import type {
  ExpertCacheRequest,
  ExpertPolicy,
  LoadPlan,
  MachineFacts,
  PlanFailure,
  PlanRequest,
  PlanStep,
  Rates,
  WeightSource,
} from '../../../src/plan/index.js';
import { card, gib, model } from './machines.js';

// Machines and requests at random, for what has to hold for all of them.

/** Examples of one property; `DS4_TEST_RUNS=10` draws ten times as many. */
export function runs(count: number): { readonly numRuns: number } {
  return { numRuns: count * Number(process.env['DS4_TEST_RUNS'] ?? 1) };
}

/** Milliseconds: a property is many tests, and the machine may be busy. */
export const propertyTimeout = 60_000 * Number(process.env['DS4_TEST_RUNS'] ?? 1);

const steps = [
  'copy',
  'weights',
  'ring',
  'map',
  'pin',
  'readers',
  'pages',
  'hostTier',
  'slots',
] as const satisfies readonly PlanStep[];

const failures: fc.Arbitrary<PlanFailure[]> = fc.array(
  fc.record({ step: fc.constantFrom(...steps), reason: fc.constant('it failed') }),
  { maxLength: 6 },
);

/** Sixteenths, spread evenly: most floating-point numbers are next to nothing, and such machines have no GPU. */
export function gibs(least: number, most: number): fc.Arbitrary<number> {
  return fc.integer({ min: 16 * least, max: 16 * most }).map((sixteenths) => sixteenths / 16);
}

function maybe<Value>(arbitrary: fc.Arbitrary<Value>): fc.Arbitrary<Value | undefined> {
  return fc.option(arbitrary, { nil: undefined });
}

/** Of what many machines refuse: too often, it would leave few plans to look at. */
function oneIn<Value>(
  times: number,
  arbitrary: fc.Arbitrary<Value>,
): fc.Arbitrary<Value | undefined> {
  return fc.oneof(
    { weight: times - 1, arbitrary: fc.constant(undefined) },
    { weight: 1, arbitrary },
  );
}

export interface Machine {
  readonly vramGib: number;
  readonly ramGib: number;
  readonly kind: 'discrete' | 'integrated';
  readonly lockableGib: number | undefined;
  readonly isFileInRamDisk: boolean;
  readonly threads: number | undefined;
  readonly rates: Partial<Rates> | undefined;
}

export const machine: fc.Arbitrary<Machine> = fc.record({
  vramGib: gibs(0, 160),
  ramGib: fc.oneof(
    { weight: 10, arbitrary: gibs(1, 200) },
    // Down to a machine that has not even room for the pinned buffers of an upload.
    { weight: 1, arbitrary: fc.nat({ max: 1024 }).map((mib) => mib / 1024) },
    { weight: 1, arbitrary: fc.nat({ max: 128 }).map((mib) => mib / 1024) },
  ),
  kind: fc.constantFrom('discrete', 'integrated'),
  lockableGib: maybe(fc.integer({ min: 0, max: 100 })),
  isFileInRamDisk: fc.oneof({ weight: 4, arbitrary: fc.constant(false) }, fc.boolean()),
  threads: maybe(fc.integer({ min: 1, max: 128 })),
  rates: maybe(
    fc.record(
      {
        link: fc.integer({ min: 1, max: 100 }).map((gb) => gb * 1e9),
        mapped: fc.integer({ min: 1, max: 100 }).map((gb) => gb * 1e9),
        disk: fc.integer({ min: 1, max: 20 }).map((gb) => gb * 1e9),
      },
      { requiredKeys: [] },
    ),
  ),
});

export function factsOf(described: Machine): MachineFacts {
  const { vramGib, ramGib, kind, lockableGib, isFileInRamDisk, threads, rates } = described;
  return {
    memoryAvailable: ramGib * gib,
    lockableBytes: lockableGib === undefined ? undefined : lockableGib * gib,
    isFileInRamDisk,
    threads,
    rates,
    gpu: vramGib < 0.5 ? undefined : card(vramGib, kind),
  };
}

const cache: fc.Arbitrary<ExpertCacheRequest> = fc.oneof(
  fc.record({
    kind: fc.constant('experts' as const),
    count: fc.oneof(fc.integer({ min: 1, max: 12_000 }), fc.integer({ min: 1, max: 300 })),
  }),
  fc.record({ kind: fc.constant('gib' as const), gib: fc.integer({ min: 1, max: 100 }) }),
);

const layers = fc.constantFrom(
  { first: 0, last: 20 },
  { first: 21, last: 42 },
  { first: 3, last: 5 },
  { first: 0, last: 0 },
  { first: 42, last: 42 },
);

const gpu = fc.record(
  {
    resident: fc.boolean(),
    residentRequired: oneIn(10, fc.constant(true)),
    budgetGib: fc.integer({ min: 1, max: 160 }),
    copyAskedBy: fc.constant('DS4_CUDA_COPY_MODEL_CHUNKED'),
    copyForbiddenBy: fc.constant('DS4_CUDA_NO_MODEL_COPY'),
    pinForbiddenBy: oneIn(3, fc.constant('DS4_CUDA_NO_PINNED_ARENA_FALLBACK')),
    treatAs: fc.record({
      kind: fc.constantFrom('discrete' as const, 'integrated' as const),
      by: fc.constant('DS4_ROCM_REGISTERED_WEIGHTS'),
    }),
    copyChunkMib: fc.constantFrom(16, 100, 4096),
    checkUpload: fc.boolean(),
  },
  { requiredKeys: [] },
);

const experts = fc.record(
  {
    streaming: fc.boolean(),
    cache: oneIn(2, cache),
    hostGib: fc.oneof(fc.integer({ min: 0, max: 100 }), fc.double({ min: 0, max: 1, noNaN: true })),
    hostTier: fc.boolean(),
    policy: fc.constantFrom<ExpertPolicy[]>('lru', 'lfru'),
    reserveGib: fc.double({ min: 0, max: 32, noNaN: true }),
    percent: fc.integer({ min: 50, max: 95 }),
    outsideGib: fc.integer({ min: 1, max: 16 }),
    bufferedBy: fc.constant('DS4_ROCM_STREAM_NO_DIRECT'),
  },
  { requiredKeys: [] },
);

/** What options and variables can ask for, as far as it goes together. */
const asked = {
  context: fc.oneof(fc.integer({ min: 1, max: 32_768 }), fc.integer({ min: 1, max: 300_000 })),
  prefillChunk: fc.constantFrom<(number | 'whole')[]>(1, 64, 512, 2048, 'whole'),
  source: fc.constantFrom<WeightSource[]>('mmap', 'read', 'direct'),
  lock: fc.boolean(),
  keepPages: fc.boolean(),
  readThreads: fc.oneof(fc.integer({ min: 1, max: 32 }), fc.integer({ min: 1, max: 1024 })),
  layers,
  gpu,
  experts,
  paging: oneIn(2, fc.record({ slots: fc.integer({ min: 1, max: 60 }) }, { requiredKeys: [] })),
};

/** Without anything that has failed before. */
export const firstRequest: fc.Arbitrary<PlanRequest> = fc.record(asked, { requiredKeys: [] });

export const request: fc.Arbitrary<PlanRequest> = fc.record(
  { ...asked, failures },
  { requiredKeys: [] },
);

/** Undefined when the planner refuses, which it may, with a sentence. */
export function planned(facts: MachineFacts, wanted: PlanRequest): LoadPlan | undefined {
  try {
    return planLoad(model, facts, wanted);
  } catch (thrown) {
    expect(thrown).toBeInstanceOf(PlanError);
    expect((thrown as PlanError).message).not.toMatch(/NaN|undefined|Infinity|-\d+\.\d\d [GM]iB/);
    return undefined;
  }
}
