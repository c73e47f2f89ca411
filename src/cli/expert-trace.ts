import { closeSync, openSync, writeFileSync } from 'node:fs';
import type { EngineSession, EvalRequest, EvalResult, TapRecord } from '../engine/index.js';
import type { ModelShape } from '../model/index.js';
import type { Timeline } from '../session/index.js';
import { RunError, systemReason } from './errors.js';

/** Of one record: its header, and padding to 8 bytes. */
const recordOverhead = 64;
/** An id and a weight, each 4 bytes. */
const bytesPerChoice = 8;

export type TracedShape = Pick<
  ModelShape,
  'layerCount' | 'expertCount' | 'expertUsed' | 'hashLayers'
>;

/** What a trace needs of an engine's session. */
export type TracedSession = Timeline & {
  eval(tokens: Int32Array, request?: EvalRequest): Promise<EvalResult>;
};

export function traceHeader(shape: TracedShape): string {
  const { layerCount, expertCount, expertUsed, hashLayers } = shape;
  return `ds4-expert-trace 2 layers=${layerCount} experts=${expertCount} used=${expertUsed} hash=${hashLayers}\n`;
}

/** `eval TOKENS`, then `POSITION LAYER ID,ID,...` for each token and layer in the order in which they were computed. */
export function traceLines(tokens: number, records: readonly TapRecord[], used: number): string {
  const lines = records.map(
    ({ position, layer, values }) => `${position} ${layer} ${values.subarray(0, used).join()}\n`,
  );
  return `eval ${tokens}\n${lines.join('')}`;
}

/**
 * Writes the router's choices of every evaluation to a file. A run that is interrupted leaves what it had. A failure to
 * write must not look like a failure to evaluate, so it is kept until `finish`.
 */
export class ExpertTrace {
  readonly #path: string;
  #descriptor: number | undefined;
  #hasHeader = false;
  #failure: RunError | undefined;

  /** @throws RunError when the file cannot be written. */
  constructor(path: string) {
    this.#path = path;
    try {
      this.#descriptor = openSync(path, 'w');
    } catch (thrown) {
      throw this.#error(thrown);
    }
  }

  #error(thrown: unknown): RunError {
    return new RunError(`cannot write the expert trace ${this.#path}: ${systemReason(thrown)}`);
  }

  #write(text: string): void {
    if (this.#descriptor === undefined || this.#failure !== undefined) {
      return;
    }
    try {
      writeFileSync(this.#descriptor, text);
    } catch (thrown) {
      this.#failure = this.#error(thrown);
    }
  }

  /** The same session, whose evaluations are written down. */
  watch(session: TracedSession, shape: TracedShape): Timeline {
    if (!this.#hasHeader) {
      this.#hasHeader = true;
      this.#write(traceHeader(shape));
    }
    const { layerCount, expertUsed } = shape;
    const tokenBytes = layerCount * (recordOverhead + bytesPerChoice * expertUsed);
    return {
      get position() {
        return session.position;
      },
      context: session.context,
      prefillChunk: session.prefillChunk,
      eval: async (tokens, request = {}) => {
        const result = await session.eval(tokens, {
          ...request,
          taps: ['experts'],
          tapBytes: tokens.length * tokenBytes,
        });
        this.#write(traceLines(tokens.length, result.taps, expertUsed));
        return result;
      },
      checkpoint: () => session.checkpoint(),
      rewind: (position) => session.rewind(position),
      close: () => session.close(),
    };
  }

  /** @throws RunError when something is missing in the file. */
  finish(): void {
    if (this.#failure !== undefined) {
      throw this.#failure;
    }
  }

  close(): void {
    if (this.#descriptor !== undefined) {
      closeSync(this.#descriptor);
      this.#descriptor = undefined;
    }
  }

  [Symbol.dispose](): void {
    this.close();
  }
}

/** The trace that --expert-trace asks for. Opened before the model is loaded, so that nobody waits for a bad name. */
export function openExpertTrace(path: string | undefined): ExpertTrace | undefined {
  return path === undefined ? undefined : new ExpertTrace(path);
}

/** The timeline of a session, written down when there is a trace. */
export function tracedTimeline(
  trace: ExpertTrace | undefined,
  session: EngineSession,
  shape: TracedShape,
): Timeline {
  return trace === undefined ? session : trace.watch(session, shape);
}
