// Every memory mode on a simulated GPU, with one call after the other failing: nothing is ever computed from bytes that did
// not arrive, what failed can be tried again, and everything is given back.
import { resolve } from 'node:path';
import { afterEach, beforeAll, describe, expect, test } from 'vitest';
import {
  DeviceError,
  Engine,
  NativeError,
  NoMemoryError,
  simulate,
} from '../../src/engine/index.js';
import type {
  EngineOptions,
  SimulatedCall,
  SimulatedFailure,
  Simulation,
  WeightOptions,
} from '../../src/engine/index.js';
import { Status } from '../../src/engine/errors.js';
import { openGguf } from '../../src/gguf/index.js';
import { describeModel } from '../../src/model/index.js';
import { simulatedMachine as machine } from '../support/simulated-machine.js';

const description = describeModel(
  openGguf(resolve(import.meta.dirname, '../fixtures/a-q8_0.gguf')),
);
const { expertCount, expertUsed, layerCount } = description.shape;

/** Of one expert: three matrices of this model's only size, which is a multiple of 256. */
const expertBytes =
  description.tensors
    .filter(({ role }) => role.startsWith('expert'))
    .reduce((sum, { tensor }) => sum + tensor.bytes, 0) /
  (expertCount * layerCount);

interface Mode {
  readonly name: string;
  readonly options: Partial<EngineOptions>;
  readonly kind?: Simulation['kind'];
  /** Those whose failure is different from other modes; all by default. */
  readonly calls?: readonly SimulatedCall[];
}

/** Streaming with so many experts in slots, in transit and in a second tier. */
function streaming(slots: number, transit: number, host = 0): Partial<EngineOptions> {
  const experts = {
    slotBytes: slots * expertBytes,
    transitBytes: transit * expertBytes,
    hostBytes: host * expertBytes,
  };
  return { placement: 'streamExperts', weights: { experts } };
}

function mapped(weights: WeightOptions): Partial<EngineOptions> {
  return { placement: 'mappedExperts', weights };
}

const slots = { experts: { slotBytes: (expertUsed + 3) * expertBytes } };
const modes: readonly Mode[] = [
  { name: 'resident', options: { placement: 'resident' } },
  { name: 'mapped', options: mapped({}) },
  { name: 'mapped with slots', options: mapped(slots) },
  { name: 'mapped in copies with slots', options: mapped({ ...slots, pinCopies: true }) },
  { name: 'streaming', options: streaming(expertUsed + 2, expertUsed) },
  { name: 'streaming ahead', options: streaming(0, 2 * expertCount) },
  { name: 'streaming with a host tier', options: streaming(expertUsed + 2, expertUsed, 4) },
  {
    name: 'streaming past the page cache',
    options: { ...streaming(expertUsed + 2, expertUsed), source: 'direct' },
    // A drive is slow, and beside its reads nothing differs from streaming.
    calls: ['read'],
  },
  {
    name: 'streaming into shared memory',
    options: streaming(expertUsed + 2, expertUsed),
    kind: 'integrated',
  },
  { name: 'paging', options: { placement: 'resident', weights: { pageSlots: 2 } } },
];

const tokens = Int32Array.from({ length: 19 }, (_, index) => (index * 37 + 5) % 512);
/** One prefill and three tokens. */
const steps = [tokens.subarray(0, 16), ...[16, 17, 18].map((at) => tokens.subarray(at, at + 1))];

interface Course {
  /** Of all rows. */
  readonly logits: Buffer;
  readonly thrown: readonly unknown[];
  readonly held: object;
}

function bytesOf({ buffer, byteOffset, byteLength }: Float32Array): Buffer {
  return Buffer.from(buffer, byteOffset, byteLength);
}

