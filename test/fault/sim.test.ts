// A simulated GPU through the real native library: the same logits as the host's, and a ledger that comes out even.
import { resolve } from 'node:path';
import { afterEach, describe, expect, test } from 'vitest';
import {
  DeviceError,
  Engine,
  listDevices,
  NativeError,
  NoMemoryError,
  simulate,
} from '../../src/engine/index.js';
import type { EngineOptions, Placement, SimulatedFailure } from '../../src/engine/index.js';
import { openGguf } from '../../src/gguf/index.js';
import { describeModel } from '../../src/model/index.js';
import { simulatedMachine as machine } from '../support/simulated-machine.js';

const model = resolve(import.meta.dirname, '../fixtures/a-q8_0.gguf');
const description = describeModel(openGguf(model));
const tokens = Int32Array.from({ length: 24 }, (_, index) => (index * 37 + 5) % 512);
const vocab = description.shape.vocab;

function engineFor(options: Partial<EngineOptions>): Engine {
  return new Engine({ description, backend: 'sim', threads: 2, ...options });
}

/** Logits of a prompt in two chunks and of one token after it. */
async function logitsOf(engine: Engine): Promise<Float32Array[]> {
  await using session = await engine.openSession({ context: 64, prefillChunk: 16 });
  const results: Float32Array[] = [];
  for (const part of [tokens.subarray(0, 16), tokens.subarray(16), Int32Array.of(7)]) {
    const { logits } = await session.eval(part, { logitsRows: part.length });
    results.push(logits?.slice() ?? new Float32Array());
  }
  return results;
}

async function failureOf(work: Promise<unknown>): Promise<unknown> {
  return work.then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
}

afterEach(() => {
  simulate(machine);
});

describe('a simulated machine', () => {
  test.each([
    ['discrete', 'simulated discrete GPU'],
    ['integrated', 'simulated integrated GPU'],
  ] as const)('that is %s is listed so, with what others have left of it', (kind, name) => {
    simulate({ ...machine, kind, usedBytes: 2 ** 20 });

    expect(listDevices('sim')).toMatchObject([
      { kind, name, index: 0, arch: 'sim', totalBytes: 2 ** 30, freeBytes: 2 ** 30 - 2 ** 20 },
    ]);
  });

  test('that cannot be is refused with the reason', () => {
    const impossible = (): void => {
      simulate({ ...machine, usedBytes: 2 ** 30 + 1 });
    };

    expect(impossible).toThrow(NativeError);
    expect(impossible).toThrow(/cannot simulate this machine: 1073741825 of 1073741824 bytes/);
  });
});

describe.each(['discrete', 'integrated'] as const)('a simulated %s GPU', (kind) => {
  test.each(['resident', 'mappedExperts'] as const)(
    'gives the logits of the host bit by bit with the model %s, and everything back',
    async (placement: Placement) => {
      await using host = engineFor({ backend: 'cpu' });
      await host.load();
      const want = await logitsOf(host);
      simulate({ ...machine, kind });
      await using engine = engineFor({ placement });

      await engine.load();
      const got = await logitsOf(engine);
      const { simulation: before } = engine.telemetry();
      await engine.close();

      expect(want.map((logits) => logits.length)).toEqual([16 * vocab, 8 * vocab, vocab]);
      expect(got).toEqual(want);
      expect(before.allocations).toBeGreaterThan(0);
      expect(before.allocatedBytes).toBeGreaterThan(0);
      expect(before.pinnedBytes > 0).toBe(placement === 'mappedExperts');
      expect(before.mappedReadBytes > 0).toBe(placement === 'mappedExperts');
      expect(engine.telemetry().simulation).toMatchObject({
        toDeviceBytes: before.toDeviceBytes,
        allocations: 0,
        allocatedBytes: 0,
        pinnedBytes: 0,
      });
    },
  );
});

describe('the ledger', () => {
  test('of two equal runs is the same to the last byte and nanosecond', async () => {
    const ledgers = [];
    for (let run = 0; run < 2; run += 1) {
      await using engine = engineFor({ placement: 'mappedExperts', upload: { threads: 1 } });
      await engine.load();
      await logitsOf(engine);
      ledgers.push(engine.telemetry().simulation);
    }

    expect(ledgers[0]?.ns).toBeGreaterThan(0);
    expect(ledgers[1]).toEqual(ledgers[0]);
  });

  test('of a resident model has no weights over the bus while it decodes', async () => {
    await using engine = engineFor({ placement: 'resident' });
    await engine.load();
    await using session = await engine.openSession({ context: 64, prefillChunk: 16 });
    const before = engine.telemetry().simulation;

    await session.eval(Int32Array.of(7), { candidates: 8 });

    const after = engine.telemetry().simulation;
    expect(after.mappedReadBytes).toBe(0);
    expect(after.toDeviceBytes - before.toDeviceBytes).toBeLessThan(4096);
  });
});

describe('a call of the simulated GPU that fails', () => {
  const calls: readonly (readonly [SimulatedFailure['call'], Placement, typeof NativeError])[] = [
    ['allocate', 'resident', NoMemoryError],
    ['copy', 'resident', DeviceError],
    ['pin', 'resident', NoMemoryError],
    ['send', 'resident', DeviceError],
    ['wait', 'resident', DeviceError],
    ['map', 'mappedExperts', DeviceError],
  ];
  test.each(calls)(
    '(%s) ends the load with the reason and leaves nothing behind',
    async (call, placement, error) => {
      simulate({ ...machine, failure: { call, at: 1, count: 0 } });
      await using engine = engineFor({ placement });

      const failure = await failureOf(engine.load());
      await engine.close();

      expect(failure).toBeInstanceOf(error);
      expect(engine.telemetry().simulation.calls).toBeGreaterThan(0);
      expect(engine.telemetry().simulation).toMatchObject({
        allocations: 0,
        allocatedBytes: 0,
        pinnedBytes: 0,
      });
    },
  );

  test('in the middle of a session leaves it where it stood, and mended it goes on with the same bits', async () => {
    await using reference = engineFor({ placement: 'resident' });
    await reference.load();
    const want = await logitsOf(reference);
    await using engine = engineFor({ placement: 'resident' });
    await engine.load();
    await using session = await engine.openSession({ context: 64, prefillChunk: 16 });
    await session.eval(tokens.subarray(0, 16), { candidates: 1 });

    simulate({ ...machine, failure: { call: 'copy', at: 1, count: 0 } });
    const failure = await failureOf(session.eval(tokens.subarray(16), { candidates: 1 }));
    simulate(machine);
    const { logits } = await session.eval(tokens.subarray(16), { logitsRows: 8 });

    expect(failure).toBeInstanceOf(DeviceError);
    expect(logits).toEqual(want[1]);
  });
});
