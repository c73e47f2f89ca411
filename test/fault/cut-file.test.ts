// A mapped model file that is cut while it is used: the system answers with a signal, and the program with a sentence.
import { spawnSync } from 'node:child_process';
import { copyFileSync, mkdtempSync, rmSync, statSync, truncateSync, utimesSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { Engine, NativeError } from '../../src/engine/index.js';
import type { EngineOptions, EngineSession } from '../../src/engine/index.js';
import { openGguf } from '../../src/gguf/index.js';
import { describeModel } from '../../src/model/index.js';
import { endlessModel, Program, temporaryFolder } from '../e2e/program.js';

const model = resolve(import.meta.dirname, '../fixtures/a-q8_0.gguf');
const scratch = mkdtempSync(join(tmpdir(), 'ds4-cut-'));
afterAll(() => {
  rmSync(scratch, { recursive: true });
});

const tokens = Int32Array.from({ length: 512 }, (_, index) => (index * 37 + 5) % 512);

function copyOf(name: string): string {
  const path = join(scratch, name);
  copyFileSync(model, path);
  return path;
}

async function loaded(path: string): Promise<Engine> {
  const engine = new Engine({
    description: describeModel(openGguf(path)),
    backend: 'cpu',
    source: 'mmap',
  });
  await engine.load();
  return engine;
}

async function failureOf(work: Promise<unknown>): Promise<unknown> {
  return work.then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
}

function evaluate(session: EngineSession): Promise<unknown> {
  return failureOf(session.eval(tokens, { candidates: 1 }));
}

describe('a mapped file', () => {
  test('that is cut during an evaluation ends it with its name, and the session for good', async () => {
    const path = copyOf('during.gguf');
    const { size } = statSync(path);
    await using engine = await loaded(path);
    await using session = await engine.openSession({ context: 2048, prefillChunk: 512 });
    await using other = await engine.openSession({ context: 64, prefillChunk: 8 });

    const pending = evaluate(session);
    while (engine.telemetry().layer < 1) {
      await new Promise(setImmediate);
    }
    truncateSync(path, 0);
    const failure = await pending;

    expect(failure).toBeInstanceOf(NativeError);
    expect(String(failure)).toMatch(
      new RegExp(`cannot read .*during\\.gguf at offset [0-9]+: .*cut from ${size} to 0 bytes`),
    );
    expect(session.position).toBe(0);
    truncateSync(path, size);
    expect(String(await evaluate(session))).toMatch(/during\.gguf at offset [0-9]+: /);
    expect(String(await failureOf(other.eval(tokens.subarray(0, 4))))).toMatch(/during\.gguf/);
  });

  test('that is cut between evaluations is told with both sizes', async () => {
    const path = copyOf('between.gguf');
    const { size } = statSync(path);
    await using engine = await loaded(path);
    await using session = await engine.openSession({ context: 2048, prefillChunk: 512 });
    expect(await evaluate(session)).toBeUndefined();

    truncateSync(path, size - 1);

    expect(String(await evaluate(session))).toMatch(
      new RegExp(`between\\.gguf: it shrank from ${size} to ${size - 1} bytes.*start again`),
    );
    expect(session.position).toBe(512);
  });

  test('of one model is none of the others’ concern', async () => {
    const path = copyOf('one.gguf');
    await using engine = await loaded(path);
    await using session = await engine.openSession({ context: 1024, prefillChunk: 512 });
    await using untouched = await loaded(model);
    await using healthy = await untouched.openSession({ context: 1024, prefillChunk: 512 });

    const pending = evaluate(session);
    truncateSync(path, 0);

    expect(await pending).toBeInstanceOf(NativeError);
    expect(await evaluate(healthy)).toBeUndefined();
  });
});

describe('a file that is written to between evaluations', () => {
  const { expertUsed } = describeModel(openGguf(model)).shape;
  const expertBytes = 2 ** 20;
  const streamed: Partial<EngineOptions> = {
    placement: 'streamExperts',
    weights: {
      experts: { slotBytes: 4 * expertBytes, transitBytes: expertUsed * expertBytes },
    },
  };
  const concerned: readonly (readonly [
    string,
    EngineOptions['backend'],
    Partial<EngineOptions>,
  ])[] = [
    ['whose experts the CPU streams', 'cpu', streamed],
    ['whose experts a GPU streams', 'sim', streamed],
    ['that a GPU pages', 'sim', { placement: 'resident', weights: { pageSlots: 2 } }],
    ['whose experts are pinned', 'sim', { placement: 'mappedExperts' }],
  ];

  async function evaluatedTwice(
    backend: EngineOptions['backend'],
    options: Partial<EngineOptions>,
  ): Promise<readonly [first: unknown, second: unknown, position: number]> {
    const path = copyOf('written.gguf');
    await using engine = new Engine({
      description: describeModel(openGguf(path)),
      backend,
      ...options,
    });
    await engine.load();
    await using session = await engine.openSession({ context: 2048, prefillChunk: 512 });
    const first = await evaluate(session);
    utimesSync(path, 1, 1);
    return [first, await evaluate(session), session.position];
  }

  test.each(concerned)('%s ends the next one', async (_, backend, options) => {
    const [first, second, position] = await evaluatedTwice(backend, options);

    expect(first).toBeUndefined();
    expect(second).toBeInstanceOf(NativeError);
    expect(String(second)).toMatch(/written\.gguf: it was written to while in use/);
    expect(position).toBe(512);
  });

  test('that was copied whole is of no concern any more', async () => {
    expect(await evaluatedTwice('sim', { placement: 'resident' })).toEqual([
      undefined,
      undefined,
      1024,
    ]);
  });
});

describe('the program', () => {
  test('ends with status 1 and one line when its model is cut during an answer', async () => {
    const folder = temporaryFolder();
    try {
      const path = endlessModel(folder.file('cut.gguf'));
      const program = new Program(folder, [
        ...['-m', path, '--cpu', '-c', '4096', '-n', '4000'],
        ...['--nothink', '--temp', '0', '-p', 'hello'],
      ]);
      await program.until(() => program.stdout.length > 0, 'it answered');

      truncateSync(path, 0);
      const { stderr, status, signal } = await program.done;

      expect(signal).toBeNull();
      expect(status).toBe(1);
      expect(stderr.trimEnd().split('\n').at(-1)).toMatch(
        /^ds4: cannot (read|go on with) .*cut\.gguf.* start again$/,
      );
    } finally {
      folder.remove();
    }
  });

  test('ignores the signals of a reader that has gone and of a file that may not grow', () => {
    const { stdout } = spawnSync(process.execPath, [
      '-p',
      'require("fs").readFileSync("/proc/self/status", "utf8").match(/SigIgn:\\s*(\\w+)/)[1]',
    ]);
    const ignored = BigInt(`0x${stdout.toString().trim()}`);

    // SIGPIPE and SIGXFSZ: writing fails with an error instead.
    expect([13n, 25n].map((signal) => (ignored >> (signal - 1n)) & 1n)).toEqual([1n, 1n]);
  });
});
