import { describe, expect, test } from 'vitest';
import { planLoad } from '../../../src/plan/index.js';
import type { LoadPlan, PlanFailure } from '../../../src/plan/index.js';
import { card, freeFor, gib, hostPlan, model, plan, refusal, session, texts } from './machines.js';

// One case for each row of the table that decides where weights go, and for each rule that changes a row.

const copyFailed: PlanFailure = { step: 'copy', reason: 'no memory for the image' };
const mapFailed: PlanFailure = { step: 'map', reason: 'not supported' };
const ringFailed: PlanFailure = { step: 'ring', reason: 'no pinned memory' };
const weightsFailed: PlanFailure = { step: 'weights', reason: 'no memory for them' };
const pinFailed: PlanFailure = { step: 'pin', reason: 'out of memory' };
const hostTierFailed: PlanFailure = { step: 'hostTier', reason: 'no pinned slabs' };

const sharedByVariable = { kind: 'integrated', by: 'DS4_ROCM_REGISTERED_WEIGHTS' } as const;
const apartByVariable = { kind: 'discrete', by: 'DS4_ROCM_REGISTERED_WEIGHTS' } as const;

const nonRouted = model.bytes.nonRouted;
const small = card(48);
const large = card(140);
const apu = card(128, 'integrated');

interface Row {
  readonly row: string;
  readonly plan: () => LoadPlan;
  readonly weights: object;
  /** Of all reasons together. */
  readonly says: RegExp;
  readonly upload?: string;
}

