// Where weights are never changes a bit: the embedded model through every memory mode and a spread of capacities.
import { existsSync } from 'node:fs';
import { resolve } from 'node:path';
import { describe, expect, test } from 'vitest';
import { Engine } from '../../src/engine/index.js';
import type {
  BackendName,
  EngineOptions,
  ExpertId,
  WeightOptions,
} from '../../src/engine/index.js';
import { openGguf } from '../../src/gguf/index.js';
import { describeModel } from '../../src/model/index.js';
import { testBackend } from './evaluate.js';

const hasCard = testBackend() === 'cuda' || testBackend() === 'rocm';

interface Mode extends Pick<EngineOptions, 'placement' | 'source' | 'upload' | 'weights'> {
  /** Experts that are read before the first token. */
  readonly seeds?: readonly ExpertId[];
}

const embedded = describeModel(openGguf(resolve('models/ds4-small.gguf')));
const fixture = describeModel(openGguf(resolve('test/fixtures/a-q8_0.gguf')));

/** What one expert takes of a slot, at most: its matrices, each rounded up to 256 bytes. */
function unitBytes(description: typeof embedded): number {
  const { shape } = description;
  const largest = Math.max(
    ...description.tensors
      .filter(({ role }) => role.startsWith('expert'))
      .map(({ tensor }) => tensor.bytes / shape.expertCount),
  );
  return 3 * (Math.ceil(largest / 256) * 256);
}

function prompt(length: number, vocab: number): Int32Array {
  return Int32Array.from({ length }, (_, index) => (index * index * 31 + index * 7 + 5) % vocab);
}

interface Course {
  /** Prompt chunks, then single tokens. */
  readonly chunks: readonly number[];
  readonly decode: number;
}

/** The emulated card's, unless a real one is under test. */
function libraries(backend: BackendName): Pick<EngineOptions, 'libraryDirectory'> {
  const directory =
    process.env['DS4_LIBRARY_DIR'] ??
    (backend === 'cuda' && !hasCard ? resolve('build/emulated') : undefined);
  return directory === undefined ? {} : { libraryDirectory: directory };
}

/** All logits of a prompt in chunks and of some single tokens behind it. */
async function logitsOf(
  description: typeof embedded,
  backend: BackendName,
  course: Course,
  { seeds, ...options }: Mode,
): Promise<{ logits: Buffer; counters: ReturnType<Engine['telemetry']>; uses: number }> {
  await using engine = new Engine({
    description,
    backend,
    ...libraries(backend),
    ...options,
  });
  await engine.load();
  if (seeds !== undefined) {
    await engine.seedExperts(seeds);
  }
  const sizes = [...course.chunks, ...Array.from({ length: course.decode }, () => 1)];
  await using session = await engine.openSession({
    context: 512,
    prefillChunk: Math.max(...sizes),
  });
  const tokens = prompt(
    sizes.reduce((sum, size) => sum + size, 0),
    description.shape.vocab,
  );
  const parts: Buffer[] = [];
  let first = 0;
  for (const size of sizes) {
    const part = tokens.subarray(first, first + size);
    const { logits } = await session.eval(part, { logitsRows: size });
    parts.push(Buffer.from(logits!.buffer, logits!.byteOffset, logits!.byteLength));
    first += size;
  }
  const uses = (await engine.listExperts()).reduce((sum, expert) => sum + expert.uses, 0);
  return { logits: Buffer.concat(parts), counters: engine.telemetry(), uses };
}

/** Some experts of every layer, in an order of no meaning. */
function someExperts({ shape }: typeof embedded): ExpertId[] {
  const layers = Array.from(
    { length: shape.layerCount },
    (_, layer) => shape.layerCount - 1 - layer,
  );
  return layers.flatMap((layer) =>
    Array.from({ length: shape.expertCount }, (_, expert) => ({
      layer,
      expert: (expert * 3 + layer) % shape.expertCount,
    })).filter((_, index) => index % 2 === 0),
  );
}

interface Named {
  readonly name: string;
  readonly mode: Mode;
}

function streaming(description: typeof embedded): Named[] {
  const unit = unitBytes(description);
  const { expertUsed, expertCount, layerCount } = description.shape;
  const all = expertCount * layerCount;
  const experts = (
    name: string,
    slots: number,
    transit: number,
    more: Partial<WeightOptions['experts'] & object> = {},
  ): Named => ({
    name,
    mode: {
      placement: 'streamExperts',
      weights: { experts: { slotBytes: slots * unit, transitBytes: transit * unit, ...more } },
    },
  });
  return [
    experts('streaming without a cache', 0, expertUsed),
    experts("streaming with one token's experts", expertUsed, expertUsed),
    experts('streaming with half of the experts', Math.ceil(all / 2), expertUsed),
    experts('streaming with all experts', all + layerCount, 2 * expertCount),
    experts('streaming that reads layers ahead', 0, 2 * expertCount),
    experts('streaming by use and frequency', Math.ceil(all / 4), expertUsed, { policy: 'lfru' }),
    {
      name: 'streaming with one reader',
      mode: {
        placement: 'streamExperts',
        weights: {
          readThreads: 1,
          experts: { slotBytes: Math.ceil(all / 4) * unit, transitBytes: expertUsed * unit },
        },
      },
    },
    seeded(experts('streaming with a seeded cache', Math.ceil(all / 3), expertUsed), description),
    {
      name: 'streaming past the page cache',
      mode: {
        placement: 'streamExperts',
        source: 'direct',
        weights: {
          readThreads: 1,
          experts: { slotBytes: 5 * unit, transitBytes: expertUsed * unit },
        },
      },
    },
  ];
}

