import { readFileSync } from 'node:fs';
import { checkPreload } from '../checks.js';
import { RunError, systemReason, UsageError } from '../errors.js';
import { entry, optionTable } from '../options/index.js';
import type { OptionEntry } from '../options/index.js';
import { defaultSettings } from '../settings.js';
import type { Settings } from '../settings.js';
import { nonNegativeInteger, positiveInteger } from '../values.js';

/** The text that is evaluated, again and again a piece further. */
export interface BenchPrompt {
  readonly form: 'raw' | 'chat' | 'tokens';
  readonly path: string;
  readonly text: Uint8Array;
}

/** What the command line of `ds4-bench` says, besides what it shares with `ds4`. */
export interface BenchSettings {
  prompts: BenchPrompt[];
  system: string;
  contextStart: number;
  contextMax: number;
  contextAlloc: number | undefined;
  stepIncrement: number;
  stepFactor: number;
  generate: number;
  /** Decode the tokens that follow in the prompt instead of generating. */
  replay: boolean;
  /** Tokens of one window of a decode; undefined: no windows. */
  window: number | undefined;
  csv: string | undefined;
  json: string | undefined;
  svg: string | undefined;
  logitsFolder: string | undefined;
  showOutput: boolean;
  readonly shared: Settings;
}

export function defaultBenchSettings(): BenchSettings {
  return {
    prompts: [],
    system: 'You are a helpful assistant.',
    contextStart: 2048,
    contextMax: 32_768,
    contextAlloc: undefined,
    stepIncrement: 2048,
    stepFactor: 1,
    generate: 128,
    replay: false,
    window: undefined,
    csv: undefined,
    json: undefined,
    svg: undefined,
    logitsFolder: undefined,
    showOutput: false,
    shared: defaultSettings(),
  };
}

/** Options of `ds4` that mean the same here: what is loaded, where, and how stderr looks. */
const sharedSections = new Set([
  'Model And Runtime',
  'Output And Help',
  'GPU Placement',
  'Expert Streaming',
  'KV Tiers And Weight Paging',
  'Draft Models',
  'Distributed Inference',
]);
/** Of other sections, what means the same. */
const alsoShared = new Set(['--stats', '--stats-json']);
/** These have a meaning of their own here, or none. */
const own = new Set(['--ctx', '--quiet']);

/** Unlike in `ds4`, a prompt that cannot be read is a failure of the run, status 1. */
function readPromptFile(path: string): Uint8Array {
  try {
    return readFileSync(path);
  } catch (thrown) {
    throw new RunError(`failed to open prompt file: ${path} (${systemReason(thrown)})`);
  }
}

