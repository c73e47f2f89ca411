// Failures of a GPU through the real native library, on the emulated card that `make gpu-emulated` builds.
import { resolve } from 'node:path';
import { afterEach, describe, expect, test } from 'vitest';
import { loadAsPlanned } from '../../src/cli/load-as-planned.js';
import {
  DeviceError,
  Engine,
  listDevices,
  NoMemoryError,
  probeBackend,
} from '../../src/engine/index.js';
import type { EngineOptions, Placement } from '../../src/engine/index.js';
import { openGguf } from '../../src/gguf/index.js';
import { describeModel } from '../../src/model/index.js';
import { deviceSessionBytes, planLoad } from '../../src/plan/index.js';
import type { LoadPlan } from '../../src/plan/index.js';
import {
  card,
  hasEmulatedCard,
  launchFailure,
  libraryDirectory,
  notSupported,
  outOfMemory,
} from './emulated-card.js';

const model = resolve(import.meta.dirname, '../fixtures/a-q8_0.gguf');
const description = describeModel(openGguf(model));

const tokens = Int32Array.from({ length: 24 }, (_, index) => (index * 37 + 5) % 512);

function engineFor(options: Partial<EngineOptions>): Engine {
  return new Engine({ description, backend: 'cuda', libraryDirectory, ...options });
}

async function bestTokens(engine: Engine): Promise<number[]> {
  await using session = await engine.openSession({ context: 64, prefillChunk: 32 });
  const { candidates } = await session.eval(tokens, { candidates: 8 });
  return [...(candidates?.ids ?? [])];
}

describe.skipIf(!hasEmulatedCard)('an emulated card', () => {
  afterEach(() => {
    card().setCount(1);
    card().mend();
  });

  test('is listed as a discrete device with its memory', () => {
    expect(listDevices('cuda', libraryDirectory)).toMatchObject([
      { kind: 'discrete', index: 0, arch: 'sm_90', totalBytes: 16 * 2 ** 30 },
    ]);
  });

  test('a card that is there and cannot be opened is no machine without one', () => {
    card().failCall('gpuGetDeviceProperties', outOfMemory);

    expect(probeBackend('cuda', libraryDirectory).kind).toBe('broken');
  });

  test('a driver that cannot count its cards is no machine without one', () => {
    card().failCall('gpuGetDeviceCount', notSupported);
    card().failCall('gpuGetDeviceCount', notSupported);

    expect(probeBackend('cuda', libraryDirectory)).toMatchObject({
      kind: 'broken',
      reason: expect.stringMatching(/does not work/) as string,
    });
  });

  test.each([-1, 0])(
    'without a driver or a card (%i) the reason is the sentence of the library',
    (count) => {
      card().setCount(count);

      const state = probeBackend('cuda', libraryDirectory);

      expect(state.kind).toBe('noDevice');
      expect(state.kind === 'noDevice' && state.reason).toMatch(/driver/);
    },
  );

  test.each(['resident', 'mappedExperts'] as const)(
    'that runs out of memory at any allocation of a %s model keeps nothing',
    async (placement: Placement) => {
      const before = card().heldBytes();
      let failures = 0;
      for (let skip = 0; ; skip += 1) {
        await using engine = engineFor({ placement });
        card().failCall('gpuMalloc', outOfMemory, skip);
        const failure = await engine.load().then(
          () => undefined,
          (thrown: unknown) => thrown,
        );
        card().mend();
        if (failure === undefined) {
          break;
        }
        expect(failure).toBeInstanceOf(NoMemoryError);
        await engine.close();
        expect(card().heldBytes()).toBe(before);
        failures += 1;
      }
      expect(failures).toBeGreaterThan(0);
    },
  );

  test.each([
    // The first memory of each kind is the backend's own: no other plan would do without it.
    ['gpuMalloc', outOfMemory, 1],
    ['gpuMemcpyAsync', outOfMemory, 0],
  ])(
    'whose %s fails while a model is copied leads to mapped experts and the same answer',
    async (call, error, skip) => {
      await using whole = engineFor({ placement: 'resident' });
      await whole.load();
      const expected = await bestTokens(whole);
      await whole.close();
      const plans: LoadPlan[] = [];

      card().failCall(call, error, skip);
      const { plan, loaded: engine } = await loadAsPlanned({
        plan: (failures) => {
          const [device] = listDevices('cuda', libraryDirectory);
          const next = planLoad(
            description,
            {
              memoryAvailable: 2 ** 36,
              gpu: { ...device!, backend: 'cuda', kind: 'discrete' },
            },
            { context: 64, failures },
          );
          plans.push(next);
          return next;
        },
        load: async ({ weights }) => {
          const attempt = engineFor({
            placement: weights.place === 'device' ? 'resident' : 'mappedExperts',
          });
          try {
            await attempt.load();
            return attempt;
          } catch (thrown) {
            await attempt.close();
            throw thrown;
          }
        },
      });

      expect(plans.map(({ weights }) => weights.place)).toEqual(['device', 'mappedExperts']);
      expect(plan.reasons.some(({ kind }) => kind === 'warning')).toBe(true);
      expect(engine.info.deviceBytes).toBeLessThan(engine.info.weightBytes);
      expect(await bestTokens(engine)).toEqual(expected);
      await engine.close();
    },
  );

  test('that is lost in the middle of a model is a device error', async () => {
    await using engine = engineFor({ placement: 'resident' });
    card().failCall('gpuMemcpyAsync', launchFailure);

    await expect(engine.load()).rejects.toBeInstanceOf(DeviceError);
  });

  test('takes no more for a session than the plan says', async () => {
    await using engine = engineFor({ placement: 'resident' });
    await engine.load();
    for (const [context, prefillChunk] of [
      [64, 1],
      [512, 64],
      [4096, 2048],
      [200_000, 512],
    ] as const) {
      await using session = await engine.openSession({ context, prefillChunk, checkpoints: 4 });
      const sizes = session.measure();
      const planned = deviceSessionBytes(description.shape, {
        layers: { first: 0, last: description.shape.layerCount - 1 },
        context,
        prefillChunk,
        checkpoints: 4,
      });

      expect(planned.kv).toBe(sizes.kvBytes);
      expect(planned.buffers).toBeGreaterThanOrEqual(
        sizes.workspaceBytes + sizes.scratchBytes + 4 * sizes.checkpointBytes,
      );
    }
  });
});
