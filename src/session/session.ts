import { CancelledError } from '../engine/index.js';
import type { Candidates, Sampler } from '../sampling/index.js';
import { EmptyPromptError, NoFiniteLogitError, PromptTooLongError } from './errors.js';
import type { Timeline, TimelineRequest, TimelineResult } from './timeline.js';

/** Candidates that one evaluation returns: enough for greedy, for every top-k and, nearly always, for min-p. */
const candidateCount = 1024;

export type GenerationEnd =
  /** A stop token was chosen; it is neither counted nor evaluated. */
  | { readonly reason: 'stop'; readonly token: number; readonly tokens: number }
  /** `maxTokens` were generated. */
  | { readonly reason: 'limit'; readonly tokens: number }
  /** The context has no room for another token. */
  | { readonly reason: 'context'; readonly tokens: number }
  | { readonly reason: 'cancelled'; readonly tokens: number };

export interface GenerateOptions {
  readonly sampler: Sampler;
  readonly stopTokens: ReadonlySet<number>;
  readonly maxTokens: number;
  /** Called with each token that is no stop token, before the next one is computed. */
  readonly onToken: (token: number) => void | Promise<void>;
  /** Called with what each choice was made from. */
  readonly onChoice?: (token: number, candidates: Candidates) => void;
}

/** What came out of the last evaluation, at the position after it. */
interface Outputs {
  readonly candidates: Candidates;
  logits: Float32Array | undefined;
}

export interface PrefillOptions {
  /** Called before the first chunk and after each. */
  readonly onProgress?: PrefillProgress;
  /** A length of the prompt to which a later prompt is likely to come back; remembered when it is computed. */
  readonly checkpointAt?: number;
}

/** Tokens done and to do, of those that were not in the KV cache already. */
export type PrefillProgress = (done: number, total: number) => void;

/**
 * One conversation over an engine's timeline. Remembers which tokens the KV cache holds, so that a prompt that begins
 * like the last one is not computed again. After a cancelled or failed call the session is still valid.
 */
export class Session {
  readonly #timeline: Timeline;
  readonly #vocab: number;
  /** Tokens in the KV cache. */
  #evaluated: number[] = [];
  /** Undefined after a rewind, when the cache ends at a token whose logits are not known. */
  #outputs: Outputs | undefined;

  constructor(timeline: Timeline, vocab: number) {
    this.#timeline = timeline;
    this.#vocab = vocab;
  }

  get context(): number {
    return this.#timeline.context;
  }

  /** Tokens in the KV cache. */
  get evaluated(): readonly number[] {
    return this.#evaluated;
  }

  /**
   * Brings the timeline to the end of `tokens`, reusing the longest beginning that is in the KV cache, and the rest in
   * chunks.
   *
   * @returns how many tokens were computed
   * @throws PromptTooLongError unless the prompt is shorter than the context; EmptyPromptError; CancelledError (the
   *   chunks that were done stay in the cache); NonFiniteError; NativeError.
   */
  async prefill(tokens: ArrayLike<number>, options: PrefillOptions = {}): Promise<number> {
    const { onProgress, checkpointAt } = options;
    if (tokens.length === 0) {
      throw new EmptyPromptError();
    }
    if (tokens.length >= this.context) {
      throw new PromptTooLongError(tokens.length, this.context);
    }
    await this.#keepPrefixOf(tokens);
    const start = this.#evaluated.length;
    const total = tokens.length - start;
    onProgress?.(0, total);
    if (start === checkpointAt) {
      await this.#timeline.checkpoint();
    }
    while (this.#evaluated.length < tokens.length) {
      const from = this.#evaluated.length;
      const stop = checkpointAt !== undefined && from < checkpointAt ? checkpointAt : tokens.length;
      const chunk = Int32Array.from(
        { length: Math.min(this.#timeline.prefillChunk, stop - from) },
        (_, index) => tokens[from + index] ?? 0,
      );
      const isLast = from + chunk.length === tokens.length;
      await this.#evaluate(chunk, isLast ? { candidates: this.#candidates } : {});
      if (this.#evaluated.length === checkpointAt) {
        await this.#timeline.checkpoint();
      }
      onProgress?.(this.#evaluated.length - start, total);
    }
    return total;
  }

  get #candidates(): number {
    return Math.min(candidateCount, this.#vocab);
  }

  /** Rewinds to the longest beginning of `tokens` in the cache after which there is a token left to evaluate. */
  async #keepPrefixOf(tokens: ArrayLike<number>): Promise<void> {
    let common = 0;
    while (common < this.#evaluated.length && this.#evaluated[common] === tokens[common]) {
      common += 1;
    }
    if (
      common === tokens.length &&
      common === this.#evaluated.length &&
      this.#outputs !== undefined
    ) {
      return;
    }
    const target = Math.min(common, tokens.length - 1);
    if (target < this.#evaluated.length) {
      await this.#rewind(target);
    }
  }

  async #rewind(position: number): Promise<void> {
    this.#outputs = undefined;
    const reached = await this.#timeline.rewind(position);
    this.#evaluated.length = reached;
  }

  async #evaluate(tokens: Int32Array, request: TimelineRequest): Promise<TimelineResult> {
    const result = await this.#timeline.eval(tokens, request);
    for (const token of tokens) {
      this.#evaluated.push(token);
    }
    this.#outputs =
      result.candidates === undefined
        ? undefined
        : { candidates: result.candidates, logits: result.logits };
    return result;
  }

