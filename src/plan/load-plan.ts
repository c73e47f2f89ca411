import { Ds4Error, ExitCode } from '../error/index.js';
import type { ModelDescription } from '../model/index.js';
import { sessionBytes } from './kv-cache.js';

/** What the machine offers, measured by the caller: this room asks nobody. */
export interface HostFacts {
  /** Bytes a process may still take without swapping (the smaller of the system's and the control group's figure). */
  readonly memoryAvailable: number;
}

export interface PlanRequest {
  /** Positions of prompt and answer together; without it 32768, or what the model was trained for if that is less. */
  readonly context?: number;
  /** Tokens of one prefill step; `whole`: as many as the context has. */
  readonly prefillChunk?: number | 'whole';
  readonly source?: 'mmap' | 'read';
  readonly layers?: { readonly first: number; readonly last: number };
}

/** A sentence for the user about one decision. `warning` is printed always, `note` on request. */
export interface PlanReason {
  readonly kind: 'note' | 'warning';
  readonly text: string;
}

/** Where everything goes, decided before anything is loaded. */
export interface LoadPlan {
  readonly backend: 'cpu';
  readonly weights: {
    readonly place: 'host';
    readonly source: 'mmap' | 'read';
    readonly bytes: number;
    readonly routedBytes: number;
  };
  readonly kv: {
    readonly place: 'host';
    readonly bytes: number;
    readonly bytesPerPosition: number;
  };
  readonly context: number;
  readonly prefillChunk: number;
  readonly reasons: readonly PlanReason[];
}

/** The request does not fit this machine. */
export class PlanError extends Ds4Error {
  readonly exitCode = ExitCode.runtime;
}

/** Tokens of one prefill step on the CPU: enough to read each weight seldom, small enough that Ctrl+C is prompt. */
const usualPrefillChunk = 512;

function gib(bytes: number): string {
  return `${(bytes / 2 ** 30).toFixed(2)} GiB`;
}

const usualContext = 32_768;

function defaultContext(trainedContext: number): number {
  return trainedContext > 0 ? Math.min(usualContext, trainedContext) : usualContext;
}

/** By bisection, because the cache's size is not quite linear in the context. 0 when nothing fits. */
function largestContext(fits: (context: number) => boolean, tooLarge: number): number {
  let good = 0;
  let bad = tooLarge;
  while (good + 1 < bad) {
    const middle = Math.floor((good + bad) / 2);
    if (fits(middle)) {
      good = middle;
    } else {
      bad = middle;
    }
  }
  return good;
}

/**
 * Plans a run on the CPU: weights stay in the file's mapping (or are read into memory), the KV cache is taken at full
 * context.
 *
 * @throws PlanError with the need, what is free, and the largest context that fits.
 */
export function planLoad(
  model: ModelDescription,
  facts: HostFacts,
  request: PlanRequest,
): LoadPlan {
  const { shape } = model;
  const layers = request.layers ?? { first: 0, last: shape.layerCount - 1 };
  const source = request.source ?? 'mmap';
  const context = request.context ?? defaultContext(shape.trainedContext);
  const chunk = request.prefillChunk ?? usualPrefillChunk;
  const prefillChunk = chunk === 'whole' ? context : Math.min(chunk, context);
  const session = sessionBytes(shape, layers, context, prefillChunk);
  const weightBytes = model.bytes.total;
  const reasons: PlanReason[] = [];

  const copied = source === 'read' ? weightBytes : 0;
  if (copied > facts.memoryAvailable) {
    throw new PlanError(
      `reading the weights into memory needs ${gib(copied)}, ${gib(facts.memoryAvailable)} are free; ` +
        'leave out --no-mmap to use them from the file',
    );
  }
  const free = facts.memoryAvailable - copied;
  if (session.kv > free) {
    const fitting = largestContext((positions) => {
      const step = Math.min(prefillChunk, positions);
      return sessionBytes(shape, layers, positions, step).kv <= free;
    }, context);
    const advice =
      fitting >= 1
        ? `the largest context that fits is ${fitting}: try --ctx ${fitting}`
        : 'not even a context of 1 fits: free some memory';
    throw new PlanError(
      `a context of ${context} needs ${gib(session.kv)} for its KV cache, ${gib(free)} are free; ${advice}`,
    );
  }

  reasons.push({
    kind: 'note',
    text:
      source === 'mmap'
        ? `weights: ${gib(weightBytes)} used in place from the file's mapping, nothing is copied`
        : `weights: ${gib(weightBytes)} read into memory, because --no-mmap was given`,
  });
  if (source === 'mmap' && weightBytes > facts.memoryAvailable) {
    reasons.push({
      kind: 'warning',
      text:
        `the weights (${gib(weightBytes)}) are larger than the free memory (${gib(facts.memoryAvailable)}): ` +
        'parts are read from disk again and again, and the disk sets the speed',
    });
  }
  reasons.push({
    kind: 'note',
    text: `KV cache: ${gib(session.kv)} at ${context} positions, taken from memory as it fills`,
  });
  if (shape.trainedContext > 0 && context > shape.trainedContext) {
    reasons.push({
      kind: 'warning',
      text:
        `a context of ${context} is longer than the ${shape.trainedContext} positions ` +
        'the model was trained for: answers that reach past them are likely to be nonsense',
    });
  }
  return {
    backend: 'cpu',
    weights: { place: 'host', source, bytes: weightBytes, routedBytes: model.bytes.routed },
    kv: { place: 'host', bytes: session.kv, bytesPerPosition: session.perPosition },
    context,
    prefillChunk,
    reasons,
  };
}
