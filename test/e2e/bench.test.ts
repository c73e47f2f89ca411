import { createHash } from 'node:crypto';
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { cpus, release, tmpdir, totalmem, type, version } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { runBench } from './program.js';

const folder = mkdtempSync(join(tmpdir(), 'ds4-bench-'));
afterAll(() => {
  rmSync(folder, { recursive: true, force: true });
});
const prompt = join(folder, 'prompt.txt');
writeFileSync(prompt, 'What is 12 + 30? The code word is apple. '.repeat(40));

const small = ['--cpu', '--prompt-file', prompt, '--ctx-start', '64', '--ctx-max', '192'];

test('rows on stdout, facts and plot in files, the same tokens in two runs', async () => {
  const json = join(folder, 'a.json');
  const svg = join(folder, 'a.svg');
  const dumps = join(folder, 'logits');
  const args = [...small, '--step-incr', '64', '-n', '4'];
  const first = await runBench([
    ...args,
    '--json',
    json,
    '--svg',
    svg,
    '--dump-frontier-logits-dir',
    dumps,
  ]);
  expect(first.stderr).not.toContain('error');
  expect(first.status).toBe(0);
  const lines = first.stdout.trim().split('\n');
  expect(lines[0]).toBe(
    'ctx_tokens,prefill_tokens,prefill_tps,gen_tokens,gen_tps,gen_first_ms,gen_steady_tokens,gen_steady_tps,' +
      'kvcache_bytes,gen_cycles,gen_token_fnv64',
  );
  expect(lines.slice(1).map((line) => line.split(',').slice(0, 2).join())).toEqual([
    '64,64',
    '128,64',
    '192,64',
  ]);
  expect(readFileSync(svg, 'utf8')).toMatch(/^<svg /);
  expect(readdirSync(dumps).sort()).toEqual([
    'frontier_000064.logits.json',
    'frontier_000128.logits.json',
    'frontier_000192.logits.json',
  ]);
  interface Written {
    machine: { backend: string };
    rows: Record<string, string | number>[];
  }
  const read = (path: string): Written => JSON.parse(readFileSync(path, 'utf8')) as Written;
  const hashes = (path: string): unknown[] => {
    const written = read(path);
    expect(written.machine.backend).toBe('cpu');
    return written.rows.map((row) => row['gen_token_fnv64']);
  };
  // The same columns in both, and the hash stays a text.
  const table = lines.slice(1).map((line) => line.split(','));
  expect(
    read(json).rows.map((row) => (lines[0] ?? '').split(',').map((name) => row[name])),
  ).toEqual(table.map((cells) => [...cells.slice(0, -1).map(Number), cells.at(-1)]));
  expect(table.map((cells) => [cells[3], cells[6], cells[9]])).toEqual([
    ['4', '3', '4'],
    ['4', '3', '4'],
    ['4', '3', '4'],
  ]);
  const again = join(folder, 'b.json');
  const csv = join(folder, 'b.csv');
  // Another chunk size must not change a token.
  const second = await runBench([...args, '--json', again, '--csv', csv, '--prefill-chunk', '17']);
  expect([second.status, second.stdout]).toEqual([0, '']);
  expect(readFileSync(csv, 'utf8').split('\n').length).toBe(5);
  expect(hashes(again)).toEqual(hashes(json));
});

test.each([
  ['cpu', ['--cpu'], undefined],
  ['sim', ['--sim', 'vram=24,ram=64'], 24 * 2 ** 30],
])('the machine and the build are named with backend %s', async (backend, options, memory) => {
  const json = join(folder, `${backend}.json`);
  const { status, stderr } = await runBench([
    ...options,
    '--prompt-file',
    prompt,
    ...['--ctx-start', '16', '--ctx-max', '16', '-n', '2', '--json', json],
  ]);

  expect([status, stderr]).toEqual([0, expect.not.stringContaining('error')]);
  const { machine } = JSON.parse(readFileSync(json, 'utf8')) as {
    machine: Record<string, string | number>;
  };
  const library = readFileSync(String(machine['libraryFile']));
  expect(machine).toMatchObject({
    backend,
    kernel: version(),
    system: `${type()} ${release()}`,
    processors: cpus().length,
    memoryBytes: totalmem(),
    node: process.version,
    libraryBytes: library.length,
    librarySha256: createHash('sha256').update(library).digest('hex'),
  });
  for (const name of ['device', 'arch', 'processor', 'instructionSet', 'ds4']) {
    expect(machine[name]).toMatch(/./);
  }
  expect(machine['threads']).toBeGreaterThan(0);
  expect(machine['deviceMemoryBytes']).toBe(memory);
  expect(machine['libraryFile']).toContain(`libds4-${backend}.so`);
});

test('what cannot be measured is said, with the status of the C program', async () => {
  const missing = await runBench([...small.slice(0, 1), '--prompt-file', join(folder, 'none')]);
  expect([missing.status, missing.stderr]).toEqual([
    1,
    expect.stringMatching(/^ds4-bench: failed to open prompt file: .*none/),
  ]);
  const none = await runBench(['--cpu']);
  expect([none.status, none.stderr]).toEqual([2, expect.stringContaining('exactly one of')]);
  const short = await runBench([...small.slice(0, 3), '--ctx-max', '4000', '-n', '0']);
  expect(short.status).toBe(1);
  expect(short.stderr).toMatch(/has \d+ tokens, and --ctx-max asks for 4000/);
  const help = await runBench(['--help']);
  expect([help.status, help.stderr]).toEqual([0, '']);
  expect(help.stdout).toContain('--ctx-start TOKENS');
});

test('--window wants --json', async () => {
  const { stderr, status } = await runBench([...small, '--window', '32']);

  expect(stderr).toContain('--window needs --json');
  expect(status).toBe(2);
});

test('a folder that cannot be made is told before the model is loaded', async () => {
  for (const path of ['/proc/nope/logits', join(prompt, 'logits')]) {
    const { stdout, stderr, status } = await runBench([
      ...small,
      '--dump-frontier-logits-dir',
      path,
    ]);

    expect(stderr).toContain(`cannot make the folder ${path}: `);
    expect(stderr).not.toContain('loaded');
    expect([stdout, status]).toEqual(['', 1]);
  }
});
