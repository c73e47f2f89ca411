// A cache that is warm by use, several sessions at once, and a model in parts change no bit either, wherever weights are.
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { simulate, SplitEngine } from '../../src/engine/index.js';
import type { EngineSession, ModelEngine, WeightOptions } from '../../src/engine/index.js';
import { simulatedMachine } from '../support/simulated-machine.js';
import { testBackend } from './evaluate.js';
import { embedded, engineFor, hasCard, prompt, unitBytes } from './memory-mode-list.js';
import type { Mode, Named } from './memory-mode-list.js';

const backend = hasCard ? testBackend() : 'sim';
const { expertCount, expertUsed, layerCount, vocab } = embedded.shape;
const unit = unitBytes(embedded);

/** So many experts in slots, in transit and in pinned host memory. */
function experts(slots: number, transit: number, host = 0): WeightOptions {
  return {
    experts: {
      slotBytes: slots * unit,
      transitBytes: transit * unit,
      hostBytes: host * unit,
    },
  };
}

const third = Math.ceil((expertCount * layerCount) / 3);
const modes: readonly Named[] = [
  {
    name: 'streaming',
    mode: { placement: 'streamExperts', weights: experts(third, expertUsed) },
  },
  {
    name: 'streaming without a cache',
    mode: { placement: 'streamExperts', weights: experts(0, 2 * expertCount) },
  },
  {
    name: 'streaming with a tier in host memory',
    mode: { placement: 'streamExperts', weights: experts(expertUsed + 1, expertUsed, third) },
  },
  {
    name: 'streaming with the tier in host memory alone',
    mode: { placement: 'streamExperts', weights: experts(0, expertUsed, third) },
  },
  {
    name: 'experts over the bus and in slots',
    mode: { placement: 'mappedExperts', weights: experts(third, 0) },
  },
  {
    name: 'pinned copies and little device memory',
    mode: { placement: 'mappedExperts', weights: { pinCopies: true, deviceWeightBytes: 2e5 } },
  },
  { name: 'paging', mode: { placement: 'resident', weights: { pageSlots: 2 } } },
  {
    name: 'paging beside streaming',
    mode: {
      placement: 'streamExperts',
      weights: { pageSlots: 2, ...experts(4, expertUsed) },
    },
  },
  ...(hasCard
    ? []
    : [
        {
          name: 'a staged upload into shared memory',
          mode: { kind: 'integrated', placement: 'resident' },
        } as const,
        {
          name: 'streaming into shared memory',
          mode: {
            kind: 'integrated',
            placement: 'streamExperts',
            weights: experts(third, expertUsed),
          },
        } as const,
      ]),
];

const sizes = [40, 3, ...Array.from({ length: 9 }, () => 1)];
const total = sizes.reduce((sum, size) => sum + size, 0);
const one = prompt(total, vocab);
const other = prompt(total, vocab, 1000);

function open(engine: ModelEngine): Promise<EngineSession> {
  return engine.openSession({ context: 512, prefillChunk: 40 });
}

/** All logits of one text after another, in steps that take turns between the sessions. */
async function inTurns(
  texts: readonly { readonly session: EngineSession; readonly tokens: Int32Array }[],
): Promise<Buffer[]> {
  const parts: Buffer[][] = texts.map(() => []);
  let first = 0;
  for (const size of sizes) {
    for (const [index, { session, tokens }] of texts.entries()) {
      const { logits } = await session.eval(tokens.subarray(first, first + size), {
        logitsRows: size,
      });
      parts[index]?.push(Buffer.from(logits!.buffer, logits!.byteOffset, logits!.byteLength));
    }
    first += size;
  }
  return parts.map((rows) => Buffer.concat(rows));
}

async function alone(engine: ModelEngine, tokens: Int32Array): Promise<Buffer> {
  await using session = await open(engine);
  const [bits = Buffer.alloc(0)] = await inTurns([{ session, tokens }]);
  return bits;
}

let rightOfOne: Buffer;
let rightOfOther: Buffer;
beforeAll(async () => {
  await using engine = engineFor(embedded, backend, { placement: 'resident' });
  await engine.load();
  rightOfOne = await alone(engine, one);
  rightOfOther = await alone(engine, other);
  expect(rightOfOne.equals(rightOfOther)).toBe(false);
});
afterAll(() => {
  if (backend === 'sim') {
    simulate(simulatedMachine);
  }
});

describe.each(modes)('$name', ({ mode }) => {
  test('gives the same bits when use has warmed it', async () => {
    await using engine = engineFor(embedded, backend, mode);
    await engine.load();

    const misses: number[] = [0];
    await using session = await open(engine);
    for (let turn = 0; turn < 3; turn += 1) {
      const bits = await inTurns([{ session, tokens: one }]);
      expect(bits[0]?.equals(rightOfOne), `turn ${turn}`).toBe(true);
      misses.push(engine.telemetry().experts.misses);
      expect(await session.rewind(0)).toBe(0);
    }
    await session.close();

    expect((await alone(engine, one)).equals(rightOfOne)).toBe(true);
    const { slots } = engine.telemetry().experts;
    if (mode.placement === 'streamExperts' && slots >= third) {
      const [, first = 0, second = 0] = misses;
      expect(second - first).toBeLessThan(first);
    }
  });

  test('gives two sessions that take turns the bits of each alone', async () => {
    await using engine = engineFor(embedded, backend, mode);
    await engine.load();
    await using first = await open(engine);
    await using second = await open(engine);

    const [ofOne, ofOther] = await inTurns([
      { session: first, tokens: one },
      { session: second, tokens: other },
    ]);

    expect(ofOne?.equals(rightOfOne)).toBe(true);
    expect(ofOther?.equals(rightOfOther)).toBe(true);
  });

  test.each([1, Math.floor(layerCount / 2), layerCount - 1])(
    'gives the same bits when layer %i begins another part',
    async (cut) => {
      const last = layerCount - 1;
      const slices = [
        { first: 0, last: cut - 1, embedding: true, head: false },
        { first: cut, last, embedding: false, head: true },
      ];
      await using engine = new SplitEngine(
        slices.map((slice) => engineFor(embedded, backend, mode, slice)),
      );
      await engine.load();

      expect((await alone(engine, one)).equals(rightOfOne)).toBe(true);
    },
  );

  test('gives the same bits when only a part of the model is so', async () => {
    const cut = Math.floor(layerCount / 2);
    const resident: Mode = {
      placement: 'resident',
      ...(mode.kind === undefined ? {} : { kind: mode.kind }),
    };
    for (const [front, back] of [
      [mode, resident],
      [resident, mode],
    ] as const) {
      await using engine = new SplitEngine([
        engineFor(embedded, backend, front, {
          ...{ first: 0, last: cut - 1, embedding: true, head: false },
        }),
        engineFor(embedded, backend, back, {
          ...{ first: cut, last: layerCount - 1, embedding: false, head: true },
        }),
      ]);
      await engine.load();

      expect((await alone(engine, one)).equals(rightOfOne)).toBe(true);
    }
  });
});
