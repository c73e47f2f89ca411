import { appendFileSync, mkdirSync, statSync, writeFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { Chat } from '../../chat/index.js';
import { ExitCode } from '../../error/index.js';
import { readOptions } from '../arguments.js';
import { refuseUnserved } from '../checks.js';
import { readEnvironment } from '../environment.js';
import { RunError, systemReason } from '../errors.js';
import { jsonNumber } from '../json.js';
import { loadModel } from '../load.js';
import { openRun, reportFailure, withRun } from '../open-run.js';
import { drawsProgress } from '../progress.js';
import type { Run } from '../run.js';
import { sayStats } from '../stats.js';
import { openTokenizer } from '../tokens.js';
import { versionText } from '../version.js';
import { benchHelp } from './help.js';
import { machineFacts } from './machine.js';
import { measure } from './measure.js';
import type { Row } from './measure.js';
import { benchOptions, checkBench, defaultBenchSettings, frontiers } from './options.js';
import type { BenchSettings } from './options.js';
import { promptTokens } from './prompt.js';
import { csvHeader, csvLine, jsonText, svgText } from './report.js';
import { trafficOf } from './windows.js';

const program = 'ds4-bench';
const fileNameDigits = 6;

/** Where rows go as they come: a file, or stdout. */
class CsvOutput {
  readonly #path: string | undefined;
  readonly #run: Run;

  constructor(run: Run, path: string | undefined) {
    this.#run = run;
    this.#path = path;
  }

  async start(): Promise<void> {
    if (this.#path !== undefined) {
      writeOrFail(this.#path, `${csvHeader}\n`);
    } else {
      await this.#run.terminal.answer(`${csvHeader}\n`);
    }
  }

  async add(row: Row): Promise<void> {
    if (this.#path !== undefined) {
      writeOrFail(this.#path, `${csvLine(row)}\n`, appendFileSync);
    } else {
      await this.#run.terminal.answer(`${csvLine(row)}\n`);
    }
  }
}

function writeOrFail(
  path: string,
  text: string,
  write: (path: string, text: string) => void = writeFileSync,
): void {
  try {
    write(path, text);
  } catch (thrown) {
    throw new RunError(`cannot write ${path}: ${systemReason(thrown)}`);
  }
}

/**
 * Makes a folder and those it lies in. Not by `recursive`: under a name that exists and can hold nothing, Node looks for the
 * parent for ever.
 */
function makeFolder(path: string): void {
  if (statSync(path, { throwIfNoEntry: false })?.isDirectory() === true) {
    return;
  }
  if (dirname(path) !== path) {
    makeFolder(dirname(path));
  }
  mkdirSync(path);
}

/** Before the model is loaded: nobody is to wait for a bad name. */
function makeFolderOrFail(path: string): void {
  try {
    makeFolder(resolve(path));
  } catch (thrown) {
    throw new RunError(`cannot make the folder ${path}: ${systemReason(thrown)}`);
  }
}

/** A bar on a terminal, nothing elsewhere: the rows themselves tell how far it is. */
async function openBar(
  run: Run,
): Promise<{ update(done: number, total: number): void; end(): void }> {
  if (!drawsProgress(run.terminal, run.environment.terminal)) {
    return { update: () => undefined, end: () => undefined };
  }
  const { default: progress } = await import('cli-progress');
  const bar = new progress.SingleBar({
    format: `${program}: {bar} {percentage}% {value} of {total} tokens`,
    stream: process.stderr,
    barsize: 20,
    hideCursor: null,
    linewrap: true,
    gracefulExit: false,
    clearOnComplete: true,
    barCompleteChar: '#',
    barIncompleteChar: '-',
  });
  let isStarted = false;
  return {
    update: (done, total) => {
      if (!isStarted) {
        isStarted = true;
        bar.start(total, done);
      }
      bar.update(done);
    },
    end: () => {
      if (isStarted) {
        bar.stop();
      }
    },
  };
}

/** All logits of one frontier, in the form of `ds4 --dump-logits`. */
function dumpFrontier(folder: string, row: Row): void {
  const path = join(
    folder,
    `frontier_${String(row.context).padStart(fileNameDigits, '0')}.logits.json`,
  );
  const numbers = Array.from(row.logits ?? [], jsonNumber).join(',');
  writeOrFail(
    path,
    `{"source":"ds4-bench","version":1,"prompt_tokens":${row.context},"logits":[${numbers}]}\n`,
  );
}

async function runBench(run: Run, bench: BenchSettings): Promise<number> {
  if (bench.logitsFolder !== undefined) {
    makeFolderOrFail(bench.logitsFolder);
  }
  const started = performance.now();
  const { model, session } = await loadModel(run);
  try {
    const loadSeconds = (performance.now() - started) / 1000;
    const { gguf, shape } = model.description;
    const tokenizer = openTokenizer(gguf, shape.vocab);
    const tokens = promptTokens(bench, tokenizer, shape.vocab);
    const csv = new CsvOutput(run, bench.csv);
    const bar = await openBar(run);
    const rows: Row[] = [];
    await csv.start();
    try {
      for await (const row of measure(session, {
        tokens,
        frontiers: frontiers(bench),
        generate: bench.generate,
        replay: bench.replay,
        window: bench.window,
        traffic: () => trafficOf(model.engine.telemetry()),
        excluded: new Chat(tokenizer).stopTokens('none'),
        wantsLogits: bench.logitsFolder !== undefined,
        vocab: shape.vocab,
        clock: () => performance.now(),
        onProgress: (done, total) => {
          bar.update(done, total);
        },
      })) {
        rows.push(row);
        await csv.add(row);
        if (bench.showOutput) {
          const text = Buffer.concat(row.tokens.map((token) => tokenizer.pieceBytes(token)));
          run.terminal.note(`${row.context}: ${JSON.stringify(text.toString('utf8'))}`);
        }
        if (bench.logitsFolder !== undefined) {
          dumpFrontier(bench.logitsFolder, row);
        }
      }
    } finally {
      bar.end();
    }
    await model.saveExpertProfile();
    sayStats(run, model);
    const facts = machineFacts(model, run.environment.libraryDirectory);
    if (bench.json !== undefined) {
      const { info } = model.engine;
      const { place, source } = model.plan.weights;
      writeOrFail(
        bench.json,
        jsonText({
          machine: facts,
          model: { path: model.path, bytes: info.weightBytes },
          context: session.context,
          prefillChunk: session.prefillChunk,
          loadSeconds: Number(loadSeconds.toFixed(3)),
          weightBytes: info.weightBytes,
          deviceBytes: info.deviceBytes,
          weights: { place, source },
          rows,
        }),
      );
    }
    if (bench.svg !== undefined) {
      writeOrFail(bench.svg, svgText(`ds4 on ${facts.device} (${facts.backend})`, rows));
    }
    return ExitCode.ok;
  } finally {
    await model.close();
  }
}

/** Prints what went wrong and returns the exit status. */
export function report(thrown: unknown): number {
  return reportFailure(thrown, program);
}

/** The program `ds4-bench`: returns the exit status, prints every error itself, never throws. */
export async function main(argv: readonly string[]): Promise<number> {
  try {
    const bench = defaultBenchSettings();
    const table = benchOptions(bench);
    const asked = readOptions(argv, table, bench.shared);
    if (asked.kind === 'help') {
      process.stdout.write(benchHelp(table));
      return ExitCode.ok;
    }
    if (asked.kind === 'version') {
      process.stdout.write(`${await versionText()}\n`);
      return ExitCode.ok;
    }
    checkBench(bench);
    refuseUnserved(bench.shared);
    const { contextAlloc, contextMax, generate } = bench;
    const settings = { ...bench.shared, context: contextAlloc ?? contextMax + generate + 1 };
    const run = await openRun(settings, readEnvironment(), program);
    for (const warning of run.environment.warnings) {
      run.terminal.warning(warning);
    }
    return await withRun(run, () => runBench(run, bench));
  } catch (thrown) {
    return report(thrown);
  }
}
