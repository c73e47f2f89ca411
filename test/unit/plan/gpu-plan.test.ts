import { describe, expect, test } from 'vitest';
import { automaticBudget, deviceBytesOf, planLoad, planSession } from '../../../src/plan/index.js';
import { card, freeFor, gib, model, plan, refusal, session, texts } from './machines.js';

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
      const planned = plan(card(140), request, {
        failures: [{ step: 'copy', reason: 'cudaMalloc said no' }],
      });

      expect(planned.weights.place).toBe('mappedExperts');
      expect(texts(planned, 'warning')).toContain('cudaMalloc said no');
    }
  });

  test('in pinned memory of our own when the mapping is not wanted', () => {
    const planned = plan(card(48), {}, { source: 'read' });

    expect(planned.weights).toMatchObject({
      place: 'mappedExperts',
      pinCopies: true,
      source: 'read',
    });
    expect(plan(card(48)).weights).toMatchObject({ pinCopies: false, source: 'mmap' });
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

    expect(plan(apu, {}, { ramGib: 96 }).weights.place).toBe('mappedExperts');
    const streamed = plan(apu, {}, { ramGib: 80 });
    expect(streamed.weights.place).toBe('streamExperts');
    expect(texts(streamed, 'headline')).toMatch(/72\.56 GiB.*free/);
  });

  test('can be declared by the environment, and the plan says by which variable', () => {
    const treatAs = { kind: 'integrated', by: 'DS4_ROCM_REGISTERED_WEIGHTS' } as const;

    const planned = plan(card(140), { treatAs });

    expect(planned.device.kind).toBe('integrated');
    expect(texts(planned, 'headline')).toContain('DS4_ROCM_REGISTERED_WEIGHTS');
  });
});

describe('a refusal', () => {
  test('names what the session needs, and the context that fits', () => {
    const message = refusal(() => plan(card(6), {}, { context: 1_000_000 }));

    expect(message).toMatch(/cuda device 0 .*1000000.*needs .*can be used/);
    expect(message).toContain('--cpu');
    const fitting = Number(/--ctx (\d+)/.exec(message)?.[1]);
    expect(plan(card(6), {}, { context: fitting }).context).toBe(fitting);
  });

  test('says when neither memory can hold the weights outside the experts', () => {
    expect(refusal(() => plan(card(6), {}, { ramGib: 4 }))).toMatch(
      /weights outside the experts fit neither.*GPU memory.*main memory.*--weight-paging.*--cpu/,
    );
  });

  test('takes a device that cannot tell its free memory for a full one', () => {
    expect(refusal(() => plan(card(0)))).toMatch(/cuda device 0 .*no free memory/);
  });
});

describe('the next session of a loaded model', () => {
  const loaded = plan(card(140));
  const facts = (freeGib: number) => ({ memoryAvailable: 256 * gib, gpu: card(freeGib) });

  test('is planned against what is free now', () => {
    const next = planSession(model, facts(30), { context: 65536 }, loaded);

    expect(next).toMatchObject({ context: 65536, weights: { place: 'device' } });
  });

  test('has the memory of the old one too', () => {
    const held = loaded.kv.bytes + loaded.bufferBytes;
    const room = ((held + 1.5 * gib) / gib).toFixed(2);

    expect(planSession(model, facts(0.5), { context: 32768 }, loaded)).toMatchObject({
      kv: loaded.kv,
      bufferBytes: loaded.bufferBytes,
    });
    expect(refusal(() => planSession(model, facts(2), { context: 1_000_000 }, loaded))).toContain(
      `${room} GiB can be used`,
    );
  });

  test('has its place in a budget that copies of experts fill', () => {
    const request = { gpu: { budgetGib: 24 } };
    const filled = plan(card(140), request.gpu);
    const left = filled.device.budgetBytes - deviceBytesOf(filled);
    const slots = filled.weights.experts?.expertBytes ?? 0;
    const larger = planSession(model, facts(116), { ...request, context: 40_000 }, filled);

    expect(left).toBeLessThan(slots);
    expect(larger.context).toBe(40_000);
    expect(larger.backend === 'cpu' ? Infinity : deviceBytesOf(larger)).toBeLessThanOrEqual(
      filled.device.budgetBytes,
    );
  });

  test('stays within a budget that was named', () => {
    const bounded = plan(card(140), { budgetGib: 90 });

    expect(
      refusal(() =>
        planSession(model, facts(50), { context: 1_000_000, gpu: { budgetGib: 90 } }, bounded),
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
