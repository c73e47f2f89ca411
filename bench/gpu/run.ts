// Measures ds4 on a GPU with a synthetic full-size model and prints the table of docs/performance.md.
//
//   npx tsx bench/gpu/run.ts [--program DIR] [--model FILE] [--rounds 3] [--limits PROGRAM] [--json FILE]
//                            [-- options of ds4]
//
// DIR holds ds4 and ds4-bench (a bundle; default: bin/ of this checkout). The model is written to /dev/shm when it is not
// there. Every figure is the median of the rounds; each round is a process of its own.
import { execFileSync, spawn } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { median, readLimits } from './rounds.js';
import { writeSynthetic } from './synthetic-file.js';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    program: { type: 'string', default: 'bin' },
    model: { type: 'string', default: '/dev/shm/ds4-synthetic.gguf' },
    rounds: { type: 'string', default: '3' },
    limits: { type: 'string', default: 'build/cuda/ds4-gpu-limits' },
    json: { type: 'string' },
  },
});
const folder = mkdtempSync(join(tmpdir(), 'ds4-gpu-bench-'));
const program = (name: string): string => resolve(values.program, name);
const more = positionals;
const rounds = Number(values.rounds);

/** Bytes that one decoded token reads in weights, in GB: docs/performance.md derives it. */
const tokenGigabytes = 9.56;

interface BenchRow {
  readonly ctx_tokens: number;
  readonly prefill_tokens: number;
  readonly prefill_tps: number;
  readonly gen_tps: number;
  readonly gen_steady_tps: number;
}
interface Measured {
  readonly name: string;
  readonly unit: string;
  readonly values: number[];
  readonly limit?: number;
}

function bench(name: string, args: readonly string[]): readonly BenchRow[] {
  const json = join(folder, `${name}.json`);
  execFileSync(program('ds4-bench'), ['-m', values.model, ...args, '--json', json, ...more], {
    stdio: ['ignore', 'ignore', 'inherit'],
  });
  return (JSON.parse(readFileSync(json, 'utf8')) as { rows: BenchRow[] }).rows;
}

/** Most device memory in use while a process runs, in MiB; asked of the driver's own tool. */
async function peakMemory(work: () => Promise<void>): Promise<number> {
  let most = 0;
  const watch = spawn('nvidia-smi', [
    '--query-gpu=memory.used',
    '--format=csv,noheader,nounits',
    '-lms',
    '100',
  ]);
  watch.on('error', () => undefined);
  watch.stdout.on('data', (text: Buffer) => {
    most = Math.max(
      most,
      ...text.toString().trim().split('\n').map(Number).filter(Number.isFinite),
    );
  });
  await work();
  watch.kill();
  return most;
}

/** Seconds from the start of the process until the model is loaded, and until the first word of an answer. */
function readiness(prompt: string): Promise<{ ready: number; first: number }> {
  return new Promise((settle, fail) => {
    const started = performance.now();
    const since = (): number => (performance.now() - started) / 1000;
    let ready = NaN;
    let first = NaN;
    const child = spawn(program('ds4'), [
      '-m',
      values.model,
      '-p',
      prompt,
      '--nothink',
      '-n',
      '8',
      '--temp',
      '0',
      ...more,
    ]);
    child.stderr.on('data', (text: Buffer) => {
      if (Number.isNaN(ready) && text.toString().includes(' loaded in ')) ready = since();
    });
    child.stdout.once('data', () => {
      first = since();
    });
    child.on('error', fail);
    child.on('close', () => {
      settle({ ready, first });
    });
  });
}

const limits = readLimits(values.limits);
const prompt = join(folder, 'prompt.txt');
writeSynthetic({ prompt, ...(existsSync(values.model) ? {} : { model: values.model }) });

const measured: Measured[] = [];
const bandwidth = Number(limits['device_read_gbs'] ?? NaN);
const decodeLimit = bandwidth / tokenGigabytes;
const decode = (name: string, figures: number[]): void => {
  measured.push({ name, unit: 't/s', values: figures, limit: decodeLimit });
};
const short: number[] = [];
const long = new Map<number, number[]>();
const prefill = new Map<string, number[]>();
const ready: number[] = [];
const first: number[] = [];
let memory = 0;
for (let round = 0; round < rounds; round += 1) {
  memory = Math.max(
    memory,
    await peakMemory(async () => {
      const times = await readiness('Say hi to everybody who is here today');
      ready.push(times.ready);
      first.push(times.first - times.ready);
    }),
  );
  const fixed = ['--prompt-file', prompt, '--ctx-alloc', '32768'];
  for (const row of bench('short', [
    ...fixed,
    '--ctx-start',
    '32',
    '--ctx-max',
    '32',
    '-n',
    '128',
  ])) {
    short.push(row.gen_steady_tps);
  }
  for (const row of bench('prefill', [
    ...fixed,
    '--ctx-start',
    '4096',
    '--ctx-max',
    '8192',
    '--step-incr',
    '4096',
    '-n',
    '64',
  ])) {
    const name = `prefill ${row.ctx_tokens - row.prefill_tokens} to ${row.ctx_tokens}`;
    prefill.set(name, [...(prefill.get(name) ?? []), row.prefill_tps]);
    long.set(row.ctx_tokens, [...(long.get(row.ctx_tokens) ?? []), row.gen_steady_tps]);
  }
}
decode('decode, 32-token prompt', short);
for (const [context, figures] of long) decode(`decode at ${context}`, figures);
for (const [name, figures] of prefill) measured.push({ name, unit: 't/s', values: figures });
measured.push({ name: 'start to ready', unit: 's', values: ready });
measured.push({ name: 'first word after that', unit: 's', values: first });
measured.push({ name: 'device memory', unit: 'MiB', values: [memory] });

process.stdout.write(
  `${JSON.stringify(limits)}\n\n| what | median | of the limit | rounds |\n| --- | ---: | ---: | --- |\n`,
);
for (const { name, unit, values: figures, limit } of measured) {
  const middle = median(figures);
  const share =
    limit === undefined || Number.isNaN(limit) ? '' : `${((100 * middle) / limit).toFixed(0)} %`;
  process.stdout.write(
    `| ${name} | ${middle.toFixed(2)} ${unit} | ${share} | ${figures.map((f) => f.toFixed(2)).join(' ')} |\n`,
  );
}
if (values.json !== undefined) {
  writeFileSync(values.json, `${JSON.stringify({ limits, measured }, undefined, 2)}\n`);
}
rmSync(folder, { recursive: true, force: true });