const rows: readonly Row[] = [
  {
    row: 'the CPU uses the mapping',
    plan: () => hostPlan(),
    weights: { place: 'host', source: 'mmap' },
    says: /in place from the file's mapping/,
  },
  {
    row: 'the CPU reads the weights with --no-mmap',
    plan: () => hostPlan({ source: 'read' }),
    weights: { place: 'host', source: 'read' },
    says: /read into memory, because --no-mmap/,
  },
  {
    row: '--ssd-streaming with one device and a named budget is legal',
    plan: () => plan(large, { budgetGib: 40 }, { experts: { streaming: true } }),
    weights: { place: 'streamExperts' },
    says: /--ssd-streaming was given/,
  },
  {
    row: '--gpu-resident copies everything that just fits',
    plan: () => plan(card(freeFor(model.bytes.total + session(512) + 1)), { resident: true }),
    weights: { place: 'device', deviceBytes: model.bytes.total, pinnedBytes: 0, source: 'read' },
    says: /--gpu-resident asks for it/,
    upload: 'staged',
  },
  {
    row: '--gpu-resident with --direct-io reads past the page cache',
    plan: () => plan(large, { resident: true }, { source: 'direct' }),
    weights: { place: 'device', source: 'direct' },
    says: /go into GPU memory/,
    upload: 'direct',
  },
  {
    row: 'no option copies everything with 2 GiB to spare',
    plan: () => plan(card(freeFor(model.bytes.total + session(512) + 2 * gib + 1))),
    weights: { place: 'device' },
    says: /because they fit/,
    upload: 'staged',
  },
  {
    row: '--gpu-resident on a device that shares main memory makes no difference',
    plan: () => plan(apu, { resident: true }),
    weights: { place: 'device' },
    says: /--gpu-resident makes no difference/,
  },
  {
    row: '--gpu-resident on a card that is too small falls back with the sums',
    plan: () => plan(small, { resident: true }),
    weights: { place: 'mappedExperts', deviceBytes: nonRouted },
    says: /80\.76 GiB.*exceed the 45\.10 GiB/,
  },
  {
    row: '--ssd-streaming keeps a cache, and a tier of it in main memory',
    plan: () => plan(small, {}, { experts: { streaming: true } }),
    weights: {
      place: 'streamExperts',
      deviceBytes: nonRouted,
      source: 'read',
      experts: { policy: 'lru', expertBytes: 7_077_888 },
    },
    says: /expert cache: \d+ experts .*in reserve; .*binds/,
    upload: 'staged',
  },
  {
    row: '--ssd-streaming reads past a page cache that could not hold the file',
    plan: () => plan(small, {}, { ramGib: 64, experts: { streaming: true } }),
    weights: { place: 'streamExperts', source: 'direct', dropReadPages: true },
    says: /read from the file when they are needed/,
  },
  {
    row: 'no option on a card that is too small maps the experts and copies the hot ones',
    plan: () => plan(small),
    weights: {
      place: 'mappedExperts',
      pinCopies: false,
      source: 'mmap',
      pinnedBytes: model.bytes.routed,
    },
    says: /read over the bus, those in frequent use copied/,
    upload: 'staged',
  },
  {
    row: 'weights outside the experts that do not fit are mapped too',
    plan: () => plan(card(10)),
    weights: { place: 'mappedExperts', pinCopies: false },
    says: /of weights outside the experts do not fit into GPU memory/,
  },
  {
    row: 'a mapping that cannot be pinned is replaced by pinned memory of our own',
    plan: () => plan(small, {}, { failures: [mapFailed] }),
    weights: { place: 'mappedExperts', pinCopies: true, source: 'read' },
    says: /mapping of the file could not be pinned.*not supported/,
  },
  {
    row: 'experts that can be pinned in no way are streamed',
    plan: () => plan(small, {}, { failures: [mapFailed, pinFailed] }),
    weights: { place: 'streamExperts' },
    says: /could not be pinned in main memory/,
  },
  {
    row: 'experts that neither memory holds are streamed',
    plan: () => plan(small, {}, { ramGib: 32 }),
    weights: { place: 'streamExperts' },
    says: /exceed the 45\.10 GiB that can be used, and main memory cannot hold them pinned either \(72\.56 GiB/,
  },
  {
    row: '--ssd-streaming on shared memory has no tier beside the cache',
    plan: () => plan(apu, {}, { ramGib: 128, experts: { streaming: true } }),
    weights: { place: 'streamExperts', experts: { hostBytes: 0 } },
    says: /experts in main memory: none/,
  },
  {
    row: '--ssd-streaming on memory that a variable says is shared has no tier, and the usual reserve',
    plan: () =>
      plan(card(128), { treatAs: sharedByVariable }, { ramGib: 128, experts: { streaming: true } }),
    weights: { place: 'streamExperts', experts: { hostBytes: 0 }, pinnedBytes: 0 },
    says: /treated as integrated, because DS4_ROCM_REGISTERED_WEIGHTS is set[^]*16\.00 GiB in reserve[^]*none, because the GPU shares/,
    upload: 'staged',
  },
  {
    row: '--ssd-streaming on memory that a variable says is a card of its own has a tier',
    plan: () =>
      plan(
        card(64, 'integrated'),
        { treatAs: apartByVariable },
        { ramGib: 64, experts: { streaming: true } },
      ),
    weights: {
      place: 'streamExperts',
      experts: { hostBytes: Math.floor((63.75 * gib) / 2 / 7_077_888) * 7_077_888 },
    },
    says: /treated as discrete, because DS4_ROCM_REGISTERED_WEIGHTS is set/,
  },
  {
    row: '--ssd-streaming on shared memory pins what a limit leaves of the other weights in the mapping',
    plan: () => plan(apu, {}, { ramGib: 128, experts: { streaming: true, outsideGib: 2 } }),
    weights: { place: 'streamExperts', pinCopies: false, experts: { hostBytes: 0 } },
    says: /because DS4_ROCM_STREAM_MODEL_CACHE_GB=2 allows 2\.00 GiB/,
  },
  {
    row: '--ssd-streaming on shared memory copies them where the mapping cannot be pinned',
    plan: () =>
      plan(
        apu,
        {},
        {
          ramGib: 128,
          experts: { streaming: true, outsideGib: 2 },
          failures: [mapFailed],
        },
      ),
    weights: { place: 'streamExperts', pinCopies: true, experts: { hostBytes: 0 } },
    says: /mapping of the file could not be pinned.*not supported/,
  },
  {
    row: '--ssd-streaming with all other weights in GPU memory pins nothing that could fail',
    plan: () => plan(small, {}, { experts: { streaming: true }, failures: [mapFailed] }),
    weights: { place: 'streamExperts', pinnedBytes: 0, pinCopies: false },
    says: /mapping of the file could not be pinned/,
  },
  {
    row: '--ssd-streaming on shared memory has no tier that could fail',
    plan: () =>
      plan(apu, {}, { ramGib: 128, experts: { streaming: true }, failures: [hostTierFailed] }),
    weights: plan(apu, {}, { ramGib: 128, experts: { streaming: true } }).weights,
    says: /none, because the GPU shares main memory/,
  },
  {
    row: '--ssd-streaming on a card whose tier could not be had has none',
    plan: () => plan(small, {}, { experts: { streaming: true }, failures: [hostTierFailed] }),
    weights: { place: 'streamExperts', experts: { hostBytes: 0 } },
    says: /with a tier in main memory: no pinned slabs[^]*none, because it could not be had/,
  },
  {
    row: 'experts used in place on shared memory are read into pinned memory when the mapping cannot be pinned',
    plan: () => plan(card(70, 'integrated'), {}, { ramGib: 96, failures: [mapFailed] }),
    weights: {
      place: 'mappedExperts',
      pinCopies: true,
      source: 'read',
      pinnedBytes: model.bytes.routed,
    },
    says: /are used in place.*read into pinned memory of our own/,
    upload: 'staged',
  },
  {
    row: 'experts that can be pinned in no way on shared memory are streamed, without a tier',
    plan: () => plan(card(70, 'integrated'), {}, { ramGib: 96, failures: [mapFailed, pinFailed] }),
    weights: { place: 'streamExperts', pinnedBytes: 0, experts: { hostBytes: 0 } },
    says: /could not be pinned in main memory[^]*none, because the GPU shares main memory/,
  },
  {
    row: 'main memory without room for the pinned buffers lets a card take the model from the mapping',
    plan: () => plan(large, {}, { ramGib: 1 / 32 }),
    weights: { place: 'device', source: 'mmap' },
    says: /because main memory has only 32\.00 MiB free, too little for 4 of 16\.00 MiB/,
    upload: 'mapping',
  },
  {
    row: 'shared memory takes the whole model through pinned buffers, and the mapping is not kept',
    plan: () => plan(apu, {}, { ramGib: 128 }),
    weights: { place: 'device', source: 'read', dropReadPages: true },
    says: /go into GPU memory/,
    upload: 'staged',
  },
  {
    row: 'shared memory that is too small for two copies maps the experts in place',
    plan: () => plan(card(70, 'integrated'), {}, { ramGib: 96 }),
    weights: { place: 'mappedExperts' },
    says: /are used in place/,
  },
  {
    row: 'a slice counts its own layers only',
    plan: () => plan(large, {}, { layers: { first: 22, last: 42 } }),
    weights: { place: 'device', routedBytes: (model.bytes.routed * 21) / 43 },
    says: /go into GPU memory/,
  },
  {
    row: '--mlock on shared memory keeps the mapping and locks it',
    plan: () => plan(apu, {}, { ramGib: 128, lock: true }),
    weights: { place: 'mappedExperts', source: 'mmap', lock: true },
    says: /--mlock keeps the mapping/,
    upload: 'mapping',
  },
  {
    row: '--mlock locks what the CPU maps',
    plan: () => hostPlan({ lock: true }),
    weights: { place: 'host', source: 'mmap', lock: true },
    says: /80\.76 GiB of weights are locked/,
  },
  {
    row: '--mlock and --no-mmap together lock what was read',
    plan: () => hostPlan({ lock: true, source: 'read' }),
    weights: { place: 'host', source: 'read', lock: true },
    says: /are locked/,
  },
  {
    row: '--mlock has nothing to lock when all weights are in GPU memory',
    plan: () => plan(large, {}, { lock: true }),
    weights: { place: 'device', lock: false },
    says: /--mlock has no effect: no weights stay in main memory/,
  },
  {
    row: '--check-tensors on shared memory uploads from the mapping',
    plan: () => plan(apu, { checkUpload: true }, { ramGib: 128 }),
    weights: { place: 'device', source: 'mmap' },
    says: /--check-tensors compares with it/,
    upload: 'mapping',
  },
  {
    row: '--no-mmap and --check-tensors together read through pinned buffers',
    plan: () => plan(apu, { checkUpload: true }, { ramGib: 128, source: 'read' }),
    weights: { place: 'device', source: 'read' },
    says: /go into GPU memory/,
    upload: 'staged',
  },
  {
    row: 'shared memory whose pinned buffers cannot be had takes the model from the mapping',
    plan: () => plan(apu, {}, { ramGib: 128, failures: [ringFailed] }),
    weights: { place: 'device', source: 'mmap' },
    says: /from the mapping of the file instead of through pinned buffers, because those could not be had/,
    upload: 'mapping',
  },
  {
    row: 'a card whose pinned buffers cannot be had takes the model from the mapping',
    plan: () => plan(large, {}, { failures: [ringFailed] }),
    weights: { place: 'device', source: 'mmap' },
    says: /^the pinned buffers through which weights are copied could not be had: no pinned memory/m,
    upload: 'mapping',
  },
  {
    row: 'streamed weights outside the experts that cannot be pinned in the mapping are copied',
    plan: () =>
      plan(card(10), {}, { experts: { streaming: true }, failures: [weightsFailed, mapFailed] }),
    weights: { place: 'streamExperts', pinCopies: true },
    says: /mapping of the file could not be pinned/,
  },
  {
    row: '--mlock finds what a GPU reads in main memory pinned, whatever the system lets it lock',
    plan: () => plan(small, {}, { lock: true }),
    weights: { place: 'mappedExperts', lock: true },
    says: /72\.56 GiB of weights are pinned in main memory for the GPU, so they are locked/,
  },
  {
    row: '--check-tensors on a card changes nothing',
    plan: () => plan(large, { checkUpload: true }),
    weights: { place: 'device', source: 'read' },
    says: /go into GPU memory/,
    upload: 'staged',
  },
  {
    row: '--no-mmap pins what was read instead of the mapping',
    plan: () => plan(small, {}, { source: 'read' }),
    weights: { place: 'mappedExperts', source: 'read', pinCopies: true },
    says: /read into pinned memory of our own/,
    upload: 'staged',
  },
  {
    row: '--weight-paging makes eight slots for the layers',
    plan: () => plan(small, {}, { paging: {} }),
    weights: { place: 'mappedExperts', pageSlots: 8 },
    says: /43 layers take turns in 8 slots/,
  },
  {
    row: '--weight-paging with --ssd-streaming does both',
    plan: () => plan(small, {}, { paging: { slots: 3 }, experts: { streaming: true } }),
    weights: { place: 'streamExperts', pageSlots: 3 },
    says: /take turns in 3 slots/,
  },
  {
    row: 'a slice of a GPU without its tier in main memory stays without it',
    plan: () =>
      plan(
        small,
        {},
        {
          layers: { first: 0, last: 20 },
          experts: { streaming: true, hostTier: false },
        },
      ),
    weights: { place: 'streamExperts', experts: { hostBytes: 0 } },
    says: /experts in main memory: none/,
  },
  {
    row: 'a copy that failed leads to mapped experts',
    plan: () => plan(large, { resident: true }, { failures: [copyFailed] }),
    weights: { place: 'mappedExperts' },
    says: /could not be copied into GPU memory: no memory for the image/,
  },
  {
    row: 'a simulated device is planned by its numbers',
    plan: () =>
      planLoad(model, { memoryAvailable: 256 * gib, gpu: { ...small, backend: 'sim' } }, {}),
    weights: { place: 'mappedExperts' },
    says: /sim device 0/,
  },
];

test.each(rows)('$row', ({ plan: make, weights, says, upload }) => {
  const planned = make();

  expect(planned.weights).toMatchObject(weights);
  expect(planned.reasons.map(({ text }) => text).join('\n')).toMatch(says);
  if (upload !== undefined) {
    expect(planned).toMatchObject({ upload: { path: upload } });
  }
});

describe('what a user forbids', () => {
  test('copies of hot experts go with the copy of the model', () => {
    expect(plan(small, { resident: false }).weights.experts).toBeUndefined();
    expect(plan(small).weights.experts?.slots).toBeGreaterThan(4000);
  });

  test('a required copy that cannot be made is an error', () => {
    expect(refusal(() => plan(small, { residentRequired: true }))).toMatch(
      /whole model has to be in GPU memory.*80\.76 GiB.*45\.10 GiB.*--cpu/,
    );
    expect(plan(large, { residentRequired: true }).weights.place).toBe('device');
  });

  test('pinned memory of our own is not taken against the variable', () => {
    const pinForbiddenBy = 'DS4_CUDA_NO_PINNED_ARENA_FALLBACK';

    expect(plan(small, { pinForbiddenBy }, { failures: [mapFailed] }).weights.place).toBe(
      'streamExperts',
    );
    expect(refusal(() => plan(card(10), { pinForbiddenBy }))).toContain(pinForbiddenBy);
  });
});

test('main memory without room for one buffer of an upload is refused with both numbers', () => {
  expect(refusal(() => plan(large, {}, { ramGib: 1 / 128 }))).toMatch(
    /through a buffer of 16\.00 MiB, and main memory has 8\.00 MiB free; .*--cpu/,
  );
});

test('pinned experts and the pinned buffers share main memory', () => {
  const exact = (model.bytes.routed + 4 * 64 * 2 ** 20) / gib;

  expect(plan(small, {}, { ramGib: exact }).weights.place).toBe('mappedExperts');
  expect(plan(small, {}, { ramGib: exact - 0.001 }).weights.place).toBe('streamExperts');
});

describe('paging', () => {
  test('refuses zero slots', () => {
    expect(refusal(() => plan(small, {}, { paging: { slots: 0 } }))).toMatch(
      /--weight-paging-slots 0/,
    );
  });

  test('makes no more slots than there are layers, or than fit', () => {
    expect(plan(small, {}, { paging: { slots: 100 } }).weights.pageSlots).toBe(43);
    const tight = plan(card(7), {}, { paging: { slots: 40 } });
    expect(tight.weights.pageSlots).toBeLessThan(20);
    expect(texts(tight, 'warning')).toMatch(/--weight-paging-slots 40: .*are left, so/);
    expect(refusal(() => plan(card(5), {}, { paging: {} }))).toMatch(/--weight-paging needs/);
  });
});

describe('a lock', () => {
  test('that the system does not allow is left out, with both figures', () => {
    const planned = planLoad(
      model,
      { memoryAvailable: 128 * gib, lockableBytes: 8 * 2 ** 20 },
      { context: 4096, lock: true },
    );

    expect(planned.weights.lock).toBe(false);
    expect(texts(planned, 'warning')).toMatch(/80\.76 GiB.*8\.00 MiB.*ulimit/);
  });

  test('of more than is free is left out', () => {
    expect(hostPlan({ ramGib: 64, lock: true }).weights.lock).toBe(false);
  });
});