function seeded({ name, mode }: Named, description: typeof embedded): Named {
  return { name, mode: { ...mode, seeds: someExperts(description) } };
}

/** On devices with memory of their own. */
function apart(description: typeof embedded): Named[] {
  const unit = unitBytes(description);
  const { expertUsed, expertCount, layerCount } = description.shape;
  const all = expertCount * layerCount;
  const mapped = (name: string, weights: WeightOptions): Named => ({
    name,
    mode: { placement: 'mappedExperts', weights },
  });
  const slots = (count: number): WeightOptions => ({ experts: { slotBytes: count * unit } });
  return [
    mapped('mapped experts', {}),
    mapped('copies of the experts in pinned memory', { pinCopies: true }),
    mapped("one token's experts in slots", slots(expertUsed)),
    mapped('half of the experts in slots', slots(Math.ceil(all / 2))),
    mapped('all experts in slots', slots(all + layerCount)),
    seeded(mapped('seeded slots', { ...slots(Math.ceil(all / 3)), leaveSlots: true }), description),
    ...streaming(description),
    {
      name: 'streaming with a second tier in host memory',
      mode: {
        placement: 'streamExperts',
        weights: {
          experts: {
            slotBytes: Math.ceil(all / 6) * unit,
            transitBytes: expertUsed * unit,
            hostBytes: Math.ceil(all / 3) * unit,
          },
        },
      },
    },
    {
      name: 'streaming with the tier in host memory alone',
      mode: {
        placement: 'streamExperts',
        weights: {
          experts: {
            slotBytes: 0,
            transitBytes: expertUsed * unit,
            hostBytes: Math.ceil(all / 3) * unit,
          },
        },
      },
    },
    {
      name: 'an upload that is compared with the file',
      mode: { placement: 'resident', upload: { check: true } },
    },
    ...[1, 2, 3, 64].map((pageSlots) => ({
      name: `${pageSlots} page slots`,
      mode: { placement: 'resident' as const, weights: { pageSlots } },
    })),
    {
      name: 'two page slots beside streaming',
      mode: {
        placement: 'streamExperts',
        weights: {
          pageSlots: 2,
          experts: { slotBytes: 4 * unit, transitBytes: expertUsed * unit },
        },
      },
    },
    {
      name: 'little device memory for other weights',
      mode: { placement: 'mappedExperts', weights: { deviceWeightBytes: 200_000 } },
    },
    {
      name: 'upload from the mapping',
      mode: { placement: 'resident', source: 'mmap', weights: { dropReadPages: true } },
    },
    {
      name: 'pinned copies and slots from the mapping',
      mode: {
        placement: 'mappedExperts',
        source: 'mmap',
        weights: { pinCopies: true, deviceWeightBytes: 200_000 },
      },
    },
    {
      name: 'direct upload',
      mode: { placement: 'resident', source: 'direct', weights: { dropReadPages: true } },
    },
  ];
}

/** The emulated card takes its time; these reach every path that has kernels or copies of its own. */
const telling = new Set([
  'copies of the experts in pinned memory',
  "one token's experts in slots",
  "streaming with one token's experts",
  'streaming with a second tier in host memory',
  'streaming with a seeded cache',
  'seeded slots',
  '2 page slots',
  'little device memory for other weights',
]);

describe.each([
  {
    backend: 'cpu',
    description: embedded,
    course: { chunks: [40, 3, 100], decode: 12 },
    reference: {},
    modes: [
      ...streaming(embedded),
      { name: 'read into memory', mode: { source: 'read' } },
      { name: 'read past the page cache', mode: { source: 'direct' } },
      { name: 'locked', mode: { weights: { lock: true } } },
    ],
  },
  {
    backend: 'sim',
    description: embedded,
    course: { chunks: [40, 3, 100], decode: 12 },
    reference: { placement: 'resident' },
    modes: apart(embedded),
  },
  hasCard
    ? {
        backend: testBackend(),
        description: embedded,
        course: { chunks: [40, 3, 100], decode: 12 },
        reference: { placement: 'resident' },
        modes: apart(embedded),
      }
    : {
        backend: 'cuda',
        description: fixture,
        course: { chunks: [5], decode: 4 },
        reference: { placement: 'resident' },
        modes: apart(fixture).filter(({ name }) => telling.has(name)),
      },
] as const satisfies readonly {
  backend: BackendName;
  description: typeof embedded;
  course: Course;
  reference: Mode;
  modes: readonly Named[];
}[])('$backend', ({ backend, description, course, reference, modes }) => {
  test.skipIf(backend === 'cuda' && !hasCard && !existsSync('build/emulated/libds4-cuda.so'))(
    'every memory mode gives the bits of a resident model',
    async () => {
      const want = await logitsOf(description, backend, course, reference);

      expect(modes.length).toBeGreaterThan(5);
      for (const { name, mode } of modes) {
        const got = await logitsOf(description, backend, course, mode);
        expect(got.logits.equals(want.logits), name).toBe(true);
        const { lookups, deviceHits, hostHits, inFlightHits, misses } = got.counters.experts;
        expect(deviceHits + hostHits + inFlightHits + misses, name).toBe(lookups);
        expect(got.uses, name).toBe(lookups);
        expect(got.counters.experts.seeded > 0, name).toBe('seeds' in mode);
      }
    },
  );
});
