// The same work twice gives the same bits: no sum is taken in the order in which its parts happen to be done.
import { existsSync } from 'node:fs';
import { resolve } from 'node:path';
import { describe, expect, test } from 'vitest';
import { evaluate, openEngine, testBackend } from './evaluate.js';
import { modelPath, parity } from './exam.js';
import type { BackendName } from '../../src/engine/index.js';

const emulated = resolve('build/emulated');
const longest = parity.map(({ prompt }) => prompt).sort((a, b) => b.length - a.length)[0]!;

interface Work {
  readonly modelPath: string;
  readonly backend: BackendName;
  readonly libraryDirectory?: string;
  readonly prompt: Int32Array;
  /** One at a time, so that steps are recorded and replayed where a backend does that. */
  readonly singles: Int32Array;
}

/** The bytes of all logits, from an engine and memory of its own. */
async function logitsOf({ prompt, singles, ...work }: Work): Promise<Buffer> {
  const { modelPath: path, backend, ...options } = work;
  await using engine = await openEngine(path, options, backend);
  await using session = await engine.openSession({ context: 8192, prefillChunk: 512 });
  const many = await evaluate(session, prompt, 512);
  const one = await evaluate(session, singles, 1);
  return Buffer.concat(
    [many.logits, one.logits].map(({ buffer, byteOffset, byteLength }) =>
      Buffer.from(buffer, byteOffset, byteLength),
    ),
  );
}

async function expectTheSameTwice(work: Work): Promise<void> {
  const first = await logitsOf(work);
  const second = await logitsOf(work);

  expect(first.length).toBeGreaterThan(0);
  expect(new Set(first).size).toBeGreaterThan(2);
  expect(second.equals(first)).toBe(true);
}

describe('logits of two engines', () => {
  test(`are the same bits on ${testBackend()}`, async () => {
    await expectTheSameTwice({
      modelPath,
      backend: testBackend(),
      prompt: Int32Array.from(longest),
      singles: Int32Array.from(longest.slice(0, 64)),
    });
  });

  // Its lanes, groups and blocks take turns in another order each time.
  test.skipIf(!existsSync(resolve(emulated, 'libds4-cuda.so')))(
    'are the same bits on an emulated card',
    async () => {
      await expectTheSameTwice({
        modelPath: resolve(import.meta.dirname, '../fixtures/a-q8_0.gguf'),
        backend: 'cuda',
        libraryDirectory: emulated,
        prompt: Int32Array.from({ length: 24 }, (_, index) => (index * 37 + 5) % 512),
        singles: Int32Array.of(7, 99, 180, 300),
      });
    },
  );
});
