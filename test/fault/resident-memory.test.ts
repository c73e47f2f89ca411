// What loading takes of main memory besides the weights themselves: the buffers of the upload, and hardly anything else.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Engine, simulate } from '../../src/engine/index.js';
import type { EngineOptions } from '../../src/engine/index.js';
import { openGguf } from '../../src/gguf/index.js';
import { describeModel } from '../../src/model/index.js';
import type { ModelDescription } from '../../src/model/index.js';
import { writeGguf } from '../support/gguf-writer.js';
import { simulatedMachine } from '../support/simulated-machine.js';
import { tinyModel } from '../support/tiny-model.js';

const mib = 2 ** 20;

const ring = { threads: 2, slots: 4, slotBytes: 8 * mib };
const ringBytes = ring.slots * ring.slotBytes;
/** For threads, tables, what the file's header became, and the runtime's own comings and goings. */
const besidesBytes = 64 * mib;

let folder: string;
let description: ModelDescription;
let fileBytes: number;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'ds4-resident-'));
  const path = join(folder, 'large.gguf');
  const dims = { embedding: 1024, width: 1024, experts: 32 };
  // Without data the file is one large hole, which takes no disk and is read like any other.
  writeGguf(tinyModel({ dims, weights: 'zero' })).save(path);
  const gguf = openGguf(path);
  description = describeModel(gguf);
  fileBytes = gguf.tensors.reduce((sum, { bytes }) => sum + bytes, 0);
});
afterAll(() => {
  rmSync(folder, { recursive: true });
});

function statusBytes(line: string): number {
  const kib = new RegExp(`^${line}:\\s*([0-9]+) kB$`, 'm').exec(
    readFileSync('/proc/self/status', 'utf8'),
  );
  return Number(kib?.[1]) * 1024;
}

/** How much more memory this process had at its worst while a model was loaded than before. Device memory counts too. */
async function growth(options: Partial<EngineOptions>): Promise<number> {
  await using engine = new Engine({ description, backend: 'sim', threads: 2, ...options });
  const before = statusBytes('VmRSS');
  // Makes the peak what there is now.
  writeFileSync('/proc/self/clear_refs', '5');
  await engine.load();
  return statusBytes('VmHWM') - before;
}

describe('loading a file many times as large as the buffers', () => {
  test('begins with a file that would be seen', () => {
    expect(fileBytes).toBeGreaterThan(4 * (ringBytes + besidesBytes));
  });

  test.each([
    ['into a discrete GPU', 'discrete', {}],
    ['into a GPU that shares main memory', 'integrated', {}],
    ['past the page cache', 'integrated', { source: 'direct' }],
    ['from the mapping', 'integrated', { source: 'mmap' }],
  ] as const)('%s takes the copy, the buffers and little else', async (_, kind, options) => {
    simulate({ ...simulatedMachine, kind });

    const grown = await growth({ placement: 'resident', upload: ring, ...options });

    expect(grown).toBeGreaterThan(fileBytes * 0.95);
    expect(grown - fileBytes).toBeLessThan(ringBytes + besidesBytes);
  });

  test('into main memory takes the copy, the buffers and little else', async () => {
    const grown = await growth({ backend: 'cpu', source: 'read', upload: ring });

    expect(grown).toBeGreaterThan(fileBytes * 0.95);
    expect(grown - fileBytes).toBeLessThan(ringBytes + besidesBytes);
  });

  test('that stays mapped takes nothing before it is used', async () => {
    expect(await growth({ backend: 'cpu', source: 'mmap' })).toBeLessThan(besidesBytes);
  });

  test('counts a mapping as soon as it is touched', async () => {
    const grown = await growth({ backend: 'cpu', source: 'mmap', warm: true });

    expect(grown).toBeGreaterThan(fileBytes * 0.95);
  });
});