/** The option table of `ds4-bench`; what its options say goes into `bench`. */
export function benchOptions(bench: BenchSettings): readonly OptionEntry[] {
  const section = 'Benchmark';
  const option = (
    names: string,
    values: string,
    description: string,
    apply: (value: string) => void,
  ): OptionEntry =>
    entry({
      names,
      ...(values === '' ? {} : { values }),
      section,
      basic: true,
      description,
      requiresArgument: true,
      apply: (_settings, use) => {
        apply(use.value);
      },
    });
  const prompt = (form: BenchPrompt['form']) => (path: string) => {
    bench.prompts.push({ form, path, text: readPromptFile(path) });
  };
  return [
    option('--prompt-file', 'FILE', 'Text to evaluate as it is.', prompt('raw')),
    option(
      '--chat-prompt-file',
      'FILE',
      'Text to evaluate as one message of a user, without thinking.',
      prompt('chat'),
    ),
    option(
      '--token-file',
      'FILE',
      'Token ids to evaluate, as ds4 --dump-tokens prints them in its first line.',
      prompt('tokens'),
    ),
    option('-sys, --system', 'TEXT', 'System text in front of a chat prompt.', (value) => {
      bench.system = value;
    }),
    option('--ctx-start', 'TOKENS', 'First frontier. Default: 2048.', (value) => {
      bench.contextStart = positiveInteger(value);
    }),
    option('--ctx-max', 'TOKENS', 'Last frontier. Default: 32768.', (value) => {
      bench.contextMax = positiveInteger(value);
    }),
    option(
      '--ctx-alloc',
      'TOKENS',
      'Context to open. Default: last frontier, generated tokens and one.',
      (value) => {
        bench.contextAlloc = positiveInteger(value);
      },
    ),
    option('--step-incr', 'TOKENS', 'Distance of frontiers. Default: 2048.', (value) => {
      bench.stepIncrement = positiveInteger(value);
    }),
    option(
      '--step-mul',
      'FACTOR',
      'Above 1: each frontier is this many times the one before. Default: 1.',
      (value) => {
        bench.stepFactor = positiveInteger(value);
      },
    ),
    option(
      '-n, --tokens, --gen-tokens',
      'COUNT',
      'Tokens to generate at each frontier; 0 measures prefill alone. Default: 128.',
      (value) => {
        bench.generate = nonNegativeInteger(value);
      },
    ),
    option(
      '--replay',
      '',
      'Evaluate the tokens that follow in the prompt one by one instead of generating.',
      () => {
        bench.replay = true;
      },
    ),
    option(
      '--window',
      'TOKENS',
      'With --json: rate and use of the expert cache for each so many generated tokens.',
      (value) => {
        bench.window = positiveInteger(value);
      },
    ),
    option('--csv', 'FILE', 'Write the rows here instead of to stdout.', (value) => {
      bench.csv = value;
    }),
    option('--json', 'FILE', 'Write the rows with facts about machine and model.', (value) => {
      bench.json = value;
    }),
    option('--svg', 'FILE', 'Draw the rates over the context.', (value) => {
      bench.svg = value;
    }),
    option(
      '--dump-frontier-logits-dir',
      'DIR',
      'Write all logits of each frontier into this folder.',
      (value) => {
        bench.logitsFolder = value;
      },
    ),
    option('--show-output', '', 'Print the generated text of each frontier on stderr.', () => {
      bench.showOutput = true;
    }),
    ...optionTable.filter(
      ({ section: name, names }) =>
        (sharedSections.has(name) && !names.some((n) => own.has(n))) ||
        names.some((n) => alsoShared.has(n)),
    ),
  ];
}

/** @throws UsageError for values that do not go together. */
export function checkBench(bench: BenchSettings): void {
  const { prompts, contextStart, contextMax, contextAlloc, generate, shared } = bench;
  if (prompts.length !== 1) {
    throw new UsageError(
      'exactly one of --prompt-file, --chat-prompt-file and --token-file is needed',
    );
  }
  if (contextStart > contextMax) {
    throw new UsageError(`--ctx-start ${contextStart} is beyond --ctx-max ${contextMax}`);
  }
  if (contextAlloc !== undefined && contextAlloc <= contextMax + generate) {
    throw new UsageError(
      `--ctx-alloc ${contextAlloc} is too small: it must exceed --ctx-max ${contextMax} and ` +
        `--gen-tokens ${generate} together`,
    );
  }
  if (bench.window !== undefined && bench.json === undefined) {
    throw new UsageError('--window needs --json: windows are in no column of the rows');
  }
  checkPreload(shared);
  if (shared.role === 'worker') {
    throw new UsageError('--role worker is for ds4: start workers with ds4, then ds4-bench');
  }
}

/** Positions at which a measurement is made, ascending; the last one is `contextMax` or below. */
export function frontiers(bench: BenchSettings): number[] {
  const found: number[] = [];
  let at = bench.contextStart;
  while (at <= bench.contextMax) {
    found.push(at);
    at = bench.stepFactor > 1 ? at * bench.stepFactor : at + bench.stepIncrement;
  }
  return found;
}
