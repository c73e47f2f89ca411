import type { ModelDescription } from '../model/index.js';
import { deviceSessionBytes } from './device-session.js';
import type { DeviceSessionBytes } from './device-session.js';
import { sessionBytes } from './kv-cache.js';
import { sliceOf } from './model-parts.js';
import { checkpointCount, contextOf, gib, largestContext, trainingReasons } from './plan.js';
import type { PlanReason, PlanRequest } from './plan.js';

/** Tokens of one prefill step, the fastest first; the next is for memory that cannot take its activations. */
const prefillChunks = [4096, 2048, 1024, 512];

/** The session on a GPU for each prefill chunk that may be taken, the best first. */
export class Sessions {
  readonly context: number;
  readonly chunks: readonly number[];
  readonly #model: ModelDescription;
  readonly #layers: { readonly first: number; readonly last: number };

  constructor(model: ModelDescription, request: PlanRequest) {
    this.#model = model;
    this.#layers = sliceOf(model, request);
    this.context = contextOf(request, model.shape.trainedContext);
    const chunk = request.prefillChunk === 'whole' ? this.context : request.prefillChunk;
    const chunks = chunk === undefined ? prefillChunks : [chunk];
    this.chunks = [...new Set(chunks.map((tokens) => Math.min(tokens, this.context)))];
  }

  get smallestChunk(): number {
    return this.chunks.at(-1) ?? this.context;
  }

  /** Of the smallest chunk. */
  get leastBytes(): number {
    return this.bytes(this.smallestChunk).total;
  }

  bytes(prefillChunk: number, context = this.context): DeviceSessionBytes {
    return deviceSessionBytes(this.#model.shape, {
      layers: this.#layers,
      context,
      prefillChunk: Math.min(prefillChunk, context),
      checkpoints: checkpointCount,
    });
  }

  perPosition(prefillChunk: number): number {
    return sessionBytes(this.#model.shape, this.#layers, this.context, prefillChunk).perPosition;
  }

  /** The largest chunk whose session goes into this many bytes. */
  fitting(bytes: number): number | undefined {
    return this.chunks.find((chunk) => this.bytes(chunk).total <= bytes);
  }

  largestContext(bytes: number): number {
    return largestContext(
      (context) => this.bytes(this.smallestChunk, context).total <= bytes,
      this.context,
    );
  }

  reasons(chunk: number): PlanReason[] {
    const { kv, buffers } = this.bytes(chunk);
    const [best = chunk] = this.chunks;
    return [
      ...(chunk < best
        ? [
            {
              kind: 'note' as const,
              text: `prefill chunk: ${chunk} tokens, because ${best} would need more memory than there is`,
            },
          ]
        : []),
      {
        kind: 'note',
        text: `KV cache: ${gib(kv)} at ${this.context} positions and ${gib(buffers)} of buffers, in GPU memory`,
      },
      ...trainingReasons(this.context, this.#model.shape.trainedContext),
    ];
  }
}
