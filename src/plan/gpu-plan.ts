import type { ModelDescription } from '../model/index.js';
import { deviceSessionBytes } from './device-session.js';
import type { DeviceSessionBytes } from './device-session.js';
import { sessionBytes } from './kv-cache.js';
import {
  checkpointCount,
  contextAdvice,
  contextOf,
  gib,
  gibibyte,
  largestContext,
  PlanError,
  trainingReasons,
} from './plan.js';
import type { GpuFacts, GpuPlan, MachineFacts, PlanReason, PlanRequest } from './plan.js';

/** Left of every budget for what nobody counts: fragments, the driver, recorded graphs. */
const margin = 512 * 2 ** 20;
/** A copy that nobody asked for is made only when this much stays free besides. */
const spareWhenAutomatic = 2 * gibibyte;
/** Tokens of one prefill step, the fastest first; the next is for memory that cannot take its activations. */
const prefillChunks = [4096, 2048, 1024, 512];
const uploadSlots = 4;
const uploadSlotMib = { least: 16, usual: 64, most: 4096 };

/** What may be used of a device's memory when nobody says. */
export function automaticBudget(freeBytes: number): number {
  return Math.max(0, freeBytes - Math.max(2 * gibibyte, 0.05 * freeBytes));
}

/** Who wants the whole model in GPU memory, and who does not. */
type Wish =
  | { readonly kind: 'asked'; readonly by: string }
  | { readonly kind: 'automatic' }
  | { readonly kind: 'forbidden'; readonly because: string; readonly reason?: PlanReason };

function wishOf({ gpu = {}, failedCopy }: PlanRequest): Wish {
  const { resident, copyAskedBy, copyForbiddenBy } = gpu;
  const asked = resident === true ? '--gpu-resident' : copyAskedBy;
  if (copyForbiddenBy !== undefined) {
    const because = `${copyForbiddenBy} is set`;
    return resident === false || asked === undefined
      ? { kind: 'forbidden', because }
      : {
          kind: 'forbidden',
          because,
          reason: {
            kind: 'warning',
            text: `${asked} has no effect: ${copyForbiddenBy} forbids the copy of the model`,
          },
        };
  }
  if (resident === false) {
    return { kind: 'forbidden', because: '--no-gpu-resident was given' };
  }
  if (failedCopy !== undefined) {
    const text = `the model could not be copied into GPU memory: ${failedCopy}`;
    return {
      kind: 'forbidden',
      because: 'the copy failed',
      reason: { kind: 'warning', text },
    };
  }
  return asked === undefined ? { kind: 'automatic' } : { kind: 'asked', by: asked };
}

function budgetOf(gpu: GpuFacts, request: PlanRequest): { bytes: number; reasons: PlanReason[] } {
  const gibs = request.gpu?.budgetGib;
  const wanted = gibs === undefined ? automaticBudget(gpu.freeBytes) : gibs * gibibyte;
  const bytes = Math.max(0, Math.min(gpu.freeBytes, wanted) - margin);
  return {
    bytes,
    reasons:
      wanted > gpu.freeBytes
        ? [
            {
              kind: 'warning',
              text:
                `--gpu-vram ${gibs ?? ''} is more than what is free on device ${gpu.index}, ` +
                `${gib(gpu.freeBytes)}: no more than that is used`,
            },
          ]
        : [],
  };
}

/** The session for each prefill chunk that may be taken, the best first. */
class Sessions {
  readonly context: number;
  readonly chunks: readonly number[];
  readonly #model: ModelDescription;
  readonly #layers: { readonly first: number; readonly last: number };

  constructor(model: ModelDescription, request: PlanRequest) {
    const { shape } = model;
    this.#model = model;
    this.#layers = request.layers ?? { first: 0, last: shape.layerCount - 1 };
    this.context = contextOf(request, shape.trainedContext);
    const chunk = request.prefillChunk === 'whole' ? this.context : request.prefillChunk;
    const chunks = chunk === undefined ? prefillChunks : [chunk];
    this.chunks = [...new Set(chunks.map((tokens) => Math.min(tokens, this.context)))];
  }

