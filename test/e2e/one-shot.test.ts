import { openSync, closeSync, readFileSync } from 'node:fs';
import { spawn } from 'node:child_process';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  bin,
  endlessModel,
  environment,
  lastLine,
  model,
  processedTokens,
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

const greedy = ['--nothink', '--temp', '0'];

describe('an answer', () => {
  it('is alone on stdout, ends with one newline, and the timing line ends stderr', async () => {
    const args = ['-m', endless, ...greedy, '-n', '16', '-p', 'Say hi'];

    const first = await run(folder, args);
    const second = await run(folder, args);

    expect(first.stdout).toMatch(/[^\n]\n$/);
    expect(first.stdout).not.toContain('\u001b');
    expect(first.stdout).not.toContain('ds4:');
    expect(lastLine(first.stderr)).toMatch(timingLine);
    expect(first.stderr).not.toContain('\r');
    expect(first.stderr).not.toContain('\u001b');
    expect(first.status).toBe(0);
    expect(second.stdout).toBe(first.stdout);
  });

  it('never shows the think tags', async () => {
    const { stdout, status } = await run(folder, [
      '-m',
      model,
      '-n',
      '2000',
      '--seed',
      '3',
      '-c',
      '4096',
      '-p',
      'Say hi',
    ]);

    expect(stdout).not.toMatch(/<\/?think>/);
    expect(stdout).not.toContain('\u001b');
    expect(status).toBe(0);
  });

  it('is the same for the same seed and another for another one', async () => {
    const answer = async (seed: string): Promise<string> =>
      (await run(folder, ['-m', endless, '--seed', seed, '-n', '32', '-p', 'hi'])).stdout;

    const [seven, again, eight] = [await answer('7'), await answer('7'), await answer('8')];

    expect(again).toBe(seven);
    expect(eight).not.toBe(seven);
  });

  it.each(['1', '7', '127', '128', '129'])(
    'does not depend on a prefill chunk of %s',
    async (chunk) => {
      const prompt = 'word '.repeat(60);
      const args = ['-m', endless, ...greedy, '-n', '24', '-p', prompt];

      const whole = await run(folder, [...args, '--prefill-chunk', '4096']);
      const parts = await run(folder, [...args, '--prefill-chunk', chunk]);

      expect(parts.stdout).toBe(whole.stdout);
    },
  );

  it.each([
    ['--quality', []],
    ['--no-mmap', []],
    ['--warm-weights', []],
    ['-t', ['1']],
    ['--gpu-vram', ['0']],
  ])('comes with %s as well', async (option, values) => {
    const { stdout, status } = await run(folder, [
      '-m',
      endless,
      ...greedy,
      '-n',
      '8',
      option,
      ...values,
      '-p',
      'hi',
    ]);

    expect(stdout.length).toBeGreaterThan(1);
    expect(status).toBe(0);
  });

  it('says on stderr that -n ended it', async () => {
    const { stderr } = await run(folder, ['-m', endless, ...greedy, '-n', '3', '-p', 'hi']);

    expect(stderr).toMatch(/ds4: stopped after 3 tokens.*-n/);
  });

  it('leaves only warnings and the timing line with -q', async () => {
    const { stderr } = await run(folder, ['-m', endless, ...greedy, '-n', '3', '-q', '-p', 'hi']);

    expect(stderr.trimEnd()).toMatch(timingLine);
  });

  it('says why it runs on the CPU, once, unless that was asked for', async () => {
    const args = ['-m', endless, ...greedy, '-n', '1', '-p', 'hi'];

    const chosen = await run(folder, args);
    const asked = await run(folder, [...args, '--cpu']);

    expect(chosen.stderr.match(/backend cpu, because/g)).toHaveLength(1);
    expect(asked.stderr).not.toContain('because');
  });

  it('takes markers in a prompt as text, and says so', async () => {
    const marker = '<｜User｜>';
    const plain = await run(folder, ['-m', endless, ...greedy, '-n', '1', '-p', 'x']);

    const { stderr } = await run(folder, ['-m', endless, ...greedy, '-n', '1', '-p', `${marker}x`]);

    expect(stderr).toMatch(/marker.*--raw-prompt/);
    expect(processedTokens(stderr)[0]).toBeGreaterThan((processedTokens(plain.stderr)[0] ?? 0) + 1);
  });

  it('follows a raw prompt whose markers are meant', async () => {
    const rendered = '<｜begin▁of▁sentence｜><｜User｜>hi<｜Assistant｜></think>';

    const raw = await run(folder, [
      '-m',
      endless,
      '--temp',
      '0',
      '-n',
      '8',
      '--raw',
      '-p',
      rendered,
    ]);
    const chat = await run(folder, ['-m', endless, ...greedy, '-n', '8', '-sys', '', '-p', 'hi']);

    expect(raw.stdout).toBe(chat.stdout);
    expect(processedTokens(raw.stderr)).toEqual(processedTokens(chat.stderr));
  });

  it('takes a prefix file into account', async () => {
    const prefix = folder.file(
      'prefix.json',
      JSON.stringify([
        { role: 'user', content: 'one' },
        { role: 'assistant', content: 'two' },
      ]),
    );
    const args = ['-m', endless, ...greedy, '-n', '1', '-p', 'hi'];

    const without = await run(folder, args);
    const with_ = await run(folder, [...args, '--prefix-file', prefix]);
    const bad = await run(folder, [...args, '--prefix-file', folder.file('bad.json', '{"a":1}')]);

    expect(processedTokens(with_.stderr)[0]).toBeGreaterThan(
      processedTokens(without.stderr)[0] ?? 0,
    );
    expect(bad.stderr).toContain('bad.json');
    expect(bad.status).toBe(2);
  });

  it('warns that thinking at length needs more context, and thinks normally', async () => {
    const { stderr, status } = await run(folder, [
      '-m',
      endless,
      '--think-max',
      '-n',
      '1',
      '-p',
      'hi',
    ]);

    expect(stderr).toMatch(/393216.*32768/);
    expect(status).toBe(0);
  });
});

