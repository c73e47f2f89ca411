// Errors, cancellation and lifetimes through the real native library, from one long-lived process.
import { copyFileSync, mkdtempSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import {
  acquireLock,
  CancelledError,
  crossingCount,
  Engine,
  LibraryError,
  listDevices,
  LockHeldError,
  NativeError,
} from '../../src/engine/index.js';
import type { EngineOptions } from '../../src/engine/index.js';
import { openGguf } from '../../src/gguf/index.js';
import { describeModel } from '../../src/model/index.js';
import { sessionBytes } from '../../src/plan/index.js';

const model = resolve(import.meta.dirname, '../fixtures/a-q8_0.gguf');
const scratch = mkdtempSync(join(tmpdir(), 'ds4-engine-'));
afterAll(() => {
  rmSync(scratch, { recursive: true });
});

function engineFor(path: string, options: Partial<EngineOptions> = {}): Engine {
  return new Engine({ description: describeModel(openGguf(path)), backend: 'cpu', ...options });
}

async function loaded(options: Partial<EngineOptions> = {}): Promise<Engine> {
  const engine = engineFor(model, options);
  await engine.load();
  return engine;
}

const tokens = Int32Array.from({ length: 64 }, (_, index) => (index * 37 + 5) % 512);

describe('the library', () => {
  test('that is missing is named with the backend and the command that builds it', () => {
    const open = (): Engine => engineFor(model, { libraryDirectory: scratch });

    expect(open).toThrow(LibraryError);
    expect(open).toThrow(/cpu backend.*libds4-cpu\.so.*make cpu/);
  });

  test('that is no library is refused with the reason', () => {
    writeFileSync(join(scratch, 'libds4-cpu.so'), 'not a library');

    expect(() => engineFor(model, { libraryDirectory: scratch })).toThrow(LibraryError);
  });

  test('lists this host as its one device', () => {
    const devices = listDevices('cpu');

    expect(devices).toHaveLength(1);
    expect(devices[0]).toMatchObject({ kind: 'host', index: 0 });
    expect(devices[0]!.totalBytes).toBeGreaterThan(devices[0]!.freeBytes);
  });
});

describe('the crossing budget', () => {
  test('decoding n tokens takes n calls and at most two more', async () => {
    await using engine = await loaded();
    await using session = await engine.openSession({ context: 128, prefillChunk: 64 });
    await session.eval(tokens, { candidates: 1024 });
    const before = crossingCount();

    for (let step = 0; step < 20; step += 1) {
      await session.eval(Int32Array.of(step), { candidates: 512 });
    }

    expect(crossingCount() - before).toBeLessThanOrEqual(22);
  });
});

describe('cancelling', () => {
  test('before a call makes it end without moving the session, and clearing lets it go on unchanged', async () => {
    await using engine = await loaded();
    await using session = await engine.openSession({ context: 128, prefillChunk: 64 });
    await using untouched = await engine.openSession({ context: 128, prefillChunk: 64 });
    await session.eval(tokens.subarray(0, 30));
    await untouched.eval(tokens.subarray(0, 30));

    engine.cancel();
    await expect(session.eval(tokens.subarray(30))).rejects.toThrow(CancelledError);
    engine.clearCancel();

    expect(session.position).toBe(30);
    const after = await session.eval(tokens.subarray(30), { logitsRows: 1 });
    const straight = await untouched.eval(tokens.subarray(30), { logitsRows: 1 });
    expect(after.logits).toEqual(straight.logits);
  });

  test('ends a load', async () => {
    const engine = engineFor(model, { source: 'read' });

    engine.cancel();

    await expect(engine.load()).rejects.toThrow(CancelledError);
    await engine.close();
  });
});

describe('lifetimes', () => {
  test('two engines work in one process, one after the other and at the same time', async () => {
    const logits: Float32Array[] = [];
    await using first = await loaded();
    for (let round = 0; round < 3; round += 1) {
      await using second = await loaded();
      for (const engine of [first, second]) {
        await using session = await engine.openSession({ context: 128, prefillChunk: 64 });
        logits.push((await session.eval(tokens, { logitsRows: 1 })).logits!);
      }
    }

    logits.forEach((row) => {
      expect(row).toEqual(logits[0]);
    });
  });

  test('closing while a call runs ends the call and then closes', async () => {
    const engine = await loaded();
    const session = await engine.openSession({ context: 4096, prefillChunk: 512 });
    const long = session.eval(Int32Array.from({ length: 512 }, (_, index) => index)).then(
      () => 'finished',
      (error: unknown) => error,
    );

    await engine.close();
    await engine.close();

    expect(['finished', expect.any(CancelledError) as unknown]).toContainEqual(await long);
  });

  test('a closed session refuses further calls as a plain error', async () => {
    await using engine = await loaded();
    const session = await engine.openSession({ context: 64, prefillChunk: 8 });
    await session.close();

    await expect(session.eval(tokens.subarray(0, 4))).rejects.toThrow(/closed/);
  });
});

describe('wrong arguments come back as sentences', () => {
  test.each([
    ['a token beyond the vocabulary', Int32Array.of(512), /512/],
    ['a negative token', Int32Array.of(-1), /-1/],
  ])('%s', async (_, bad, sentence) => {
    await using engine = await loaded();
    await using session = await engine.openSession({ context: 64, prefillChunk: 8 });

    await expect(session.eval(bad, { candidates: 1 })).rejects.toThrow(sentence);
    expect(session.position).toBe(0);
  });

  test('more tokens than the context holds', async () => {
    await using engine = await loaded();
    await using session = await engine.openSession({ context: 16, prefillChunk: 16 });
    await session.eval(tokens.subarray(0, 10));

    await expect(session.eval(tokens.subarray(0, 7))).rejects.toThrow(/16/);
    expect(session.position).toBe(10);
  });

  test('a context larger than memory names need and free bytes', async () => {
    await using engine = await loaded();

    await expect(engine.openSession({ context: 2 ** 40, prefillChunk: 8 })).rejects.toThrow(
      NativeError,
    );
  });
});

describe('files that change under the program', () => {
  test('a model that shrank after its directory was read is refused', async () => {
    const copy = join(scratch, 'shrunk.gguf');
    copyFileSync(model, copy);
    const engine = engineFor(copy);
    truncateSync(copy, 1_000_000);

    await expect(engine.load()).rejects.toThrow(/shrunk\.gguf/);
    await engine.close();
  });

  test('a model that vanished is refused by name', async () => {
    const copy = join(scratch, 'gone.gguf');
    copyFileSync(model, copy);
    const engine = engineFor(copy);
    rmSync(copy);

    await expect(engine.load()).rejects.toThrow(/gone\.gguf/);
    await engine.close();
  });
});

describe('the lock file', () => {
  test('is held by one owner at a time and survives its release', () => {
    const path = join(scratch, 'lock');
    const first = acquireLock(path, 'cpu');

    expect(() => acquireLock(path, 'cpu')).toThrow(LockHeldError);
    expect(() => acquireLock(path, 'cpu')).toThrow(`(pid ${process.pid})`);
    first.release();
    const second = acquireLock(path, 'cpu');
    second.release();
    second.release();
  });

  test('that cannot be opened is an error with its path', () => {
    expect(() => acquireLock(join(scratch, 'no', 'lock'), 'cpu')).toThrow(/no\/lock/);
  });
});

describe('the plan', () => {
  test.each([
    [64, 8],
    [1000, 64],
    [4096, 512],
  ])('knows the KV bytes of context %i and chunk %i exactly', async (context, prefillChunk) => {
    await using engine = await loaded();
    await using session = await engine.openSession({ context, prefillChunk });
    const { shape } = engine.description;

    const planned = sessionBytes(
      shape,
      { first: 0, last: shape.layerCount - 1 },
      context,
      prefillChunk,
    );

    expect(session.measure().kvBytes).toBe(planned.kv);
  });
});
