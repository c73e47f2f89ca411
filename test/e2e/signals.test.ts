import { spawn } from 'node:child_process';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  bin,
  endlessModel,
  environment,
  lastLine,
  Program,
  run,
  temporaryFolder,
  timingLine,
} from './program.js';
import type { Folder } from './program.js';

let folder: Folder;
let endless: string;
beforeAll(() => {
  folder = temporaryFolder();
  endless = endlessModel(folder.file('endless.gguf'));
});
afterAll(() => {
  folder.remove();
});

/** A later run proves that the lock is free. */
async function expectFreeLock(): Promise<void> {
  expect((await run(folder, ['-m', endless, '-n', '1', '-p', 'hi'])).status).toBe(0);
}

const longPrompt = 'word '.repeat(20_000);

describe('while it generates', () => {
  it.each([
    ['SIGINT', 130],
    ['SIGTERM', 143],
    ['SIGHUP', 129],
  ] as const)('%s ends line and run in order, with status %i', async (signal, status) => {
    const program = new Program(folder, ['-m', endless, '-p', 'hi']);
    await program.until(() => program.stdout.length > 20, 'it wrote 20 bytes');

    program.kill(signal);
    const outcome = await program.done;

    expect(outcome.status).toBe(status);
    expect(outcome.signal).toBeNull();
    expect(outcome.stdout.endsWith('\n')).toBe(true);
    expect(lastLine(outcome.stderr)).toMatch(timingLine);
    await expectFreeLock();
  });

  it('ends the colour before the line', async () => {
    const program = new Program(folder, ['-m', endless, '--color', 'always', '-p', 'hi']);
    await program.until(() => program.stdout.length > 20, 'it wrote 20 bytes');

    program.kill('SIGINT');
    const { stdout } = await program.done;

    expect(stdout.endsWith('\n\u001b[0m')).toBe(true);
  });

  it('ends quietly, within a token, when the reader of stdout goes away', async () => {
    const script = `"$0" "$@" 2>err | head -c 20; echo " $?"`;
    const child = spawn(
      'bash',
      ['-c', `set -o pipefail; ${script}`, bin, '-m', endless, '-p', 'hi'],
      {
        env: environment(folder),
        cwd: folder.path,
      },
    );
    const chunks: Buffer[] = [];
    child.stdout.on('data', (chunk: Buffer) => chunks.push(chunk));

    await new Promise((settle) => child.on('close', settle));

    const { readFileSync } = await import('node:fs');
    const output = Buffer.concat(chunks);
    expect(output.length).toBe(20 + ' 141\n'.length);
    expect(output.toString('latin1').endsWith(' 141\n')).toBe(true);
    expect(readFileSync(folder.file('err'), 'utf8')).not.toMatch(/EPIPE|Error|^ {4}at /m);
    await expectFreeLock();
  });
});

describe('while it processes the prompt', () => {
  it.each([
    ['SIGINT', 130],
    ['SIGTERM', 143],
  ] as const)('%s stops it with status %i', async (signal, status) => {
    const prompt = folder.file('long.txt', longPrompt);
    const program = new Program(folder, ['-m', endless, '-c', '100000', '--prompt-file', prompt]);
    await program.says(/: 512\/20/);

    program.kill(signal);
    const outcome = await program.done;

    expect(outcome.status).toBe(status);
    expect(outcome.stderr).toContain('interrupted while processing the prompt');
    expect(lastLine(outcome.stderr)).toMatch(timingLine);
    expect(outcome.stderr).not.toContain('100.0%');
    expect(outcome.stdout).toBe('');
    await expectFreeLock();
  });

  it('takes no longer when the whole prompt is one chunk', async () => {
    const prompt = folder.file('long.txt', longPrompt);
    const program = new Program(folder, [
      '-m',
      endless,
      '-c',
      '100000',
      '--prefill-chunk',
      '30000',
      '--prompt-file',
      prompt,
    ]);
    await program.says(': 0/20');

    program.kill('SIGINT');
    const outcome = await program.done;

    expect(outcome.status).toBe(130);
    expect(outcome.stderr).not.toContain('100.0%');
  });
});

describe('before that', () => {
  it('a signal during the start ends it with 130, whatever it was doing', async () => {
    const program = new Program(folder, ['-m', endless, '--warm-weights', '-p', 'hi']);
    await program.says('backend cpu');

    program.kill('SIGINT');
    const outcome = await program.done;

    expect(outcome.status).toBe(130);
    expect(outcome.signal).toBeNull();
    await expectFreeLock();
  });

  it('a signal ends the wait for a prompt on stdin', async () => {
    const program = new Program(folder, ['-m', endless, '-p', '-'], {
      stdin: 'open',
      env: { DS4_METAL_PREFILL_CHUNK: 'marks that signals are heard' },
    });
    await program.says('DS4_METAL_PREFILL_CHUNK');

    program.kill('SIGTERM');
    const outcome = await program.done;

    expect(outcome.status).toBe(143);
    expect(outcome.stdout).toBe('');
  });

  it('a signal ends a chat that waits for a line', async () => {
    const program = new Program(folder, ['-m', endless, '--interactive'], { stdin: 'open' });
    await program.says('memory:');

    program.kill('SIGTERM');
    const outcome = await program.done;

    expect(outcome.status).toBe(143);
    await expectFreeLock();
  });
});

describe('a dump', () => {
  it('that is interrupted leaves no file behind', async () => {
    const { readdirSync } = await import('node:fs');
    const program = new Program(folder, [
      '-m',
      endless,
      '--dump-logprobs',
      'dump.json',
      '-n',
      '50000',
      '-p',
      'hi',
    ]);
    await program.says('100.0%');

    program.kill('SIGINT');
    const outcome = await program.done;

    expect(outcome.status).toBe(130);
    expect(readdirSync(folder.path).filter((name) => name.startsWith('dump'))).toEqual([]);
  });
});