describe('where the prompt comes from', () => {
  const args = (...rest: string[]): string[] => ['-m', endless, ...greedy, '-n', '8', ...rest];

  it('is the same from -p, a file, - and a pipe', async () => {
    const text = 'two\nlines';
    const file = folder.file('prompt.txt', text);
    const outcomes = await Promise.all([
      run(folder, args('-p', text), { env: { DS4_LOCK_FILE: folder.file('l1') } }),
      run(folder, args('--prompt-file', file), { env: { DS4_LOCK_FILE: folder.file('l2') } }),
      run(folder, args('-p', '-'), { stdin: { text }, env: { DS4_LOCK_FILE: folder.file('l3') } }),
      run(folder, args('--prompt-file', '-'), {
        stdin: { text },
        env: { DS4_LOCK_FILE: folder.file('l4') },
      }),
      run(folder, args(), { stdin: { text }, env: { DS4_LOCK_FILE: folder.file('l5') } }),
    ]);

    expect(new Set(outcomes.map(({ stdout }) => stdout)).size).toBe(1);
    expect(outcomes.map(({ status }) => status)).toEqual([0, 0, 0, 0, 0]);
  });

  it('answers -p once and leaves while stdin stays open', async () => {
    const program = new Program(folder, args('-p', 'hi'), { stdin: 'open' });

    const { status } = await program.done;

    expect(status).toBe(0);
  });

  it.each([
    ['closed', '<&-'],
    ['/dev/null', '</dev/null'],
  ])('answers -p with stdin %s and output in files', async (_name, redirection) => {
    const [out, err] = [folder.file('out'), folder.file('err')];
    const child = spawn(
      'sh',
      ['-c', `exec "$0" "$@" ${redirection} >"${out}" 2>"${err}"`, bin, ...args('-p', 'hi')],
      { env: environment(folder), cwd: folder.path },
    );

    const status = await new Promise((settle) => child.on('close', settle));

    const log = readFileSync(err, 'utf8');
    expect(status).toBe(0);
    expect(readFileSync(out, 'utf8').length).toBeGreaterThan(1);
    expect(log).not.toContain('\r');
    expect(log).not.toContain('\u001b');
    expect(log.split('\n').length).toBeLessThan(12);
  });

  it('accepts an empty -p, which is a prompt', async () => {
    expect((await run(folder, args('-p', ''))).status).toBe(0);
  });
});

