// A model on several devices gives the bits of one device, wherever it is cut, and all its parts move together.
import { resolve } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import {
  CancelledError,
  crossingCount,
  DeviceError,
  Engine,
  simulate,
  SplitEngine,
} from '../../src/engine/index.js';
import type {
  BackendName,
  EngineOptions,
  EngineSession,
  ModelEngine,
} from '../../src/engine/index.js';
import { openGguf } from '../../src/gguf/index.js';
import { describeModel } from '../../src/model/index.js';
import { simulatedMachine } from '../support/simulated-machine.js';

const description = describeModel(openGguf(resolve('models/ds4-small.gguf')));
const { layerCount, vocab } = description.shape;
const chunk = 48;
const checkpoints = 2;
const tokens = Int32Array.from({ length: 330 }, (_, index) => (index * index * 31 + 5) % vocab);

const machine = { ...simulatedMachine, devices: 3 };

beforeEach(() => {
  simulate(machine);
});
afterEach(() => {
  simulate(machine);
});

interface Part {
  readonly backend: BackendName;
  readonly device: number;
  readonly layers: number;
}

function engineFor(part: Omit<Part, 'layers'>, slice?: EngineOptions['slice']): Engine {
  return new Engine({
    description,
    backend: part.backend,
    device: part.device,
    placement: part.backend === 'cpu' ? 'auto' : 'resident',
    threads: 2,
    ...(slice === undefined ? {} : { slice }),
  });
}

function splitEngine(parts: readonly Part[]): SplitEngine {
  let first = 0;
  return new SplitEngine(
    parts.map((part) => {
      const last = first + part.layers - 1;
      const slice = { first, last, embedding: first === 0, head: last === layerCount - 1 };
      first = last + 1;
      return engineFor(part, slice);
    }),
  );
}

function openSession(engine: ModelEngine): Promise<EngineSession> {
  return engine.openSession({ context: 512, prefillChunk: chunk, checkpoints });
}

/** Logits of each row of `part`, in chunks of at most `size`. */
async function logitsOf(session: EngineSession, part: Int32Array, size = chunk): Promise<Buffer> {
  const all: Buffer[] = [];
  for (let start = 0; start < part.length; start += size) {
    const rows = part.subarray(start, start + size);
    const { logits } = await session.eval(rows, { logitsRows: rows.length });
    all.push(Buffer.from(logits!.buffer, logits!.byteOffset, logits!.byteLength));
  }
  return Buffer.concat(all);
}

/** A prompt in chunks, tokens one by one, a step back, and a way back to a checkpoint. */
async function course(engine: ModelEngine): Promise<{ bits: Buffer[]; reached: number[] }> {
  await using session = await openSession(engine);
  const prompt = await logitsOf(session, tokens.subarray(0, 130));
  await session.checkpoint();
  const decoded = await logitsOf(session, tokens.subarray(130, 160), 1);
  const near = await session.rewind(145);
  const nearAgain = await logitsOf(session, tokens.subarray(near, 150), 1);
  const rest = await logitsOf(session, tokens.subarray(150));
  const far = await session.rewind(200);
  const farAgain = await logitsOf(session, tokens.subarray(far), 31);
  const start = await session.rewind(20);
  const position = session.position;
  return {
    bits: [prompt, decoded, nearAgain, rest, farAgain],
    reached: [near, far, start, position],
  };
}

async function wholeCourse(): ReturnType<typeof course> {
  await using whole = engineFor({ backend: 'sim', device: 0 });
  await whole.load();
  return await course(whole);
}

const sim = (device: number, layers: number): Part => ({ backend: 'sim', device, layers });
const rest = (layers: number): number => layerCount - layers;

const splits: [string, Part[]][] = [
  ['two devices', [sim(0, 2), sim(1, rest(2))]],
  ['two devices in another order', [sim(2, rest(1)), sim(0, 1)]],
  ['three devices', [sim(0, 1), sim(1, 2), sim(2, rest(3))]],
  ['one device and the processor', [sim(0, 3), { backend: 'cpu', device: 0, layers: rest(3) }]],
  [
    'two devices and the processor',
    [sim(0, 1), sim(1, rest(2)), { backend: 'cpu', device: 0, layers: 1 }],
  ],
];

describe('a model on', () => {
  test.each(splits)('%s gives the bits of one device', async (_, parts) => {
    const expected = await wholeCourse();
    await using engine = splitEngine(parts);
    await engine.load();

    const found = await course(engine);

    expect(found.reached).toEqual(expected.reached);
    expect(found.bits.map((bits, index) => bits.equals(expected.bits[index]!))).toEqual([
      true,
      true,
      true,
      true,
      true,
    ]);
  });
});

