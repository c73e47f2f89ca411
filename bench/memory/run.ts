// Measures what it costs when not all experts are in GPU memory: decode speed with a part of them in slots, the rest in
// main memory or in the file, beside whole residency in the same run and beside what the measured link allows.
//
//   npx tsx bench/memory/run.ts [--model FILE] [--layers 43] [--disk FILE] [--gib 100%,75%,50%,38,0%] [--tokens 64]
//                               [--warm 64] [--rounds 3] [--parts overflow,copies,topic,streaming]
//                               [--topic-tokens 1024] [--topic-size 16] [--out FOLDER] [--program ds4-bench]
//                               [--limits PROGRAM] [--sim MACHINE] [-- options of ds4]
//
// `make cuda memory-limits` first. What happens:
// - The model is made with synthetic weights when FILE is not there (/dev/shm/ds4-synthetic.gguf). It should be in a RAM
//   disk or the page cache, because overflow pins its mapping. Whole residency must fit: make a smaller one with --layers.
// - --gib lists how much of the experts is to have slots, in percent; a number without a sign is GiB of the card for
//   everything. Both are imposed with --gpu-vram, so in whole GiB; the table says what came of it.
// - copies: a slot for one token's experts of a layer only, so each token copies all it needs out of main memory.
// - streaming: from --disk past the page cache, by default a model with as many layers as the disk of the temporary folder
//   has room for, compared with whole residency of that one. The slowest part; --parts and --rounds divide the time.
// - topic: tokens from a set of --topic-size, in the smallest memory of the list, where the cache can learn.
// - --sim tries it out without a GPU: the counters are right, the times mean nothing.
//
// On a machine without npm: bundle this file and bench/gpu/synthetic-model.ts with
//   npx esbuild bench/memory/run.ts bench/gpu/synthetic-model.ts --bundle --platform=node --format=esm \
//       --entry-names=[name] --out-extension:.js=.mjs --outdir=FOLDER
// and take along build/cuda/ds4-memory-limits and what `make bundle` makes: node run.mjs --program ds4/ds4-bench ...
// Every figure is a median of the rounds, each a process of its own. Writes memory.json, shares.svg and topic.svg.
import { existsSync, mkdtempSync, rmSync, statfsSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { Ds4Error } from '../../src/error/index.js';
import { median, readLimits } from '../gpu/rounds.js';
import { writeSynthetic } from '../gpu/synthetic-file.js';
import { copiesCase, longPrompt, overflowCase, streamingCase, wholeCase } from './cases.js';
import type { Case } from './cases.js';
import { CaseFailure, runCase } from './decode.js';
import type { BenchRun, Workload } from './decode.js';
import { byOption, bySimulation } from './imposed.js';
import type { Imposition } from './imposed.js';
import { layersWithin, readModelFacts } from './model-facts.js';
import type { ModelFacts } from './model-facts.js';
import { linkRates, outcomeOf, slotShare } from './outcome.js';
import type { LinkRates } from './outcome.js';
import { Refusal } from './refusal.js';
import { hasFaults, reportText, writeReport } from './report.js';
import type { Group, Topic } from './report.js';
import { parseShares } from './shares.js';
import { evenTokens, topicTokens } from './workload.js';

const { values, positionals: more } = parseArgs({
  allowPositionals: true,
  options: {
    model: { type: 'string', default: '/dev/shm/ds4-synthetic.gguf' },
    layers: { type: 'string' },
    disk: { type: 'string' },
    gib: { type: 'string', default: '100%,75%,50%,38,0%' },
    tokens: { type: 'string', default: '64' },
    warm: { type: 'string', default: '64' },
    rounds: { type: 'string', default: '3' },
    parts: { type: 'string', default: 'overflow,copies,topic,streaming' },
    'topic-tokens': { type: 'string', default: '1024' },
    'topic-size': { type: 'string', default: '16' },
    out: { type: 'string', default: 'build/memory-bench' },
    program: { type: 'string', default: 'bin/ds4-bench' },
    limits: { type: 'string', default: 'build/cuda/ds4-memory-limits' },
    sim: { type: 'string' },
  },
});

const partNames = ['overflow', 'copies', 'topic', 'streaming'] as const;
/** How the system names the file system of a RAM disk. */
const tmpfs = 0x01021994;
const diskReserve = 2 * 2 ** 30;
const window = 32;
const topicWindow = 64;

function count(name: 'tokens' | 'warm' | 'rounds' | 'topic-tokens' | 'topic-size'): number {
  const number = Number(values[name]);
  if (!Number.isInteger(number) || number < (name === 'warm' ? 0 : 1)) {
    throw new Refusal(`--${name} ${values[name]}: a whole number is needed`);
  }
  return number;
}

function wantedParts(): Set<(typeof partNames)[number]> {
  return new Set(
    values.parts.split(',').map((name) => {
      const part = partNames.find((known) => known === name);
      if (part === undefined) {
        throw new Refusal(`--parts: '${name}' is none of ${partNames.join(', ')}`);
      }
      return part;
    }),
  );
}

function say(text: string): void {
  process.stderr.write(`${text}\n`);
}

const isInMemory = (path: string): boolean => statfsSync(path).type === tmpfs;

function modelInMemory(): ModelFacts {
  if (!existsSync(values.model)) {
    const { layers } = values;
    writeSynthetic({
      model: values.model,
      ...(layers === undefined ? {} : { layers: Number(layers) }),
    });
  }
  return readModelFacts(values.model);
}

/** The file to stream from: one that is really on a disk, made when it is not there. */
function modelOnDisk(model: ModelFacts): ModelFacts {
  const isUsable = values.disk === undefined && !isInMemory(model.path);
  const path = isUsable ? model.path : (values.disk ?? join(tmpdir(), 'ds4-synthetic-disk.gguf'));
  if (!existsSync(path)) {
    const { bavail, bsize } = statfsSync(dirname(resolve(path)));
    const layers = layersWithin(model, bavail * bsize - diskReserve);
    if (layers === 0) {
      throw new Refusal(
        `${path}: the disk has no room for one layer; name another place with --disk`,
      );
    }
    writeSynthetic({ model: path, layers });
  }
  if (isInMemory(path)) {
    say(`${path} is in memory: what is measured is no disk; name one with --disk`);
  }
  return readModelFacts(path);
}

const nameOf = ({ mode, wanted, model }: Case): string =>
  `${mode}, ${wanted}, ${model.layers} layers`;

/** Undefined, with the reason on stderr, when it cannot be measured. */
function ifPossible<Result>(name: string, work: () => Result): Result | undefined {
  try {
    return work();
  } catch (thrown) {
    if (!(thrown instanceof CaseFailure)) {
      throw thrown;
    }
    say(`${name}: not measured\n${thrown.message}`);
    return undefined;
  }
}

/** Measures cases one after the other, with files of its own in `folder`. */
class Bench {
  readonly #folder: string;
  readonly #imposition: Imposition;
  readonly #links: LinkRates;
  readonly #rounds: number;

  constructor(folder: string, imposition: Imposition, links: LinkRates, rounds: number) {
    this.#folder = folder;
    this.#imposition = imposition;
    this.#links = links;
    this.#rounds = rounds;
  }

  writeTokens(name: string, ids: readonly number[]): string {
    const path = join(this.#folder, name);
    writeFileSync(path, `${ids.join(' ')}\n`);
    return path;
  }

  /** @throws CaseFailure */
  once(one: Case, workload: Workload): BenchRun {
    const json = join(this.#folder, 'bench.json');
    const run = runCase(values.program, one, workload, json, more);
    const rate = `${run.tokensPerSecond.toFixed(2)} tokens/s`;
    say(`${nameOf(one)}: ${rate}`);
    return run;
  }

  /** Whole residency of one file and some cases of it, in turns, so that a machine that changes its pace does so for all. */
  rounds(model: ModelFacts, cases: readonly Case[], workload: Workload): Group {
    const wholes: BenchRun[] = [];
    const runs = new Map<Case, BenchRun[]>(cases.map((one) => [one, []]));
    for (let round = 0; round < this.#rounds; round += 1) {
      wholes.push(this.once(wholeCase(model, this.#imposition), workload));
      for (const [one, list] of runs) {
        const run = ifPossible(nameOf(one), () => this.once(one, workload));
        if (run === undefined) {
          // What failed once is not worth the time of another round.
          runs.delete(one);
        } else {
          list.push(run);
        }
      }
    }
    const wholeRate = median(wholes.map((run) => run.tokensPerSecond));
    return {
      model,
      whole: wholes[0]!,
      wholeRate,
      outcomes: [[wholeCase(model, this.#imposition), wholes] as const, ...runs].map(
        ([one, list]) => outcomeOf(one, list, wholeRate, this.#links),
      ),
    };
  }

  /** A long text that stays with its topic, in the smallest memory that has slots at all. */
  topic(
    model: ModelFacts,
    overflow: readonly Case[],
    tokens: number,
    context: number,
  ): Topic | undefined {
    const [one] = overflow.filter(({ share }) => share > 0).sort((a, b) => a.share - b.share);
    if (one === undefined) {
      return undefined;
    }
    const size = count('topic-size');
    const ids = topicTokens(context, model.vocab, size, 2);
    const tokenFile = this.writeTokens('topic.txt', ids);
    const workload = { tokenFile, context, warmTokens: 0, tokens, window: topicWindow };
    const run = ifPossible('topic', () => this.once(one, workload));
    return run === undefined ? undefined : { size, share: slotShare(one, run), run };
  }
}

function main(folder: string): void {
  const parts = wantedParts();
  const shares = parseShares(values.gib);
  const [tokens, rounds] = [count('tokens'), count('rounds')];
  const warmTokens = Math.ceil(count('warm') / window) * window;
  const topicCount = count('topic-tokens');
  const context = longPrompt + Math.max(warmTokens + tokens, topicCount) + 1;
  const imposition =
    values.sim === undefined ? byOption(context) : bySimulation(values.sim, context);

  const model = modelInMemory();
  const disk = parts.has('streaming') ? modelOnDisk(model) : undefined;
  const links = readLimits(values.limits, [model.path, ...(disk === undefined ? [] : [disk.path])]);
  const bench = new Bench(folder, imposition, linkRates(links), rounds);
  const tokenFile = bench.writeTokens('even.txt', evenTokens(context, model.vocab, 1));
  const workload = { tokenFile, context, warmTokens, tokens, window };

  const overflow = shares.flatMap((wanted) => overflowCase(model, imposition, wanted) ?? []);
  const inMemory = bench.rounds(
    model,
    [
      ...(parts.has('overflow') ? overflow : []),
      ...(parts.has('copies') ? [copiesCase(model, imposition)] : []),
    ],
    workload,
  );
  const topic = parts.has('topic') ? bench.topic(model, overflow, topicCount, context) : undefined;
  let onDisk: Group | undefined;
  if (disk !== undefined) {
    const cases = shares.map((wanted) => streamingCase(disk, imposition, wanted));
    // Nothing that has been measured so far is lost because of it.
    onDisk = ifPossible('streaming', () => bench.rounds(disk, cases, workload));
  }

  const isSimulated = values.sim !== undefined;
  const measurement = { links, isSimulated, rounds, workload, inMemory, onDisk, topic };
  process.stdout.write(reportText(measurement));
  writeReport(values.out, measurement);
  process.exitCode = hasFaults(measurement) ? 1 : 0;
}

const folder = mkdtempSync(join(tmpdir(), 'ds4-memory-bench-'));
try {
  main(folder);
} catch (thrown) {
  if (!(thrown instanceof Refusal || thrown instanceof Ds4Error)) {
    throw thrown;
  }
  say(thrown.message);
  process.exitCode = 1;
} finally {
  rmSync(folder, { recursive: true, force: true });
}
