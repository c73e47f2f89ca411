import type { Timeline } from '../../session/index.js';
import { Windows } from './windows.js';
import type { Traffic, Window } from './windows.js';

/** What was measured at one frontier. Rates in tokens per second, times in milliseconds. */
export interface Row {
  readonly context: number;
  readonly prefillTokens: number;
  readonly prefillRate: number;
  readonly generated: number;
  readonly generateRate: number;
  /** Of the first generated token alone: it may build what later ones reuse. */
  readonly firstMs: number;
  /** The generated tokens without the first. */
  readonly steadyTokens: number;
  readonly steadyRate: number;
  /** Evaluations that generated them. */
  readonly cycles: number;
  readonly windows: readonly Window[] | undefined;
  readonly kvBytes: number;
  readonly tokens: readonly number[];
  readonly logits: Float32Array | undefined;
}

export interface MeasureOptions {
  readonly tokens: ArrayLike<number>;
  readonly frontiers: readonly number[];
  readonly generate: number;
  /** Decode the tokens behind the frontier instead of generating. */
  readonly replay: boolean;
  /** Tokens of one window of a decode. */
  readonly window: number | undefined;
  readonly traffic: () => Traffic;
  /** End-of-sequence tokens, which are never chosen. */
  readonly excluded: ReadonlySet<number>;
  readonly wantsLogits: boolean;
  readonly vocab: number;
  readonly clock: () => number;
  readonly onProgress: (done: number, total: number) => void;
}

/** The parts of an engine's session that a measurement needs. */
export type BenchSession = Pick<Timeline, 'eval' | 'checkpoint' | 'rewind' | 'prefillChunk'> & {
  measure(): { readonly kvBytes: number };
};

const rate = (tokens: number, ms: number): number => (ms > 0 ? (tokens * 1000) / ms : 0);

/** The best token that may be chosen. */
function best(ids: ArrayLike<number>, excluded: ReadonlySet<number>): number {
  for (let rank = 0; rank < ids.length; rank += 1) {
    const id = ids[rank] ?? 0;
    if (!excluded.has(id)) {
      return id;
    }
  }
  return ids[0] ?? 0;
}

/**
 * Walks the frontiers: evaluates the tokens up to the next one, remembers the state, generates greedily from there,
 * and goes back. Yields a row as soon as it is known.
 */
export async function* measure(
  session: BenchSession,
  options: MeasureOptions,
): AsyncGenerator<Row> {
  const { tokens, excluded, clock, vocab } = options;
  const candidates = Math.min(excluded.size + 1, vocab);
  const total = (options.frontiers.at(-1) ?? 0) + options.frontiers.length * options.generate;
  let position = 0;
  let done = 0;
  for (const frontier of options.frontiers) {
    const prefillTokens = frontier - position;
    let ids: ArrayLike<number> = [];
    let logits: Float32Array | undefined;
    const started = clock();
    while (position < frontier) {
      const from = position;
      const count = Math.min(session.prefillChunk, frontier - from);
      const isLast = from + count === frontier;
      const result = await session.eval(
        Int32Array.from({ length: count }, (_, index) => tokens[from + index] ?? 0),
        isLast ? { candidates, ...(options.wantsLogits ? { logitsRows: 1 } : {}) } : {},
      );
      ids = result.candidates?.ids ?? ids;
      logits = result.logits ?? logits;
      position += count;
      done += count;
      options.onProgress(done, total);
    }
    const prefillMs = clock() - started;

    await session.checkpoint();
    const generated: number[] = [];
    let firstMs = 0;
    let allMs = 0;
    let cycles = 0;
    const windows =
      options.window === undefined ? undefined : new Windows(options.window, options.traffic);
    while (generated.length < options.generate) {
      const token = options.replay
        ? (tokens[frontier + generated.length] ?? 0)
        : best(ids, excluded);
      generated.push(token);
      const before = clock();
      ids = (await session.eval(Int32Array.of(token), { candidates })).candidates?.ids ?? ids;
      const ms = clock() - before;
      cycles += 1;
      firstMs = generated.length === 1 ? ms : firstMs;
      allMs += ms;
      windows?.add(ms);
      done += 1;
      options.onProgress(done, total);
    }
    const reached = await session.rewind(frontier);
    if (reached !== frontier) {
      throw new Error(`the session went back to ${reached} instead of ${frontier}`);
    }
    yield {
      context: frontier,
      prefillTokens,
      prefillRate: rate(prefillTokens, prefillMs),
      generated: generated.length,
      generateRate: rate(generated.length, allMs),
      firstMs,
      steadyTokens: Math.max(0, generated.length - 1),
      steadyRate: rate(Math.max(0, generated.length - 1), allMs - firstMs),
      cycles,
      windows: windows?.finish(),
      kvBytes: session.measure().kvBytes,
      tokens: generated,
      logits,
    };
  }
}
