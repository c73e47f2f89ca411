import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  automaticBudget,
  deviceSessionBytes,
  PlanError,
  planLoad,
  planSession,
} from '../../../src/plan/index.js';
import type { GpuFacts, GpuPlan, GpuRequest, PlanRequest } from '../../../src/plan/index.js';
import type { ModelDescription, ModelShape } from '../../../src/model/index.js';

const gib = 2 ** 30;

/** Flash's dimensions as far as the plan reads them. */
const flash = {
  layerCount: 43,
  embedding: 4096,
  vocab: 129280,
  hcCount: 4,
  headCount: 64,
  headDim: 512,
  qRank: 1024,
  outputGroups: 8,
  outputRank: 1024,
  window: 128,
  indexerHeads: 64,
  indexerDim: 128,
  indexerTopK: 512,
  expertCount: 256,
  expertUsed: 6,
  expertWidth: 2048,
  trainedContext: 1048576,
  compressRatio: [0, 0, ...Array.from({ length: 41 }, (_, index) => (index % 2 === 0 ? 4 : 128))],
} as unknown as ModelShape;

/** The file whose sizes spec and requests quote. */
const model = {
  shape: flash,
  bytes: { total: 80.76 * gib, routed: 72.56 * gib, nonRouted: 8.2 * gib },
} as unknown as ModelDescription;

function card(freeGib: number, kind: GpuFacts['kind'] = 'discrete'): GpuFacts {
  return {
    backend: 'cuda',
    index: 0,
    name: 'a card',
    kind,
    totalBytes: freeGib * gib,
    freeBytes: freeGib * gib,
  };
}

function plan(
  gpu: GpuFacts,
  request: GpuRequest = {},
  more: PlanRequest & { ramGib?: number } = {},
): GpuPlan {
  const { ramGib = 256, ...rest } = more;
  const facts = { memoryAvailable: ramGib * gib, gpu };
  const planned = planLoad(model, facts, { context: 32768, ...rest, gpu: request });
  if (planned.backend === 'cpu') {
    throw new Error('planned for the CPU');
  }
  return planned;
}

function refusal(work: () => unknown): string {
  try {
    work();
  } catch (thrown) {
    expect(thrown).toBeInstanceOf(PlanError);
    return (thrown as Error).message;
  }
  throw new Error('planned');
}

function texts({ reasons }: GpuPlan, kind: string): string {
  return reasons
    .filter((reason) => reason.kind === kind)
    .map(({ text }) => text)
    .join('\n');
}

/** Free memory with which exactly `bytes` can be used automatically, on a large card. */
function freeFor(bytes: number): number {
  return (bytes + gib / 2) / 0.95 / gib;
}

const session = (prefillChunk: number): number =>
  deviceSessionBytes(flash, {
    layers: { first: 0, last: 42 },
    context: 32768,
    prefillChunk,
    checkpoints: 4,
  }).total;

describe('the budget', () => {
  test('is what is free less the larger of 2 GiB and 5 percent, and a margin', () => {
    expect(automaticBudget(100 * gib)).toBe(95 * gib);
    expect(automaticBudget(10 * gib)).toBe(8 * gib);
    expect(automaticBudget(gib)).toBe(0);
    expect(plan(card(140)).device.budgetBytes).toBe(140 * gib * 0.95 - gib / 2);
  });

  test('is as said, less the margin', () => {
    expect(plan(card(140), { budgetGib: 100 }).device.budgetBytes).toBe(99.5 * gib);
  });

  test('is clipped to what is free, with a warning', () => {
    const planned = plan(card(140), { budgetGib: 200 });

    expect(planned.device.budgetBytes).toBe(139.5 * gib);
    expect(texts(planned, 'warning')).toMatch(/--gpu-vram 200.*140\.00 GiB/);
  });
});