  /**
   * All logits after the last evaluated token. Computed anew when the last evaluation did not ask for them: the token
   * is taken back and evaluated again.
   */
  async allLogits(): Promise<Float32Array> {
    const outputs = this.#outputs;
    if (outputs?.logits !== undefined) {
      return outputs.logits;
    }
    const tokens = Int32Array.from(this.#evaluated);
    await this.#rewind(tokens.length - 1);
    let result: TimelineResult | undefined;
    while (this.#evaluated.length < tokens.length) {
      const from = this.#evaluated.length;
      const chunk = tokens.subarray(from, from + this.#timeline.prefillChunk);
      const isLast = from + chunk.length === tokens.length;
      result = await this.#evaluate(
        chunk,
        isLast ? { candidates: this.#candidates, logitsRows: 1 } : {},
      );
    }
    if (result?.logits === undefined) {
      throw new Error('the engine returned no logits although they were asked for');
    }
    return result.logits;
  }

  /** The best tokens after the last evaluated one. Only valid after `prefill` or inside `generate`. */
  get candidates(): Candidates {
    if (this.#outputs === undefined) {
      throw new Error('nothing has been evaluated yet');
    }
    return this.#outputs.candidates;
  }

  async #choose(sampler: Sampler): Promise<number> {
    const candidates = this.candidates;
    const token = sampler.needsAllLogits(candidates, this.#vocab)
      ? sampler.sample(await this.allLogits())
      : sampler.sampleCandidates(candidates, this.#vocab);
    if (token === undefined) {
      throw new NoFiniteLogitError(this.#evaluated.length);
    }
    return token;
  }

  /** Evaluates one more token, so that the next can be chosen. */
  async advance(token: number, options: { readonly allLogits: boolean }): Promise<void> {
    await this.#evaluate(Int32Array.of(token), {
      candidates: this.#candidates,
      ...(options.allLogits ? { logitsRows: 1 } : {}),
    });
  }

  /**
   * Chooses tokens one after another, after `prefill`. The last one is not evaluated: the next prompt does that.
   *
   * @throws NonFiniteError, NoFiniteLogitError, NativeError, and whatever `onToken` throws. Being cancelled is a reason
   *   to end, not an error.
   */
  async generate(options: GenerateOptions): Promise<GenerationEnd> {
    // The token after the last position that is left has no place any more.
    const room = this.context - this.#evaluated.length - 1;
    const most = Math.min(options.maxTokens, room);
    let tokens = 0;
    try {
      while (tokens < most) {
        const token = await this.#choose(options.sampler);
        options.onChoice?.(token, this.candidates);
        if (options.stopTokens.has(token)) {
          return { reason: 'stop', token, tokens };
        }
        tokens += 1;
        await options.onToken(token);
        if (tokens < most) {
          await this.advance(token, { allLogits: options.sampler.allLogits === 'always' });
        }
      }
    } catch (thrown) {
      if (thrown instanceof CancelledError) {
        return { reason: 'cancelled', tokens };
      }
      throw thrown;
    }
    return { reason: most < options.maxTokens ? 'context' : 'limit', tokens };
  }

  async close(): Promise<void> {
    await this.#timeline.close();
  }
}
