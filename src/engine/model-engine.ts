import type { ModelDescription } from '../model/index.js';
import type { EngineSession, SessionOptions } from './engine-session.js';
import type { ExpertId, ExpertUse } from './expert-lists.js';
import type { InstructionSet } from './model-arguments.js';
import type { TelemetrySnapshot } from './telemetry.js';

// A model as its users see it, whatever it is loaded into.

export interface EngineInfo {
  readonly threads: number;
  readonly instructionSet: InstructionSet;
  readonly weightBytes: number;
  readonly mappedBytes: number;
  /** Of the weights, in the memory of a GPU. */
  readonly deviceBytes: number;
  /** Host memory that may not be swapped out. */
  readonly lockedBytes: number;
}

/** A model that can be loaded and evaluated. Create it, `load()` it, open sessions, `close()` it. */
export interface ModelEngine extends AsyncDisposable {
  readonly description: ModelDescription;
  /** @throws Error before `load()` has ended. */
  readonly info: EngineInfo;
  telemetry(): TelemetrySnapshot;
  /** Makes the running call, and each later one until `clearCancel()`, end with CancelledError soon. */
  cancel(): void;
  clearCancel(): void;
  /**
   * Opens the weights. Progress is in `telemetry()`.
   *
   * @throws NativeError with the library's sentence; CancelledError after `cancel()`.
   */
  load(): Promise<void>;
  /**
   * Reads experts into places that are free, the most wanted ones first; nobody is evicted. Progress is in `telemetry()`.
   *
   * @returns how many of them got a place; 0 where experts have no places of their own
   * @throws NativeError when one cannot be read; CancelledError after `cancel()`. Both leave the model as usable as before.
   */
  seedExperts(experts: readonly ExpertId[]): Promise<number>;
  /** Those that have a place in the order of their value, then the others that were wanted, the most wanted first. */
  listExperts(): Promise<ExpertUse[]>;
  /** @throws NativeError, for example when the KV cache does not fit in memory. */
  openSession(options: SessionOptions): Promise<EngineSession>;
  /** Stops the running call and frees everything. May be called more than once. */
  close(): Promise<void>;
}
