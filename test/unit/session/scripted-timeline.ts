import { CancelledError } from '../../../src/engine/index.js';
import type { Timeline, TimelineRequest, TimelineResult } from '../../../src/session/index.js';

export interface Call {
  readonly tokens: readonly number[];
  readonly request: TimelineRequest;
}

/**
 * A timeline without a model: the next token is always (sum of all tokens so far) modulo the vocabulary. It keeps the
 * engine's rules: tokens go in at the position, a failed call changes nothing, and a rewind reaches only the last
 * `prefillChunk` positions, checkpoints, or the start.
 */
export class ScriptedTimeline implements Timeline {
  readonly calls: Call[] = [];
  readonly rewinds: number[] = [];
  tokens: number[] = [];
  checkpoints: number[] = [];
  cancelled = false;
  failure: Error | undefined;
  isClosed = false;

  constructor(
    readonly vocab: number,
    readonly context: number,
    readonly prefillChunk: number,
    readonly candidateLimit = Infinity,
  ) {}

  get position(): number {
    return this.tokens.length;
  }

  /** The token that follows these. */
  static next(tokens: readonly number[], vocab: number): number {
    return tokens.reduce((sum, token) => sum + token, 0) % vocab;
  }

  eval(tokens: Int32Array, request: TimelineRequest = {}): Promise<TimelineResult> {
    if (this.cancelled) {
      return Promise.reject(new CancelledError('ds4_eval', 6, 'cancelled'));
    }
    if (this.failure !== undefined) {
      return Promise.reject(this.failure);
    }
    if (tokens.length === 0 || tokens.length > this.prefillChunk) {
      return Promise.reject(new RangeError(`${tokens.length} tokens in one call`));
    }
    if (this.position + tokens.length > this.context) {
      return Promise.reject(new RangeError('past the context'));
    }
    this.calls.push({ tokens: [...tokens], request });
    const rows: Float32Array[] = [];
    for (const token of tokens) {
      this.tokens.push(token);
      rows.push(this.#row());
    }
    const last = rows.at(-1) ?? new Float32Array();
    const ids = Int32Array.from(last.keys())
      .sort((a, b) => (last[b] ?? 0) - (last[a] ?? 0) || a - b)
      .subarray(0, Math.min(request.candidates ?? 0, this.candidateLimit));
    const logits = new Float32Array((request.logitsRows ?? 0) * this.vocab);
    rows.slice(rows.length - (request.logitsRows ?? 0)).forEach((row, index) => {
      logits.set(row, index * this.vocab);
    });
    return Promise.resolve({
      candidates:
        request.candidates === undefined
          ? undefined
          : { ids, logits: Float32Array.from(ids, (id) => last[id] ?? 0) },
      logits: request.logitsRows === undefined ? undefined : logits,
    });
  }

  #row(): Float32Array {
    const best = ScriptedTimeline.next(this.tokens, this.vocab);
    return Float32Array.from({ length: this.vocab }, (_, id) => (id === best ? 10 : -id / 100));
  }

  checkpoint(): Promise<void> {
    this.checkpoints.push(this.position);
    return Promise.resolve();
  }

  rewind(position: number): Promise<number> {
    this.rewinds.push(position);
    const near = position >= this.position - this.prefillChunk;
    const reached = near
      ? position
      : Math.max(0, ...this.checkpoints.filter((checkpoint) => checkpoint <= position));
    this.tokens.length = reached;
    this.checkpoints = this.checkpoints.filter((checkpoint) => checkpoint <= reached);
    return Promise.resolve(reached);
  }

  close(): Promise<void> {
    this.isClosed = true;
    return Promise.resolve();
  }
}
