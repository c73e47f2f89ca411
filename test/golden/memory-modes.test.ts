// Where weights are never changes a bit: the embedded model through every memory mode and a spread of capacities.
import { existsSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import type { BackendName, Engine } from '../../src/engine/index.js';
import type { ModelDescription } from '../../src/model/index.js';
import { testBackend } from './evaluate.js';
import {
  apart,
  embedded,
  engineFor,
  fixture,
  hasCard,
  onSharedMemory,
  prompt,
  streaming,
} from './memory-mode-list.js';
import type { Mode, Named } from './memory-mode-list.js';

interface Course {
  /** Prompt chunks, then single tokens. */
  readonly chunks: readonly number[];
  readonly decode: number;
}

/** All logits of a prompt in chunks and of some single tokens behind it. */
async function logitsOf(
  description: ModelDescription,
  backend: BackendName,
  course: Course,
  mode: Mode,
): Promise<{ logits: Buffer; counters: ReturnType<Engine['telemetry']>; uses: number }> {
  await using engine = engineFor(description, backend, mode);
  await engine.load();
  if (mode.seeds !== undefined) {
    await engine.seedExperts(mode.seeds);
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
    modes: [...apart(embedded), ...onSharedMemory(embedded)],
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
  description: ModelDescription;
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