/** A whole life of an engine. What fails is mended and tried once more, where it stands. */
async function live(mode: Mode, failure?: SimulatedFailure): Promise<Course> {
  const whole = { ...machine, kind: mode.kind ?? machine.kind };
  simulate(failure === undefined ? whole : { ...whole, failure });
  const { weights, ...options } = mode.options;
  const engine = new Engine({
    description,
    backend: 'sim',
    threads: 1,
    // Small and few, so that the order of the calls is nearly always the same.
    upload: { threads: 1, slots: 2, slotBytes: 2 ** 16 },
    weights: { readThreads: 1, ...weights },
    ...options,
  });
  const thrown: unknown[] = [];
  const insist = async <Result>(work: () => Promise<Result>): Promise<Result> => {
    try {
      return await work();
    } catch (error) {
      thrown.push(error);
      simulate(whole);
      return work();
    }
  };
  const rows: Buffer[] = [];
  try {
    await insist(() => engine.load());
    const session = await insist(() => engine.openSession({ context: 64, prefillChunk: 16 }));
    for (const step of steps) {
      const { logits } = await insist(() => session.eval(step, { logitsRows: step.length }));
      rows.push(bytesOf(logits ?? new Float32Array()));
    }
  } finally {
    await engine.close();
  }
  const { allocations, allocatedBytes, pinnedBytes } = engine.telemetry().simulation;
  return {
    logits: Buffer.concat(rows),
    thrown,
    held: { allocations, allocatedBytes, pinnedBytes },
  };
}

const nothing = { allocations: 0, allocatedBytes: 0, pinnedBytes: 0 };

/** Each of the first uses, then more and more of them left out. */
function* uses(): Generator<number> {
  for (let at = 1; ; at = at < 9 ? at + 1 : Math.ceil(at * 1.4)) {
    yield at;
  }
}

let right: Buffer;
beforeAll(async () => {
  ({ logits: right } = await live({ name: 'resident', options: { placement: 'resident' } }));
  expect(right.length).toBe(4 * tokens.length * description.shape.vocab);
});
afterEach(() => {
  simulate(machine);
});

describe.each(modes)('$name', (mode) => {
  test('gives the right logits and everything back', async () => {
    const { logits, thrown, held } = await live(mode);

    expect(logits.equals(right)).toBe(true);
    expect(thrown).toEqual([]);
    expect(held).toEqual(nothing);
  });

  /** What this may end with: memory is short, the device fails, or a file cannot be read. */
  const calls: readonly (readonly [SimulatedCall, typeof NativeError])[] = [
    ['allocate', NoMemoryError],
    ['copy', DeviceError],
    ['pin', NoMemoryError],
    ['send', DeviceError],
    ['wait', DeviceError],
    ['read', NativeError],
    ...(mode.name.startsWith('mapped') && !mode.name.includes('copies')
      ? [['map', DeviceError] as const]
      : []),
  ];
  test.each(calls.filter(([call]) => mode.calls?.includes(call) ?? true))(
    'is right, or says what failed and is right when it is tried again, whichever %s fails',
    async (call, errorClass) => {
      let met = 0;
      for (const at of uses()) {
        const once = await live(mode, { call, at, count: 1 });
        const forEver =
          once.thrown.length > 0 ? undefined : await live(mode, { call, at, count: 0 });
        for (const { logits, thrown, held } of [once, forEver ?? once]) {
          const where = `${call} ${at}`;
          thrown.forEach((error) => {
            expect(error, where).toBeInstanceOf(errorClass);
            expect(error, where).toHaveProperty(
              'message',
              expect.stringMatching(/^(cannot|no memory for) .{10,}/),
            );
            expect(error, where).not.toHaveProperty('status', Status.internal);
          });
          expect(thrown.length, where).toBeLessThanOrEqual(1);
          expect(logits.equals(right), where).toBe(true);
          expect(held, where).toEqual(nothing);
        }
        if (forEver?.thrown.length === 0) {
          break;
        }
        met = at;
      }
      expect(met).toBeGreaterThan(0);
    },
  );
});
