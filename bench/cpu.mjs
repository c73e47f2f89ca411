// Prefill and decode rates of ds4 and of llama.cpp (as node-llama-cpp bundles it), on the same GGUF files, in the same
// run, process after process in turn, and the start of `ds4 --help` against bare Node. Prints the tables of
// docs/performance.md. Usage: node bench/cpu.mjs [--threads 2] [--rounds 5] [MODEL.gguf ...]
import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, renameSync } from 'node:fs';
import { cpus } from 'node:os';
import { basename, join, resolve } from 'node:path';
import { performance } from 'node:perf_hooks';

const root = resolve(import.meta.dirname, '..');
const options = { threads: 2, rounds: 5, models: [] };
const words = process.argv.slice(2);
while (words.length > 0) {
  const word = words.shift();
  if (word === '--threads') options.threads = Number(words.shift());
  else if (word === '--rounds') options.rounds = Number(words.shift());
  else options.models.push(word);
}
if (options.models.length === 0) {
  options.models = ['a-f16', 'a-q8_0', 'b-iq2'].map((name) =>
    join(root, 'test/fixtures', `${name}.gguf`),
  );
}
const prefillTokens = 480;
const decodeTokens = 160;

const median = (values) => [...values].sort((a, b) => a - b)[values.length >> 1];

/** One process, one JSON line: rates in tokens per second. */
function measure(script, model) {
  const args = [
    join(root, 'bench', script),
    model,
    options.threads,
    prefillTokens,
    decodeTokens,
  ].map(String);
  const run = spawnSync(process.execPath, args, { encoding: 'utf8', maxBuffer: 1 << 26 });
  const line = run.stdout.trim().split('\n').at(-1) ?? '';
  try {
    return JSON.parse(line);
  } catch {
    throw new Error(
      `${script} failed on ${model}: ${run.stderr.trim().split('\n').slice(-3).join(' ')}`,
    );
  }
}

if (!existsSync(join(root, 'bench/node_modules/node-llama-cpp'))) {
  throw new Error('the peer is not installed; run: npm ci --prefix bench');
}
// The peer's AMX variant aborts on these models (GGML_ASSERT *cur_backend_id != -1); the next best one runs them.
const amx = join(
  root,
  'bench/node_modules/@node-llama-cpp/linux-x64/bins/linux-x64/libggml-cpu-sapphirerapids.so',
);
if (existsSync(amx)) {
  renameSync(amx, `${amx}.aside`);
}
console.log(
  `${cpus()[0].model}, ${options.threads} threads, ${options.rounds} rounds, medians, tokens per second\n`,
);
console.log('| model | | ds4 | llama.cpp | ratio |\n| --- | --- | ---: | ---: | ---: |');
for (const model of options.models) {
  const ours = [];
  const theirs = [];
  for (let round = 0; round < options.rounds; round += 1) {
    ours.push(measure('run-ds4.mjs', model));
    theirs.push(measure('run-llama.mjs', model));
  }
  for (const kind of ['prefill', 'decode']) {
    const a = median(ours.map((run) => run[kind]));
    const b = median(theirs.map((run) => run[kind]));
    console.log(
      `| ${basename(model)} | ${kind} | ${a.toFixed(0)} | ${b.toFixed(0)} | ${(a / b).toFixed(2)} |`,
    );
  }
}

function startMilliseconds(args) {
  const start = performance.now();
  execFileSync(process.execPath, args, { stdio: 'ignore' });
  return performance.now() - start;
}
const help = [];
const bare = [];
for (let round = 0; round < 15; round += 1) {
  bare.push(startMilliseconds(['-e', '0']));
  help.push(startMilliseconds([join(root, 'bin/ds4'), '--help']));
}
console.log(
  `\nstart-up: ds4 --help ${median(help).toFixed(0)} ms, node -e 0 ${median(bare).toFixed(0)} ms, ` +
    `ratio ${(median(help) / median(bare)).toFixed(2)}`,
);
