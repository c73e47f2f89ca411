import type { CallQueue } from './call-queue.js';
import type { EngineSession, EvalRequest, EvalResult, SessionSizes } from './engine-session.js';

/** What a split session needs of its engine. */
export interface SplitSessionOwner {
  readonly calls: CallQueue;
  /** Told which part computes. */
  readonly onPart: (index: number) => void;
  readonly onClose: (session: SplitSession) => void;
}

/**
 * One timeline over the sessions of consecutive parts of a model: hidden states go from one part to the next. All parts
 * move together, or none does.
 */
export class SplitSession implements EngineSession {
  readonly #owner: SplitSessionOwner;
  readonly #parts: readonly EngineSession[];
  /** Why the parts no longer stand at the same position, which nothing can mend. */
  #apart: Error | undefined;

  readonly context: number;
  readonly prefillChunk: number;

  /** `parts` in the order of the layers, all with the same context and prefill chunk. */
  constructor(owner: SplitSessionOwner, parts: readonly [EngineSession, ...EngineSession[]]) {
    this.#owner = owner;
    this.#parts = parts;
    this.context = parts[0].context;
    this.prefillChunk = parts[0].prefillChunk;
  }

  get position(): number {
    return this.#parts[0]?.position ?? 0;
  }

  measure(): SessionSizes {
    const sums = { kvBytes: 0, workspaceBytes: 0, scratchBytes: 0, checkpointBytes: 0 };
    for (const part of this.#parts) {
      const sizes = part.measure();
      sums.kvBytes += sizes.kvBytes;
      sums.workspaceBytes += sizes.workspaceBytes;
      sums.scratchBytes += sizes.scratchBytes;
      sums.checkpointBytes += sizes.checkpointBytes;
    }
    return sums;
  }

  eval(tokens: Int32Array, request: EvalRequest = {}): Promise<EvalResult> {
    return this.#run(async () => {
      const before = this.position;
      try {
        return await this.#evalParts(tokens, request);
      } catch (thrown) {
        await this.#takeBack(before);
        throw thrown;
      }
    });
  }

  async #evalParts(tokens: Int32Array, request: EvalRequest): Promise<EvalResult> {
    const { hidden: input, wantHidden = false, candidates, logitsRows, ...common } = request;
    const last = this.#parts.length - 1;
    const taps: EvalResult['taps'][number][] = [];
    let hidden = input;
    let result: EvalResult | undefined;
    for (const [index, part] of this.#parts.entries()) {
      this.#owner.onPart(index);
      result = await part.eval(tokens, {
        ...common,
        ...(hidden === undefined ? {} : { hidden }),
        wantHidden: index < last || wantHidden,
        ...(index < last || candidates === undefined ? {} : { candidates }),
        ...(index < last || logitsRows === undefined ? {} : { logitsRows }),
      });
      hidden = result.hidden;
      taps.push(...result.taps);
    }
    if (result === undefined) {
      throw new Error('a split session without parts');
    }
    return { ...result, taps };
  }

  /** After a failure: the parts that had moved go back, which is exact because they moved by one chunk at most. */
  async #takeBack(position: number): Promise<void> {
    try {
      for (const part of this.#parts) {
        if (part.position !== position && (await part.rewind(position)) !== position) {
          throw new Error(`a part of the model cannot go back to position ${position}`);
        }
      }
    } catch (thrown) {
      this.#apart = thrown instanceof Error ? thrown : new Error(String(thrown));
    }
  }

  checkpoint(): Promise<void> {
    return this.#run(async () => {
      for (const part of this.#parts) {
        await part.checkpoint();
      }
    });
  }

  rewind(position: number): Promise<number> {
    return this.#run(async () => {
      // Checkpoints of parts may differ after a failure, and then one part reaches less than the others.
      let target = Math.min(position, this.position);
      while (this.#parts.some((part) => part.position !== target)) {
        for (const part of this.#parts) {
          target = Math.min(target, await part.rewind(target));
        }
      }
      return target;
    });
  }

  #run<Result>(work: () => Promise<Result>): Promise<Result> {
    return this.#owner.calls.run(() => {
      if (this.#apart !== undefined) {
        throw this.#apart;
      }
      return work();
    });
  }

  close(): Promise<void> {
    return this.#owner.calls.run(async () => {
      for (const part of this.#parts) {
        await part.close();
      }
      this.#owner.onClose(this);
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}
