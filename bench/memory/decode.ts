import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { placeOf } from './cases.js';
import type { Case, Mode } from './cases.js';
import { Refusal } from './refusal.js';

/** A window of ds4-bench's JSON. */
export interface BenchWindow {
  readonly gen_tokens: number;
  readonly gen_tps: number;
  readonly expert_lookups: number;
  readonly expert_slot_hits: number;
  readonly expert_promotions: number;
  readonly file_read_bytes: number;
  readonly upload_bytes: number;
  readonly bus_read_bytes: number;
}

/** The parts of ds4-bench's JSON that are used here. */
export interface BenchFile {
  readonly machine: Readonly<Record<string, string | number>>;
  readonly weights: { readonly place: string };
  readonly rows: readonly { readonly gen_windows: readonly BenchWindow[] }[];
}

/** What --stats-json says that is used here. */
export interface Stats {
  readonly experts?: { readonly slots: number };
}

export interface Workload {
  /** Of ids, at least prompt, warm-up and measured tokens together. */
  readonly tokenFile: string;
  readonly context: number;
  /** Decoded first and not counted. */
  readonly warmTokens: number;
  readonly tokens: number;
  readonly window: number;
}

/** Decoded tokens that were counted. Bytes are those of one token. */
export interface Decode {
  readonly tokensPerSecond: number;
  /** Of the experts that were wanted, the share that was in a slot; 1 where nothing is looked up, because all are there. */
  readonly hitRate: number;
  readonly missedBytes: number;
  readonly promotedBytes: number;
  readonly windows: readonly BenchWindow[];
}

export interface BenchRun extends Decode {
  readonly file: BenchFile;
  readonly stats: Stats;
}

/** The program could not measure a case. */
export class CaseFailure extends Refusal {}

const sum = (windows: readonly BenchWindow[], field: keyof BenchWindow): number =>
  windows.reduce((total, window) => total + window[field], 0);

/** What some windows say together. Bytes that are missed come over the bus with overflow, from the file otherwise. */
export function decodeOf(mode: Mode, windows: readonly BenchWindow[]): Decode {
  const tokens = sum(windows, 'gen_tokens');
  const seconds = windows.reduce(
    (total, { gen_tokens, gen_tps }) => total + gen_tokens / gen_tps,
    0,
  );
  const lookups = sum(windows, 'expert_lookups');
  const missed = mode === 'overflow' ? 'bus_read_bytes' : 'file_read_bytes';
  return {
    tokensPerSecond: tokens / seconds,
    hitRate: lookups === 0 ? 1 : sum(windows, 'expert_slot_hits') / lookups,
    missedBytes: sum(windows, missed) / tokens,
    promotedBytes: mode === 'overflow' ? sum(windows, 'upload_bytes') / tokens : 0,
    windows,
  };
}

/**
 * What a placement must not do, whatever its speed.
 *
 * @returns sentences; none when all is well
 */
export function ledgerFaults(mode: Mode, windows: readonly BenchWindow[]): string[] {
  const moved = (field: 'file_read_bytes' | 'upload_bytes' | 'bus_read_bytes', what: string) => {
    const bytes = sum(windows, field);
    return bytes > 0 ? [`${bytes} bytes were ${what} while tokens were decoded`] : [];
  };
  const file = moved('file_read_bytes', 'read from the file');
  switch (mode) {
    case 'whole':
      return [
        ...file,
        ...moved('upload_bytes', 'uploaded'),
        ...moved('bus_read_bytes', 'read over the bus'),
      ];
    case 'overflow':
      return file;
    case 'streaming':
    case 'copies':
      return moved('bus_read_bytes', 'read over the bus');
  }
}

function statsIn(stderr: string): Stats {
  const line = stderr
    .split('\n')
    .filter((text) => text.startsWith('{"source":"ds4"'))
    .at(-1);
  return JSON.parse(line ?? '{}') as Stats;
}

/**
 * Decodes the workload in a process of its own.
 *
 * @throws CaseFailure when the program fails or places the experts otherwise.
 */
export function runCase(
  program: string,
  { mode, model, options, promptTokens }: Case,
  workload: Workload,
  jsonFile: string,
  more: readonly string[],
): BenchRun {
  const { tokenFile, context, warmTokens, tokens, window } = workload;
  const args = [
    ...['-m', model.path, '--token-file', tokenFile, '--replay', '--stats-json'],
    ...['--ctx-start', String(promptTokens), '--ctx-max', String(promptTokens)],
    ...['--ctx-alloc', String(context), '-n', String(warmTokens + tokens)],
    ...['--window', String(window), '--json', jsonFile],
    ...more,
    ...options,
  ];
  const { status, stderr, error } = spawnSync(program, args, {
    encoding: 'utf8',
    stdio: ['ignore', 'ignore', 'pipe'],
    maxBuffer: 2 ** 26,
  });
  if (status !== 0) {
    const reason = error?.message ?? stderr.trim().split('\n').slice(-3).join('\n');
    throw new CaseFailure(`${program} ${args.join(' ')}\n${reason}`);
  }
  const file = JSON.parse(readFileSync(jsonFile, 'utf8')) as BenchFile;
  if (file.weights.place !== placeOf[mode]) {
    throw new CaseFailure(
      `${program} ${args.join(' ')}\nweights went to '${file.weights.place}' instead of '${placeOf[mode]}'`,
    );
  }
  const windows = file.rows[0]?.gen_windows ?? [];
  const counted = windows.slice(Math.ceil(warmTokens / window));
  return { ...decodeOf(mode, counted), file, stats: statsIn(stderr) };
}