  get smallestChunk(): number {
    return this.chunks.at(-1) ?? this.context;
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

function deviceText(gpu: GpuFacts): string {
  return `${gpu.backend} device ${gpu.index} (${gpu.name})`;
}

function refusal(text: string): PlanError {
  return new PlanError(`${text}, or let the processor compute with --cpu`);
}

/** Where the weights go, given that the whole model is not (or may not be) in GPU memory. */
function planMapped(
  { bytes: { routed, nonRouted } }: ModelDescription,
  facts: MachineFacts,
  gpu: GpuFacts,
  options: { readonly sessions: Sessions; readonly budget: number; readonly because: string },
): number {
  const { sessions, budget, because } = options;
  const chunk = sessions.fitting(budget - nonRouted);
  if (chunk === undefined) {
    const session = sessions.bytes(sessions.smallestChunk).total;
    const fitting = sessions.largestContext(budget - nonRouted);
    throw refusal(
      `${deviceText(gpu)}: the weights outside the experts (${gib(nonRouted)}) and a context of ${sessions.context} ` +
        `(${gib(session)}) need ${gib(nonRouted + session)}, ${gib(budget)} of ${gib(gpu.freeBytes)} free can be used; ` +
        contextAdvice(fitting),
    );
  }
  const shared = gpu.kind === 'integrated' ? nonRouted + sessions.bytes(chunk).total : 0;
  if (routed + shared > facts.memoryAvailable) {
    throw refusal(
      `the experts (${gib(routed)}) fit neither into GPU memory (${because}) nor into main memory ` +
        `(${gib(facts.memoryAvailable)} free), where they would have to be pinned; free some memory`,
    );
  }
  return chunk;
}

function mappedReason(model: ModelDescription, gpu: GpuFacts, wish: Wish, why: string): PlanReason {
  const { routed, nonRouted } = model.bytes;
  const read =
    gpu.kind === 'discrete'
      ? 'stay in main memory and are read over the bus at each use, which is slow'
      : 'are used in place';
  return {
    kind: wish.kind === 'asked' ? 'warning' : 'headline',
    text: `weights: ${gib(nonRouted)} go into GPU memory; ${gib(routed)} of experts ${read}, because ${why}`,
  };
}

function deviceReasons(
  gpu: GpuFacts,
  budget: number,
  { gpu: request = {} }: PlanRequest,
): PlanReason[] {
  const { treatAs, resident } = request;
  const reasons: PlanReason[] = [
    {
      kind: 'note',
      text: `device: ${deviceText(gpu)}, ${gpu.kind}, ${gib(gpu.freeBytes)} free, ${gib(budget)} to use`,
    },
  ];
  if (treatAs !== undefined) {
    reasons.push({
      kind: 'headline',
      text: `device ${gpu.index} is treated as ${treatAs.kind}, because ${treatAs.by} is set`,
    });
  }
  if (resident === true && gpu.kind === 'integrated') {
    reasons.push({
      kind: 'headline',
      text: '--gpu-resident makes no difference here: the GPU shares main memory, and what fits is copied anyway',
    });
  }
  return reasons;
}

/**
 * Plans a run on a GPU: the whole model in its memory when that is asked for or fits with room to spare, else everything
 * but the routed experts, which stay in the file's mapping. Session and kernels take their memory there in any case.
 *
 * @throws PlanError with the sums and what would help.
 */
export function planGpu(
  model: ModelDescription,
  facts: MachineFacts,
  measured: GpuFacts,
  request: PlanRequest,
): GpuPlan {
  const gpu = { ...measured, kind: request.gpu?.treatAs?.kind ?? measured.kind };
  const { total, nonRouted, routed } = model.bytes;
  if (gpu.freeBytes === 0) {
    throw refusal(
      `${deviceText(gpu)} has no free memory, or cannot tell how much; end what uses it`,
    );
  }
  const sessions = new Sessions(model, request);
  const { bytes: budget, reasons: budgetReasons } = budgetOf(gpu, request);
  const wish = wishOf(request);
  const spare = wish.kind === 'automatic' && gpu.kind === 'discrete' ? spareWhenAutomatic : 0;
  const residentChunk =
    wish.kind === 'forbidden' ? undefined : sessions.fitting(budget - total - spare);

  const weightReasons: PlanReason[] = [];
  let chunk = residentChunk;
  if (chunk === undefined) {
    const because =
      wish.kind === 'forbidden'
        ? wish.because
        : `the whole model (${gib(total)}) and the session (${gib(sessions.bytes(sessions.smallestChunk).total)}) ` +
          `${spare > 0 ? `with ${gib(spare)} to spare ` : ''}exceed the ${gib(budget)} that can be used`;
    chunk = planMapped(model, facts, gpu, { sessions, budget, because });
    weightReasons.push(
      ...(wish.kind === 'forbidden' && wish.reason !== undefined ? [wish.reason] : []),
      mappedReason(model, gpu, wish, because),
    );
    if (request.source === 'read') {
      weightReasons.push({
        kind: 'warning',
        text: '--no-mmap has no effect on the experts: a GPU reads them from the mapping of the file',
      });
    }
  } else {
    const how = wish.kind === 'asked' ? `${wish.by} asks for it` : 'they fit';
    weightReasons.push({
      kind: 'headline',
      text:
        `weights: all ${gib(total)} go into GPU memory, because ${how}: ` +
        `with the session ${gib(total + sessions.bytes(chunk).total)} of ${gib(budget)}`,
    });
  }

  const session = sessions.bytes(chunk);
  return {
    backend: gpu.backend,
    device: {
      index: gpu.index,
      name: gpu.name,
      kind: gpu.kind,
      freeBytes: gpu.freeBytes,
      budgetBytes: budget,
    },
    weights: {
      place: residentChunk === undefined ? 'mappedExperts' : 'device',
      bytes: total,
      routedBytes: routed,
      deviceBytes: residentChunk === undefined ? nonRouted : total,
    },
    upload: { slots: uploadSlots, slotBytes: slotBytes(request) },
    kv: { place: 'device', bytes: session.kv, bytesPerPosition: sessions.perPosition(chunk) },
    bufferBytes: session.buffers,
    context: sessions.context,
    prefillChunk: chunk,
    checkpoints: checkpointCount,
    reasons: [
      ...deviceReasons(gpu, budget, request),
      ...budgetReasons,
      ...weightReasons,
      ...sessions.reasons(chunk),
    ],
  };
}

function slotBytes({ gpu }: PlanRequest): number {
  const { least, usual, most } = uploadSlotMib;
  return Math.min(Math.max(gpu?.copyChunkMib ?? usual, least), most) * 2 ** 20;
}

/**
 * Plans one more session beside a loaded model and its first session.
 *
 * @throws PlanError when it does not fit.
 */
export function planGpuSession(
  model: ModelDescription,
  facts: MachineFacts,
  request: PlanRequest,
  loaded: GpuPlan,
): GpuPlan {
  const sessions = new Sessions(model, request);
  const free = Math.max(0, (facts.gpu?.freeBytes ?? 0) - margin);
  const used = loaded.weights.deviceBytes + loaded.kv.bytes + loaded.bufferBytes;
  const room =
    request.gpu?.budgetGib === undefined
      ? free
      : Math.max(0, Math.min(free, loaded.device.budgetBytes - used));
  const chunk = sessions.fitting(room);
  if (chunk === undefined) {
    throw new PlanError(
      `a context of ${sessions.context} needs ${gib(sessions.bytes(sessions.smallestChunk).total)} of GPU memory, ` +
        `${gib(room)} can be used; ${contextAdvice(sessions.largestContext(room))}`,
    );
  }
  const session = sessions.bytes(chunk);
  return {
    ...loaded,
    kv: { ...loaded.kv, bytes: session.kv },
    bufferBytes: session.buffers,
    context: sessions.context,
    prefillChunk: chunk,
    reasons: sessions.reasons(chunk),
  };
}