describe('the context', () => {
  const promptTokens = async (): Promise<number> => {
    const { stderr } = await run(folder, ['-m', endless, ...greedy, '-n', '1', '-p', 'hi']);
    return processedTokens(stderr)[0] ?? 0;
  };

  it('must be longer than the prompt', async () => {
    const tokens = await promptTokens();

    const { stdout, stderr, status } = await run(folder, [
      '-m',
      endless,
      '--nothink',
      '-c',
      String(tokens),
      '-p',
      'hi',
    ]);

    expect(stderr).toMatch(new RegExp(`${tokens} tokens.*exceeds the context of ${tokens}`));
    expect(stdout).toBe('');
    expect(status).toBe(1);
  });

  it('of one token more accepts the prompt and generates nothing', async () => {
    const tokens = await promptTokens();

    const { stdout, stderr, status } = await run(folder, [
      '-m',
      endless,
      '--nothink',
      '-c',
      String(tokens + 1),
      '-p',
      'hi',
    ]);

    expect(stdout).toBe('');
    expect(lastLine(stderr)).toMatch(/generation: 0\.00 t\/s$/);
    expect(status).toBe(0);
  });

  it('ends the answer when it is full, and says so', async () => {
    const tokens = await promptTokens();

    const { stderr, status } = await run(folder, [
      '-m',
      endless,
      ...greedy,
      '-c',
      String(tokens + 6),
      '-n',
      '500',
      '-p',
      'hi',
    ]);

    expect(stderr).toMatch(/context of [0-9]+ tokens is full.*--ctx/);
    expect(status).toBe(0);
  });

  it('that does not fit into memory is refused with need, rest and a context that would', async () => {
    const { stderr, status } = await run(folder, ['-m', endless, '-c', '2147483647', '-p', 'hi']);

    expect(stderr).toMatch(/2147483647 needs .*GiB.*GiB are free.*--ctx [0-9]+/);
    expect(status).toBe(1);
  });

  it('of a processed prompt is reported in plain lines that begin with 0 and end with 100 %', async () => {
    const { stderr } = await run(folder, [
      '-m',
      endless,
      ...greedy,
      '-n',
      '1',
      '--prefill-chunk',
      '8',
      '-p',
      'hi',
    ]);

    const lines = stderr.split('\n').filter((line) => line.startsWith('processing '));
    const total = processedTokens(stderr)[0] ?? 0;
    expect(lines[0]).toBe(`processing ${total} input tokens: 0/${total} (0.0%)`);
    expect(lines.at(-1)).toBe(`processing ${total} input tokens: ${total}/${total} (100.0%)`);
    expect(lines).toHaveLength(1 + Math.ceil(total / 8));
  });
});

describe('colour in a pipe', () => {
  const args = (...rest: string[]): string[] => ['-m', endless, '-n', '4', ...rest, '-p', 'hi'];

  it('is there with --color always and FORCE_COLOR', async () => {
    const always = await run(folder, args('--color', 'always'));
    const forced = await run(folder, args(), { env: { FORCE_COLOR: '1' } });

    expect(always.stdout.startsWith('\u001b[90m')).toBe(true);
    expect(always.stdout).toContain('\u001b[0m');
    expect(forced.stderr).toContain('\u001b[36mds4: prefill:');
  });

  it('is not there with NO_COLOR, even when it is forced', async () => {
    const { stdout, stderr } = await run(folder, args(), {
      env: { NO_COLOR: '1', FORCE_COLOR: '1' },
    });

    expect(stdout + stderr).not.toContain('\u001b');
  });
});

describe('diagnostic variables', () => {
  it('print times and best tokens on stderr', async () => {
    const { stdout, stderr } = await run(
      folder,
      ['-m', endless, ...greedy, '-n', '2', '-p', 'hi'],
      {
        env: { DS4_TOKEN_TIMING: '', DS4_TRACE_TOP: '1' },
      },
    );

    expect(stderr).toMatch(/ds4: token 1: [0-9.]+ ms/);
    expect(stderr.match(/^ds4: {3}[0-9]+ "/gm)).toHaveLength(20);
    expect(stdout).not.toContain('token 1');
  });

  it('are warned about by name when they cannot be read', async () => {
    const { stderr, status } = await run(
      folder,
      ['-m', endless, ...greedy, '-n', '1', '-p', 'hi'],
      {
        env: { DS4_METAL_PREFILL_CHUNK: '4k' },
      },
    );

    expect(stderr).toContain('DS4_METAL_PREFILL_CHUNK=4k');
    expect(status).toBe(0);
  });
});

describe('a stdout that is a full or closed file', () => {
  it('ends with a status that is not 0, without a stack', async () => {
    const full = openSync('/dev/full', 'w');
    const child = spawn(bin, ['-m', endless, ...greedy, '-n', '4', '-p', 'hi'], {
      stdio: ['ignore', full, 'pipe'],
      env: environment(folder),
      cwd: folder.path,
    });
    closeSync(full);
    let stderr = '';
    child.stderr?.on('data', (chunk: Buffer) => {
      stderr += chunk.toString();
    });

    const status = await new Promise((settle) => child.on('close', settle));

    expect(status).not.toBe(0);
    expect(stderr).not.toMatch(/^ {4}at /m);
  });
});
