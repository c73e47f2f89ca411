import { describe, expect, test } from 'vitest';
import type { ExpertRequest, GpuRequest } from '../../../src/plan/index.js';
import { card, gib, hostPlan, plan, refusal, texts } from './machines.js';
import type { More } from './machines.js';

const mib = 2 ** 20;

function notes(experts: ExpertRequest, more: More = {}, free = 24, gpu: GpuRequest = {}): string {
  const { ramGib = 64 } = more;
  const planned = plan(card(free), gpu, {
    ...more,
    ramGib,
    experts: { streaming: true, ...experts },
  });
  return texts(planned, 'note');
}

describe('why there is no tier in main memory', () => {
  test('the option', () => {
    expect(notes({ hostGib: 0 })).toMatch(/main memory: none, because --host-expert-cache 0 was/);
  });

  test('the variable', () => {
    expect(notes({ hostTier: false })).toMatch(
      /main memory: none, because DS4_ROCM_HOST_MAPPED_EXPERT_FALLBACK is 0/,
    );
  });

  test('a failure', () => {
    const failures = [{ step: 'hostTier', reason: 'no' }] as const;

    expect(notes({}, { failures })).toMatch(/main memory: none, because it could not be had/);
  });

  test('a GPU that shares main memory, where the option gets a warning', () => {
    const shared = (hostGib?: number) =>
      plan(card(64, 'integrated'), {}, { ramGib: 64, experts: { streaming: true, hostGib } });

    expect(texts(shared(), 'note')).toMatch(/main memory: none, because the GPU shares main/);
    expect(texts(shared(), 'warning')).toBe('');
    expect(texts(shared(4), 'warning')).toMatch(/--host-expert-cache 4 has no effect: the GPU/);
  });

  test('a slot for every expert', () => {
    const cache = { kind: 'experts', count: 11_008 } as const;

    expect(notes({ cache }, { ramGib: 256 }, 140)).toMatch(/none, because every expert has a slot/);
  });

  test('nothing is said of a tier that is there, unless more was allowed than there are experts', () => {
    expect(notes({})).toMatch(/experts in main memory: \d+ experts .* read over the bus$/m);
    expect(notes({ hostGib: 100 }, { ramGib: 256 })).toMatch(
      /no more without a slot, for all that --host-expert-cache 100 allows 100\.00 GiB/,
    );
  });
});

describe('the limit of the weights outside the experts', () => {
  const limited = (outsideGib: number, gpu: GpuRequest = {}, more: More = {}) =>
    plan(card(24), gpu, { ramGib: 64, ...more, experts: { streaming: true, outsideGib } });

  test('is said, and is named as the reason when it binds', () => {
    expect(texts(limited(2), 'note')).toMatch(
      /at most 2\.00 GiB of GPU memory, because DS4_ROCM_STREAM_MODEL_CACHE_GB is set/,
    );
    expect(texts(limited(2), 'warning')).toMatch(
      /do not go into GPU memory, because DS4_ROCM_STREAM_MODEL_CACHE_GB=2 allows 2\.00 GiB: they stay/,
    );
    expect(texts(limited(2), 'warning')).not.toContain('fit into GPU memory');
    expect(limited(2).weights.deviceBytes).toBeLessThanOrEqual(2 * gib);
  });

  test('is not blamed when it does not bind', () => {
    expect(texts(limited(16), 'note')).toMatch(/at most 16\.00 GiB of GPU memory/);
    expect(texts(limited(16), 'warning')).toBe('');
    const small = plan(card(10), {}, { ramGib: 64, experts: { streaming: true, outsideGib: 9 } });
    expect(texts(small, 'warning')).toMatch(/do not fit into GPU memory: they stay/);
  });

  test('is named in refusals', () => {
    expect(refusal(() => limited(2, { pinForbiddenBy: 'DS4_X' }))).toMatch(
      /because DS4_ROCM_STREAM_MODEL_CACHE_GB=2 allows 2\.00 GiB, and DS4_X forbids/,
    );
    expect(refusal(() => limited(1, {}, { ramGib: 4 }))).toMatch(
      /fit neither into GPU memory .*, and DS4_ROCM_STREAM_MODEL_CACHE_GB=1 bounds the rest\) nor/,
    );
    expect(refusal(() => limited(1, {}, { paging: {} }))).toMatch(
      /--weight-paging needs .*, and DS4_ROCM_STREAM_MODEL_CACHE_GB=1 allows 1\.00 GiB/,
    );
  });
});

describe('how the file is read', () => {
  test.each<[string, ExpertRequest, More, RegExp]>([
    [
      'past a cache that is too small',
      {},
      {},
      /read past the page cache, because that has .* 80\./,
    ],
    ['through one that holds it', {}, { ramGib: 256 }, /through the page cache, because that can/],
    [
      'through it, because a variable says so',
      { bufferedBy: 'DS4_CUDA_NO_DIRECT_IO' },
      {},
      /through the page cache, because DS4_CUDA_NO_DIRECT_IO is set/,
    ],
    [
      'past it, because an option says so',
      { bufferedBy: 'DS4_CUDA_NO_DIRECT_IO' },
      { source: 'direct' },
      /past the page cache, because --direct-io was given; DS4_CUDA_NO_DIRECT_IO has no effect/,
    ],
    ['--no-mmap', {}, { source: 'read' }, /through the page cache, because --no-mmap was given/],
    ['--mmap', {}, { source: 'mmap' }, /through the page cache, because --mmap was given/],
    [
      'by as many readers as were named',
      {},
      { readThreads: 5 },
      /readers of weights: 5, .* because DS4_ROCM_STREAM_READ_WORKERS is set/,
    ],
    ['pages that are dropped', {}, {}, /what was read is dropped from the page cache: .*80\.76/],
    [
      'pages that are kept',
      {},
      { keepPages: true },
      /what was read stays in the page cache, because DS4_CUDA_KEEP_MODEL_PAGES is set/,
    ],
  ])('%s', (_name, experts, more, sentence) => {
    expect(notes(experts, more)).toMatch(sentence);
  });
});

describe('the upload buffers', () => {
  test('of another size than usual say who asked', () => {
    const gpu = { copyChunkMib: 32, copyChunkBy: '--upload-buffer-mib' };

    expect(notes({}, {}, 24, gpu)).toMatch(/4 of 32 MiB, because --upload-buffer-mib says so/);
    expect(notes({})).not.toContain('upload buffers');
  });

  test('that are cut get a warning with both numbers, unasked a note', () => {
    const gpu = { copyChunkMib: 4096, copyChunkBy: 'DS4_CUDA_MODEL_COPY_CHUNK_MB' };
    const planned = plan(card(140), gpu, { ramGib: 16 });

    expect(planned.upload.slotBytes).toBe(1024 * mib);
    expect(texts(planned, 'warning')).toMatch(
      /4 of 1024 MiB instead of the 4096 MiB of DS4_CUDA_MODEL_COPY_CHUNK_MB, because .* 16\.00 GiB/,
    );
    expect(texts(plan(card(140), {}, { ramGib: 0.5 }), 'note')).toMatch(/4 of 32 MiB, because/);
  });
});

test('--weight-paging on the processor is refused, as the command line refuses it', () => {
  expect(refusal(() => hostPlan({ paging: {} }))).toMatch(/^--weight-paging .*cuda, rocm and sim/);
});