describe('two devices', () => {
  const two = [sim(0, 2), sim(1, rest(2))];

  test('give taps in the order of the layers, and hidden states and candidates of the last part', async () => {
    await using whole = engineFor({ backend: 'sim', device: 0 });
    await whole.load();
    await using engine = splitEngine(two);
    await engine.load();
    await using a = await openSession(whole);
    await using b = await openSession(engine);
    const request = { taps: ['experts', 'hidden'], wantHidden: true, candidates: 7 } as const;

    const expected = await a.eval(tokens.subarray(0, 5), request);
    const found = await b.eval(tokens.subarray(0, 5), request);

    expect(found).toEqual(expected);
    expect(new Set(found.taps.map(({ layer }) => layer)).size).toBe(layerCount);
  });

  test('have each their own memory and ledger, and the sums are those of the model', async () => {
    await using engine = splitEngine(two);
    await engine.load();
    const { weightBytes, deviceBytes } = engine.info;
    await using session = await openSession(engine);
    await session.eval(tokens.subarray(0, 10), {});

    const { simulation, tokensDone, evals, bytesDone, bytesTotal } = engine.telemetry();

    const all = description.tensors.reduce((bytes, { tensor }) => bytes + tensor.bytes, 0);
    expect([weightBytes, deviceBytes, bytesDone, bytesTotal]).toEqual([all, all, all, all]);
    expect([tokensDone, evals]).toEqual([10, 1]);
    expect(simulation.toDeviceBytes).toBeGreaterThanOrEqual(all);
    expect(engine.partInfos.map((info) => info.deviceBytes > 0)).toEqual([true, true]);
    await engine.close();
    expect(engine.telemetry().simulation).toMatchObject({ allocations: 0, allocatedBytes: 0 });
  });

  test('stand where they stood when the second one fails, and go on to the same bits', async () => {
    const expected = await wholeCourse();
    await using engine = splitEngine(two);
    await engine.load();
    await using session = await openSession(engine);
    await logitsOf(session, tokens.subarray(0, 96));
    const before = engine.telemetry().simulation.calls;
    await session.eval(tokens.subarray(96, 120), { logitsRows: 24 });
    const copies = engine.telemetry().simulation.calls - before;
    await session.rewind(96);

    // The last copy of an evaluation is that of the logits, out of the second device.
    let failed = 0;
    for (let at = 1; at <= copies; at += 1) {
      simulate({ ...machine, failure: { call: 'copy', at, count: 1 } });
      const outcome = await session.eval(tokens.subarray(96, 120), { logitsRows: 24 }).then(
        () => 'done',
        (thrown: unknown) => thrown,
      );
      if (outcome === 'done') {
        break;
      }
      expect(outcome).toBeInstanceOf(DeviceError);
      expect(session.position).toBe(96);
      failed += 1;
    }
    simulate(machine);
    await session.rewind(96);
    const again = await logitsOf(session, tokens.subarray(96, 130));

    expect(failed).toBeGreaterThan(2);
    expect(again.equals(expected.bits[0]!.subarray(96 * vocab * 4))).toBe(true);
  });

  test('are each called once for a token', async () => {
    await using engine = splitEngine(two);
    await engine.load();
    await using session = await openSession(engine);
    const before = crossingCount();

    for (let token = 0; token < 20; token += 1) {
      await session.eval(tokens.subarray(token, token + 1), { candidates: 4 });
    }

    expect(crossingCount() - before).toBe(2 * 20);
  });

  test('are cancelled together, and a failure to load names the part and leaves nothing', async () => {
    await using engine = splitEngine(two);
    await engine.load();
    await using session = await openSession(engine);
    engine.cancel();
    await expect(session.eval(tokens.subarray(0, 5))).rejects.toBeInstanceOf(CancelledError);
    engine.clearCancel();
    await session.eval(tokens.subarray(0, 5));
    expect(session.position).toBe(5);

    simulate({ ...machine, vramBytes: 2 ** 20 });
    await using small = splitEngine(two);
    await expect(small.load()).rejects.toThrow('they need');
    expect(small.activePart).toBe(0);
    await small.close();
    expect(small.telemetry().simulation).toMatchObject({ allocations: 0, pinnedBytes: 0 });
  });

  test('need parts that follow each other', () => {
    const gap = [
      engineFor(sim(0, 1), { first: 0, last: 0, embedding: true, head: false }),
      engineFor(sim(1, 1), { first: 2, last: layerCount - 1, embedding: false, head: true }),
    ];

    expect(() => new SplitEngine(gap)).toThrow('begins at layer 2 after layer 0');
    expect(() => new SplitEngine(gap.slice(0, 1))).toThrow('end at layer 0');
  });
});