describe('the whole model goes into GPU memory', () => {
  test('without being asked, when it fits with room to spare, and start-up says so', () => {
    const planned = plan(card(140));

    expect(planned).toMatchObject({
      backend: 'cuda',
      weights: { place: 'device', deviceBytes: model.bytes.total },
      kv: { place: 'device' },
      prefillChunk: 4096,
      upload: { slots: 4, slotBytes: 64 * 2 ** 20 },
    });
    expect(texts(planned, 'headline')).toContain('80.76 GiB');
    expect(texts(planned, 'warning')).toBe('');
  });

  test('unasked only with 2 GiB to spare, asked without', () => {
    const exact = card(freeFor(model.bytes.total + session(512) + 1));

    expect(plan(exact).weights.place).toBe('mappedExperts');
    expect(plan(exact, { resident: true }).weights.place).toBe('device');
    expect(plan(exact, { copyAskedBy: 'DS4_CUDA_COPY_MODEL_CHUNKED' }).weights.place).toBe(
      'device',
    );
    const roomy = card(freeFor(model.bytes.total + session(512) + 2 * gib + 1));
    expect(plan(roomy).weights.place).toBe('device');
  });

  test('with a smaller prefill chunk when that makes it fit', () => {
    const planned = plan(card(freeFor(model.bytes.total + session(1024) + 2 * gib + 1)));

    expect(planned.weights.place).toBe('device');
    expect(planned.prefillChunk).toBe(1024);
    expect(texts(planned, 'note')).toMatch(/prefill chunk: 1024.*4096/);
  });

  test('but never with another chunk than the user named', () => {
    const tight = card(freeFor(model.bytes.total + session(1024) + 2 * gib + 1));

    const planned = plan(tight, {}, { prefillChunk: 4096 });

    expect(planned.weights.place).toBe('mappedExperts');
    expect(planned.prefillChunk).toBe(4096);
  });

  test('through buffers of the size that the environment says, within limits', () => {
    const slot = (copyChunkMib: number) => plan(card(140), { copyChunkMib }).upload.slotBytes;

    expect([slot(32), slot(1), slot(9999)]).toEqual([32 * 2 ** 20, 16 * 2 ** 20, 4096 * 2 ** 20]);
  });
});

describe('the experts stay in main memory', () => {
  test('when the model does not fit, with the sums', () => {
    const planned = plan(card(48));

    expect(planned.weights).toMatchObject({
      place: 'mappedExperts',
      deviceBytes: model.bytes.nonRouted,
    });
    expect(texts(planned, 'headline')).toMatch(
      /72\.56 GiB of experts.*bus.*80\.76 GiB.*45\.10 GiB/,
    );
    expect(texts(planned, 'warning')).toBe('');
  });

  test('with a warning when the copy was asked for', () => {
    expect(texts(plan(card(48), { resident: true }), 'warning')).toMatch(/experts.*80\.76 GiB/);
  });

  test('when --no-gpu-resident forbids the copy, also against the variable', () => {
    const planned = plan(card(140), {
      resident: false,
      copyAskedBy: 'DS4_CUDA_COPY_MODEL_CHUNKED',
    });

    expect(planned.weights.place).toBe('mappedExperts');
    expect(texts(planned, 'headline')).toContain('--no-gpu-resident');
    expect(texts(planned, 'warning')).toBe('');
  });

  test.each([
    [{ resident: true }, '--gpu-resident'],
    [{ copyAskedBy: 'DS4_CUDA_COPY_MODEL_CHUNKED' }, 'DS4_CUDA_COPY_MODEL_CHUNKED'],
  ])('when a variable forbids the copy, with a warning to who asked: %j', (request, asked) => {
    const planned = plan(card(140), { ...request, copyForbiddenBy: 'DS4_CUDA_NO_MODEL_COPY' });

    expect(planned.weights.place).toBe('mappedExperts');
    expect(texts(planned, 'warning')).toContain(`${asked} has no effect: DS4_CUDA_NO_MODEL_COPY`);
  });

  test('when a variable forbids the copy, without a warning to who did not ask', () => {
    const planned = plan(card(140), { copyForbiddenBy: 'DS4_CUDA_DIRECT_MODEL' });

    expect(planned.weights.place).toBe('mappedExperts');
    expect(texts(planned, 'warning')).toBe('');
    expect(texts(planned, 'headline')).toContain('DS4_CUDA_DIRECT_MODEL');
  });

  test('when the copy has failed, with its reason, whatever was asked', () => {
    for (const request of [{}, { resident: true }]) {
      const planned = plan(card(140), request, { failedCopy: 'cudaMalloc said no' });

      expect(planned.weights.place).toBe('mappedExperts');
      expect(texts(planned, 'warning')).toContain('cudaMalloc said no');
    }
  });

  test('and --no-mmap says that it cannot help them', () => {
    expect(texts(plan(card(48), {}, { source: 'read' }), 'warning')).toContain('--no-mmap');
    expect(texts(plan(card(140), {}, { source: 'read' }), 'warning')).toBe('');
  });
});

