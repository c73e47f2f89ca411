import type { Candidates } from '../sampling/index.js';

export interface TimelineRequest {
  readonly candidates?: number;
  readonly logitsRows?: number;
}

export interface TimelineResult {
  readonly candidates: Candidates | undefined;
  /** [logitsRows, vocab] */
  readonly logits: Float32Array | undefined;
}

/**
 * The part of an engine's session that conversations need: one timeline of tokens with its KV cache. On any failure
 * of `eval` the timeline stands where it stood.
 */
export interface Timeline {
  readonly position: number;
  /** Most positions. */
  readonly context: number;
  /** Most tokens of one `eval`. */
  readonly prefillChunk: number;
  eval(tokens: Int32Array, request?: TimelineRequest): Promise<TimelineResult>;
  checkpoint(): Promise<void>;
  /** Goes back to the latest exact state at or before `position` and says which that is. */
  rewind(position: number): Promise<number>;
  close(): Promise<void>;
}
