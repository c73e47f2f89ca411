import type { TapKind, TapRecord } from './taps.js';

// One timeline of tokens as its users see it, whatever it is computed on.

export interface SessionOptions {
  /** Most positions, prompt and answer together. */
  readonly context: number;
  /** Most tokens of one `eval`. */
  readonly prefillChunk: number;
  /** How many `checkpoint()` states are kept. */
  readonly checkpoints?: number;
}

export interface SessionSizes {
  readonly kvBytes: number;
  readonly workspaceBytes: number;
  /** Intermediates of the kernels, beside the workspace. */
  readonly scratchBytes: number;
  readonly checkpointBytes: number;
}

/** Best tokens of one row, descending by logit, lower id first among equals. */
export interface Candidates {
  readonly ids: Int32Array;
  readonly logits: Float32Array;
}

export interface EvalRequest {
  /** How many best tokens of the last row are wanted, at most the vocabulary; 0 or absent: none. */
  readonly candidates?: number;
  /** All logits of this many last rows; 0 or absent: none. */
  readonly logitsRows?: number;
  /** [tokens, hc, E]: input of a slice without embedding. */
  readonly hidden?: Float32Array;
  /** Return the streams after the last layer of the slice. */
  readonly wantHidden?: boolean;
  readonly taps?: readonly TapKind[];
  /** Room for taps; a call that needs more says so by an error. */
  readonly tapBytes?: number;
}

export interface EvalResult {
  readonly candidates: Candidates | undefined;
  /** [logitsRows, vocab] */
  readonly logits: Float32Array | undefined;
  /** [tokens, hc, E] */
  readonly hidden: Float32Array | undefined;
  readonly taps: readonly TapRecord[];
}

/** One timeline of tokens and its KV cache. */
export interface EngineSession extends AsyncDisposable {
  /** Most positions. */
  readonly context: number;
  /** Most tokens of one `eval`. */
  readonly prefillChunk: number;
  /** Tokens evaluated so far: the index of the next one. */
  readonly position: number;
  measure(): SessionSizes;
  /**
   * Evaluates up to `prefillChunk` tokens at the session's position and moves it. On any failure the session
   * stands where it stood.
   *
   * @throws CancelledError, NonFiniteError, NativeError.
   */
  eval(tokens: Int32Array, request?: EvalRequest): Promise<EvalResult>;
  /** Remembers the present position so that `rewind` can come back to it exactly. */
  checkpoint(): Promise<void>;
  /**
   * Goes back to the latest exact state at or before `position`.
   *
   * @returns the position reached; the caller evaluates the rest again.
   */
  rewind(position: number): Promise<number>;
  /** May be called more than once. */
  close(): Promise<void>;
}