describe('an integrated GPU', () => {
  test('takes the whole model when it fits, without room to spare', () => {
    const exact = card(freeFor(model.bytes.total + session(512) + 1), 'integrated');

    expect(plan(exact).weights.place).toBe('device');
  });

  test('says that --gpu-resident makes no difference', () => {
    expect(texts(plan(card(140, 'integrated'), { resident: true }), 'headline')).toContain(
      '--gpu-resident makes no difference',
    );
  });

  test('counts its memory and the experts together', () => {
    const apu = card(64, 'integrated');

    expect(refusal(() => plan(apu, {}, { ramGib: 80 }))).toMatch(/72\.56 GiB.*80\.00 GiB.*--cpu/);
    expect(plan(apu, {}, { ramGib: 96 }).weights.place).toBe('mappedExperts');
  });

  test('can be declared by the environment, and the plan says by which variable', () => {
    const treatAs = { kind: 'integrated', by: 'DS4_ROCM_REGISTERED_WEIGHTS' } as const;

    const planned = plan(card(140), { treatAs });

    expect(planned.device.kind).toBe('integrated');
    expect(texts(planned, 'headline')).toContain('DS4_ROCM_REGISTERED_WEIGHTS');
  });
});

describe('a refusal', () => {
  test('names what the dense part and the session need, and the context that fits', () => {
    const message = refusal(() => plan(card(20), {}, { context: 1_000_000 }));

    expect(message).toMatch(/8\.20 GiB.*1000000/);
    expect(message).toContain('--cpu');
    const fitting = Number(/--ctx (\d+)/.exec(message)?.[1]);
    expect(plan(card(20), {}, { context: fitting }).context).toBe(fitting);
  });

  test('says when main memory cannot hold the experts either', () => {
    expect(refusal(() => plan(card(48), {}, { ramGib: 32 }))).toMatch(
      /experts \(72\.56 GiB\).*32\.00 GiB.*--cpu/,
    );
  });

  test('takes a device that cannot tell its free memory for a full one', () => {
    expect(refusal(() => plan(card(0)))).toMatch(/cuda device 0 .*no free memory/);
  });
});

test('no plan takes more than its budget', () => {
  fc.assert(
    fc.property(
      fc.integer({ min: 1, max: 400 }),
      fc.integer({ min: 1, max: 2_000_000 }),
      fc.constantFrom(true, false, undefined),
      fc.option(fc.integer({ min: 1, max: 400 }), { nil: undefined }),
      (freeGib, context, resident, budgetGib) => {
        let planned: GpuPlan;
        try {
          planned = plan(
            card(freeGib),
            {
              ...(resident === undefined ? {} : { resident }),
              ...(budgetGib === undefined ? {} : { budgetGib }),
            },
            { context },
          );
        } catch (thrown) {
          expect(thrown).toBeInstanceOf(PlanError);
          return;
        }
        const { weights, kv, bufferBytes, device } = planned;
        const sum = weights.deviceBytes + kv.bytes + bufferBytes;
        expect(sum).toBeLessThanOrEqual(device.budgetBytes);
        expect(device.budgetBytes).toBeLessThan(device.freeBytes);
        expect(planned.prefillChunk).toBeLessThanOrEqual(context);
      },
    ),
  );
});

describe('another session of a loaded model', () => {
  const loaded = plan(card(140));
  const facts = (freeGib: number) => ({ memoryAvailable: 256 * gib, gpu: card(freeGib) });

  test('is planned against what is free now', () => {
    const next = planSession(model, facts(30), { context: 65536 }, loaded);

    expect(next).toMatchObject({ context: 65536, weights: { place: 'device' } });
    expect(refusal(() => planSession(model, facts(2), { context: 1_000_000 }, loaded))).toMatch(
      /1000000.*1\.50 GiB/,
    );
  });

  test('stays within a budget that was named', () => {
    const bounded = plan(card(140), { budgetGib: 100 });

    expect(
      refusal(() =>
        planSession(model, facts(50), { context: 1_000_000, gpu: { budgetGib: 100 } }, bounded),
      ),
    ).toContain('can be used');
  });

  test('on the CPU does not count the weights again', () => {
    const request = { context: 4096, source: 'read' } as const;
    const host = planLoad(model, { memoryAvailable: 100 * gib }, request);

    const next = planSession(model, { memoryAvailable: 20 * gib }, request, host);

    expect(next.backend).toBe('cpu');
  });
});
