import type { ModelDescription } from '../model/index.js';
import { roomOf } from './budget.js';
import { hiddenStateBytes } from './hidden-states.js';
import { partsOf, sliceOf } from './model-parts.js';
import type { ModelParts } from './model-parts.js';
import type { GpuFacts, MachineFacts, PlanRequest } from './plan.js';
import { Sessions } from './sessions.js';

/** Consecutive layers on one device, or on the processor when `gpu` is undefined. */
export interface Stretch {
  readonly gpu: GpuFacts | undefined;
  /** What the planner of one device is to be asked. */
  readonly request: PlanRequest;
  readonly first: number;
  readonly last: number;
  /** Weights and session, and what may be used; of the processor, 0 and 0. */
  readonly bytes: number;
  readonly budget: number;
}

/** The request to each device: its own budget, and the failures that were its own. */
function requestFor(request: PlanRequest, gpu: GpuFacts, place: number): PlanRequest {
  return {
    ...request,
    gpu: {
      ...request.gpu,
      resident: undefined,
      copyForbiddenBy: undefined,
      budgetGib: request.gpu?.budgetsGib?.[place],
      copyAskedBy: 'a model on several GPUs',
    },
    failures: (request.failures ?? []).filter(({ device = gpu.index }) => device === gpu.index),
  };
}

/** The bytes of any run of layers, with the embedding before the first and the head behind the last. */
class Sizes {
  readonly #model: ModelDescription;
  readonly #parts: ModelParts;
  readonly lastLayer: number;

  constructor(model: ModelDescription) {
    this.#model = model;
    this.#parts = partsOf(model, sliceOf(model, {}));
    this.lastLayer = model.shape.layerCount - 1;
  }

  weights(first: number, last: number): number {
    const { layers, embedding, head } = this.#parts;
    return layers
      .slice(first, last + 1)
      .reduce(
        (bytes, { nonRouted, routed }) => bytes + nonRouted + routed,
        (first === 0 ? embedding : 0) + (last === this.lastLayer ? head : 0),
      );
  }

  /** With the session of these layers. */
  total(first: number, last: number, request: PlanRequest, chunk: number): number {
    const sessions = new Sessions(this.#model, { ...request, layers: { first, last } });
    return this.weights(first, last) + sessions.bytes(chunk).total;
  }
}

/**
 * Gives each layer to the first device, not before that of the layer in front, on which it still fits; what has filled a
 * budget to the byte stays. Layers that fit on no device are left for the processor.
 */
function stretchesFor(
  sizes: Sizes,
  facts: MachineFacts,
  request: PlanRequest,
  chunk: number,
): Stretch[] {
  const stretches: Stretch[] = [];
  let { memoryAvailable } = facts;
  let first = 0;
  for (const [place, measured] of (facts.gpus ?? []).entries()) {
    const gpu = { ...measured, kind: request.gpu?.treatAs?.kind ?? measured.kind };
    const own = requestFor(request, measured, place);
    const { budget } = roomOf({ ...facts, memoryAvailable }, gpu, own);
    let [last, bytes] = [first - 1, 0];
    while (last < sizes.lastLayer) {
      const more = sizes.total(first, last + 1, own, chunk);
      if (more > budget) {
        break;
      }
      [last, bytes] = [last + 1, more];
    }
    if (last >= first) {
      stretches.push({ gpu: measured, request: own, first, last, bytes, budget });
      memoryAvailable -= gpu.kind === 'integrated' ? bytes : 0;
      first = last + 1;
    }
  }
  if (first <= sizes.lastLayer) {
    stretches.push({
      gpu: undefined,
      request: { ...request, gpu: undefined, paging: undefined, experts: undefined, failures: [] },
      first,
      last: sizes.lastLayer,
      bytes: 0,
      budget: 0,
    });
  }
  return stretches;
}

/** How a model is shared, with the prefill chunk that all parts have. */
export interface Shares {
  readonly chunk: number;
  readonly chunks: readonly number[];
  readonly stretches: readonly Stretch[];
}

function layersOnHost(stretches: readonly Stretch[]): number {
  const host = stretches.find(({ gpu }) => gpu === undefined);
  return host === undefined ? 0 : host.last - host.first + 1;
}

/** With the largest prefill chunk that leaves the fewest layers to the processor, which is far slower than any GPU. */
export function shareLayers(
  model: ModelDescription,
  facts: MachineFacts,
  request: PlanRequest,
): Shares {
  const sizes = new Sizes(model);
  const { chunks, smallestChunk } = new Sessions(model, request);
  let best: Shares | undefined;
  const mostParts = (facts.gpus ?? []).length + 1;
  for (const chunk of chunks) {
    const hidden = hiddenStateBytes(model.shape, chunk, mostParts);
    const memoryAvailable = facts.memoryAvailable - hidden;
    if (memoryAvailable < 0 && chunk !== smallestChunk) {
      continue;
    }
    const stretches = stretchesFor(sizes, { ...facts, memoryAvailable }, request, chunk);
    if (best === undefined || layersOnHost(stretches) < layersOnHost(best.stretches)) {
      best = { chunk, chunks, stretches };
    }
  }
  return best ?? { chunk: smallestChunk, chunks, stretches: [] };
}

/** What the first layer needs at least: with less of it on every device there is nothing to share. */
export function leastBytes(model: ModelDescription, request: PlanRequest): number {
  const { smallestChunk } = new Sessions(model, request);
  return new Sizes(model).total(0, 0, request, smallestChunk);
}
