import {
  copyFileSync,
  mkdirSync,
  openSync,
  closeSync,
  readFileSync,
  truncateSync,
  writeSync,
} from 'node:fs';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { openGguf } from '../../src/gguf/index.js';
import { text } from '../support/gguf-spec.js';
import { setKey } from '../support/gguf-spec.js';
import { writeGguf } from '../support/gguf-writer.js';
import { tinyModel } from '../support/tiny-model.js';
import { model, patchedModel, Program, run, temporaryFolder } from './program.js';
import type { Folder, Outcome } from './program.js';

let folder: Folder;
beforeAll(() => {
  folder = temporaryFolder();
});
afterAll(() => {
  folder.remove();
});

const ask = (path: string): Promise<Outcome> =>
  run(folder, ['-m', path, '--nothink', '-n', '4', '-p', 'hi']);

function expectRefusal(outcome: Outcome, sentence: RegExp | string): void {
  expect(outcome.stderr).toMatch(sentence);
  expect(outcome.stderr).not.toMatch(/^ {4}at /m);
  expect(outcome.stdout).toBe('');
  expect(outcome.signal).toBeNull();
  expect(outcome.status).toBe(1);
}

describe('a model file', () => {
  it('that is missing is named with the reason, and the lock is free afterwards', async () => {
    expectRefusal(
      await ask('missing.gguf'),
      /^ds4: cannot open model 'missing\.gguf': No such file or directory/m,
    );

    expect(readFileSync(folder.file('lock'), 'utf8')).toMatch(/^[0-9]+\n$/);
    expect((await ask(model)).status).toBe(0);
  });

  it('that is a folder', async () => {
    mkdirSync(folder.file('some-directory'));

    expectRefusal(await ask('some-directory'), /'some-directory'.*directory/);
  });

  it('of 10 bytes', async () => {
    expectRefusal(await ask(folder.file('short', '0123456789')), /too small to be GGUF/);
  });

  it('that is text', async () => {
    expectRefusal(await ask(folder.file('text', 'x'.repeat(100))), /not a GGUF file/);
  });

  it('of GGUF version 2', async () => {
    const path = folder.file('version2.gguf', readFileSync(model));
    const descriptor = openSync(path, 'r+');
    writeSync(descriptor, Buffer.from([2, 0, 0, 0]), 0, 4, 4);
    closeSync(descriptor);

    expectRefusal(await ask(path), /version 3/);
  });

  it('that is cut in its header says where', async () => {
    const path = folder.file('header.gguf');
    copyFileSync(model, path);
    truncateSync(path, 200);

    expectRefusal(await ask(path), /truncated GGUF file at byte [0-9]+/);
  });

  it('that is cut in its data', async () => {
    const path = folder.file('data.gguf');
    copyFileSync(model, path);
    const { files } = openGguf(model);
    truncateSync(path, (files[0]?.bytes ?? 0) - 1000);

    expectRefusal(await ask(path), /tensor .*points outside|outside GGUF file/);
  });

  it('of another architecture names it and those that are supported', async () => {
    const spec = tinyModel();
    setKey(spec, 'general.architecture', text('llama'));
    const path = folder.file('llama.gguf');
    writeGguf(spec).save(path);

    expectRefusal(await ask(path), /llama[^]*deepseek4|deepseek4[^]*llama/);
  });

  it('with NaN in it stops with the position and keeps no answer', async () => {
    const path = patchedModel(folder.file('nan.gguf'), 'output_norm.weight', (bytes) => {
      bytes.writeFloatLE(NaN, 0);
    });

    expectRefusal(await ask(path), /non-finite|not finite/);
  });

  it('of a tiny shape runs', async () => {
    const path = folder.file('tiny.gguf');
    writeGguf(tinyModel()).save(path);

    expect((await ask(path)).status).toBe(0);
  });
});

describe('the lock', () => {
  it('held by another process refuses with its pid, names the variable, and disturbs nobody', async () => {
    const holder = new Program(folder, ['-m', model, '--interactive'], { stdin: 'open' });
    await holder.says('memory:');

    const refused = await run(folder, ['-m', model, '-p', 'hi']);
    const missing = await run(folder, ['-m', 'missing.gguf', '-p', 'hi']);
    const own = await run(folder, ['-m', model, '-n', '2', '-p', 'hi'], {
      env: { DS4_LOCK_FILE: folder.file('lock2') },
    });
    const tokens = await run(folder, ['-m', model, '--dump-tokens', '-p', 'hi']);
    const inspected = await run(folder, ['-m', model, '--inspect']);
    holder.child.stdin?.end('/nothink\nhello\n');
    const held = await holder.done;

    expect(refused.stderr).toContain(
      `ds4: another ds4 process is already running (pid ${holder.child.pid}); refusing to start`,
    );
    expect(refused.stderr).toContain('DS4_LOCK_FILE');
    expect(refused.status).toBe(2);
    expect(missing.status).toBe(2);
    expect(own.status).toBe(0);
    expect(tokens.status).toBe(0);
    expect(inspected.status).toBe(0);
    expect(held.status).toBe(0);
    expect(held.stdout).toContain('Thinking mode: none.');
  });

  it('that cannot be opened names path and reason', async () => {
    const { stderr, status } = await run(folder, ['-m', model, '-p', 'hi'], {
      env: { DS4_LOCK_FILE: '/no/such/folder/lock' },
    });

    expect(stderr).toMatch(/\/no\/such\/folder\/lock.*No such file or directory/);
    expect(status).toBe(2);
  });
});
