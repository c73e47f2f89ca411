import { Ds4Error, ExitCode } from '../error/index.js';
import { pinnedCost } from './ram-disk.js';

/** Bytes per second between the places of a machine. */
export interface Rates {
  /** Whoever computes reads weights of its own memory. */
  readonly compute: number;
  /** Copies into GPU memory. */
  readonly link: number;
  /** Kernels read main memory in place. */
  readonly mapped: number;
  readonly disk: number;
}

/** A part of a plan that can fail by itself while a model is loaded; the planner then does without it, or with less. */
export type PlanStep =
  /** The copy of the whole model into GPU memory. */
  | 'copy'
  /** The copy of the weights outside the experts, when only those are to be in GPU memory. */
  | 'weights'
  /** The pinned buffers through which weights are copied. */
  | 'ring'
  /** Pinning the mapping of the file. */
  | 'map'
  /** Reading weights into pinned memory. */
  | 'pin'
  /** The pinned buffers of those who read missing weights. */
  | 'readers'
  /** The slots of paged weights. */
  | 'pages'
  /** The pinned tier of an expert cache. */
  | 'hostTier'
  /** The slots of an expert cache. */
  | 'slots';

export interface PlanFailure {
  readonly step: PlanStep;
  /** Index of the GPU, when several share the model. */
  readonly device?: number;
  /** The sentence of whoever failed. */
  readonly reason: string;
}

/** A GPU as it is before anything is loaded, measured by the caller. */
export interface GpuFacts {
  readonly backend: 'cuda' | 'rocm' | 'sim';
  readonly index: number;
  readonly name: string;
  readonly kind: 'discrete' | 'integrated';
  readonly totalBytes: number;
  /** 0 when the device cannot tell: then nothing fits. */
  readonly freeBytes: number;
}

/** What the machine offers, measured by the caller: this room asks nobody. */
export interface MachineFacts {
  /** Bytes a process may still take without swapping (the smaller of the system's and the control group's figure). */
  readonly memoryAvailable: number;
  /** What is not in it because somebody wants a plan for a smaller machine. */
  readonly simulatedUsedBytes?: number | undefined;
  /** The model file is in main memory, where it is not among what is available: mapping it takes none of that. */
  readonly isFileInRamDisk?: boolean | undefined;
  /** All main memory that a process could have here if nobody else took any; unknown: nothing is too much for it. */
  readonly memoryTotal?: number | undefined;
  /** Threads with which the processor computes; 16 if nobody knows. */
  readonly threads?: number | undefined;
  /** Bytes that may be locked, where the system limits that. GPU drivers pin memory without regard to it. */
  readonly lockableBytes?: number | undefined;
  /** The device of a GPU backend; without it the plan is for the CPU. */
  readonly gpu?: GpuFacts | undefined;
  /** Several devices of one backend that share the model, in the order in which they take its layers. */
  readonly gpus?: readonly GpuFacts[] | undefined;
  /** Known speeds of this machine; the others are taken from its kind. */
  readonly rates?: Partial<Rates> | undefined;
}

export interface GpuRequest {
  /** `--gpu-resident`, `--no-gpu-resident`, or neither. */
  readonly resident?: boolean | undefined;
  /** Refuse when the whole model cannot be in GPU memory, instead of another placement with a warning. */
  readonly residentRequired?: boolean | undefined;
  /** The environment variable that asks for the copy of the model; the options win over it. */
  readonly copyAskedBy?: string | undefined;
  /** The environment variable that forbids the copy; it wins over the options. */
  readonly copyForbiddenBy?: string | undefined;
  /** Memory to use at most, in GiB; without it what is free less a reserve. */
  readonly budgetGib?: number | undefined;
  /** The same for each of several devices. */
  readonly budgetsGib?: readonly number[] | undefined;
  /** Kind that the device is taken for, whatever it says, and who says so. */
  readonly treatAs?: { readonly kind: GpuFacts['kind']; readonly by: string } | undefined;
  /** Size of one buffer of the upload ring in MiB, and the option or variable that says it. */
  readonly copyChunkMib?: number | undefined;
  readonly copyChunkBy?: string | undefined;
  /** The environment variable that forbids pinned memory for weights that neither GPU memory nor a mapping can hold. */
  readonly pinForbiddenBy?: string | undefined;
  /** Read each copy back and compare it with the file. */
  readonly checkUpload?: boolean | undefined;
}

/** How weights leave the file: through its mapping, by reading, or by reading past the page cache. */
export type WeightSource = 'mmap' | 'read' | 'direct';
export type ExpertPolicy = 'lru' | 'lfru';

/** Size of the expert cache as the user says it. */
export type ExpertCacheRequest =
  | { readonly kind: 'experts'; readonly count: number }
  | { readonly kind: 'gib'; readonly gib: number };

/** An environment variable that is set. */
export interface NamedVariable {
  readonly name: string;
  /** What it is for: something that a plan may be without. `q8Copies`: something that no plan has. */
  readonly about: 'q8Copies' | 'session' | 'gpu' | 'gpuStreaming' | 'streaming' | 'fetching';
  /** The option that says the same and wins. */
  readonly overriddenBy?: string | undefined;
}

export interface ExpertRequest {
  /** `--ssd-streaming`: read experts from the file when they are needed, whatever fits. */
  readonly streaming?: boolean | undefined;
  /** `--ssd-streaming-cache-experts` */
  readonly cache?: ExpertCacheRequest | undefined;
  /** Bound of the tier in pinned main memory, in GiB; without it half of what is available. */
  readonly hostGib?: number | undefined;
  /** False: no tier in main memory. */
  readonly hostTier?: boolean | undefined;
  readonly policy?: ExpertPolicy | undefined;
  /** Device memory that an automatic cache leaves free, in GiB. */
  readonly reserveGib?: number | undefined;
  /** Share of the memory that weights may take when the cache is automatic. */
  readonly percent?: number | undefined;
  /** Limit of the weights outside the experts in GPU memory while experts are streamed, in GiB. */
  readonly outsideGib?: number | undefined;
  /** The environment variable that wants reads through the page cache; a named source wins over it. */
  readonly bufferedBy?: string | undefined;
}

export interface PlanRequest {
  /** Positions of prompt and answer together; without it 32768, or what the model was trained for if that is less. */
  readonly context?: number | undefined;
  /** Tokens of one prefill step; `whole`: as many as the context has. */
  readonly prefillChunk?: number | 'whole' | undefined;
  /** Undefined: whatever is best for the placement. */
  readonly source?: WeightSource | undefined;
  /** Weights in main memory may not be swapped out. */
  readonly lock?: boolean | undefined;
  /** Leave what was read in the system's page cache, also where memory is short. */
  readonly keepPages?: boolean | undefined;
  /** Readers of missing weights; without it as many as help. */
  readonly readThreads?: number | undefined;
  /** Inclusive. The embedding goes with layer 0 and the output head with the last layer. */
  readonly layers?: { readonly first: number; readonly last: number } | undefined;
  readonly gpu?: GpuRequest | undefined;
  readonly experts?: ExpertRequest | undefined;
  /** `--weight-paging`, with the number of slots if it was named. */
  readonly paging?: { readonly slots?: number | undefined } | undefined;
  /** Environment variables that are set, for what is to be said about those without effect. */
  readonly variables?: readonly NamedVariable[] | undefined;
  /** What went wrong when earlier plans were carried out, oldest first. */
  readonly failures?: readonly PlanFailure[] | undefined;
}

/** A sentence for the user about one decision. `warning` is printed always, `headline` unless silence was asked for, `note` on request. */
export interface PlanReason {
  readonly kind: 'note' | 'headline' | 'warning';
  readonly text: string;
}

interface SessionPlan {
  readonly context: number;
  readonly prefillChunk: number;
  /** States that a session can come back to. */
  readonly checkpoints: number;
  readonly reasons: readonly PlanReason[];
}

/** Memory for routed experts that have no place for good. */
export interface ExpertMemoryPlan {
  /** For copies that stay, in the memory of whoever computes: a whole number of experts. */
  readonly slotBytes: number;
  /** For experts that are used once and given up, in the same memory. */
  readonly transitBytes: number;
  /** Pinned main memory for experts that GPU memory has no place for. */
  readonly hostBytes: number;
  readonly policy: ExpertPolicy;
  /** Memory of the device that slots and transit leave free on purpose; 0 where somebody named the size. */
  readonly reserveBytes: number;
  /** Experts that the slots hold. */
  readonly slots: number;
  /** Of the largest expert. */
  readonly expertBytes: number;
  /** What decided the number of slots, with the sums. */
  readonly boundBy: string;
}

interface WeightsPlan {
  /** Of the whole slice. */
  readonly bytes: number;
  readonly routedBytes: number;
  readonly source: WeightSource;
  readonly lock: boolean;
  /** Readers of weights that are fetched while the model computes; absent where none are and nobody named a number. */
  readonly readThreads?: number;
  /** Main memory for what they read. */
  readonly fetchBytes?: number;
  readonly experts?: ExpertMemoryPlan;
  /** Present when the mapping of the file takes no main memory. */
  readonly isFileInRamDisk?: true;
}

export interface HostPlan extends SessionPlan {
  readonly backend: 'cpu';
  /** All used from main memory, or the routed experts read from the file when they are needed. */
  readonly weights: WeightsPlan & { readonly place: 'host' | 'streamExperts' };
  readonly kv: {
    readonly place: 'host';
    readonly bytes: number;
    readonly bytesPerPosition: number;
  };
  /** Activations, checkpoints and intermediates, in main memory. */
  readonly bufferBytes: number;
}

export interface GpuWeightsPlan extends WeightsPlan {
  /**
   * All in GPU memory; or the routed experts pinned in main memory and read over the bus; or those read from the file
   * when they are needed. The rest is in GPU memory unless `deviceWeightBytes` or `pageSlots` is there.
   */
  readonly place: 'device' | 'mappedExperts' | 'streamExperts';
  /** GPU memory for weights that stay there, and for pages; the expert cache is apart. */
  readonly deviceBytes: number;
  /** Weights that are pinned in main memory for good. */
  readonly pinnedBytes: number;
  /** Limit of GPU memory for weights that are not routed experts; what goes beyond it is pinned. Absent: all fit. */
  readonly deviceWeightBytes?: number;
  /** The weights of layers that are not routed experts take turns in so many slots. */
  readonly pageSlots?: number;
  /** What stays in main memory is read into pinned memory instead of pinning the file's mapping. */
  readonly pinCopies: boolean;
  /** The system need not keep what was read in its page cache. */
  readonly dropReadPages: boolean;
}

/**
 * How weights get into GPU memory: read into pinned buffers, the same past the page cache, or from the mapping through one
 * ordinary buffer.
 */
export type UploadPath = 'staged' | 'direct' | 'mapping';

export interface GpuPlan extends SessionPlan {
  readonly backend: GpuFacts['backend'];
  readonly device: {
    readonly index: number;
    readonly name: string;
    readonly kind: GpuFacts['kind'];
    readonly freeBytes: number;
    /** What this run may take of it. */
    readonly budgetBytes: number;
  };
  readonly weights: GpuWeightsPlan;
  readonly upload: {
    readonly path: UploadPath;
    readonly slots: number;
    readonly slotBytes: number;
  };
  readonly kv: {
    readonly place: 'device';
    readonly bytes: number;
    readonly bytesPerPosition: number;
  };
  /** Activations, checkpoints and kernels' intermediates in GPU memory. */
  readonly bufferBytes: number;
}

/** Where everything goes, decided before anything is loaded. */
export type LoadPlan = HostPlan | GpuPlan;

/** What one device, or the processor, does of a model that several share. */
export interface PlanPart {
  /** Inclusive. */
  readonly layers: { readonly first: number; readonly last: number };
  readonly embedding: boolean;
  readonly head: boolean;
  readonly plan: LoadPlan;
}

/** A plan for several devices: each layer is in exactly one part, in order. */
export interface SplitPlan {
  /** On GPUs, and at most the last one on the processor. One part only: the first device does it all. */
  readonly parts: readonly [PlanPart, ...PlanPart[]];
  /** Main memory for what goes from one part to the next while a prompt is processed. */
  readonly hiddenStateBytes: number;
  readonly reasons: readonly PlanReason[];
}

/** The request does not fit this machine. */
export class PlanError extends Ds4Error {
  readonly exitCode = ExitCode.runtime;
}

/** A size was named that this machine, or this model, can never have. Another backend would only hide the slip. */
export class OversizeError extends PlanError {}

export const gibibyte = 2 ** 30;

/** In GiB, or in MiB where that would be a fraction. */
export function gib(bytes: number): string {
  return bytes === 0 || bytes >= gibibyte
    ? `${(bytes / gibibyte).toFixed(2)} GiB`
    : `${(bytes / 2 ** 20).toFixed(2)} MiB`;
}

/** Memory of the GPU that a plan takes. */
export function deviceBytesOf({ weights, kv, bufferBytes }: GpuPlan): number {
  const { slotBytes = 0, transitBytes = 0 } = weights.experts ?? {};
  return weights.deviceBytes + slotBytes + transitBytes + kv.bytes + bufferBytes;
}

/** What of a plan's pinned weights takes main memory. */
export function pinnedBytesOf({ weights }: Pick<GpuPlan, 'weights'>): number {
  return pinnedCost(weights, weights.pinnedBytes, weights.pinCopies);
}

/** Main memory that a plan pins or takes; not the file's mapping where nobody pins it, or where it is in a RAM disk. */
export function hostBytesOf(plan: LoadPlan): number {
  const { weights } = plan;
  const { fetchBytes = 0 } = weights;
  if (plan.backend === 'cpu') {
    const { slotBytes = 0, transitBytes = 0 } = weights.experts ?? {};
    const read = weights.source === 'mmap' ? 0 : weights.bytes;
    return (
      plan.kv.bytes +
      plan.bufferBytes +
      fetchBytes +
      slotBytes +
      transitBytes +
      (weights.place === 'host' || read === 0 ? read : read - weights.routedBytes)
    );
  }
  const { slots, slotBytes } = plan.upload;
  return slots * slotBytes + fetchBytes + pinnedBytesOf(plan) + (weights.experts?.hostBytes ?? 0);
}

/** States kept of a session: the ends of the last turns. */
export const checkpointCount = 4;

const usualContext = 32_768;

export function contextOf(request: PlanRequest, trainedContext: number): number {
  return (
    request.context ?? (trainedContext > 0 ? Math.min(usualContext, trainedContext) : usualContext)
  );
}

/** By bisection, because the cache's size is not quite linear in the context. 0 when nothing fits. */
export function largestContext(fits: (context: number) => boolean, tooLarge: number): number {
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

export function contextAdvice(fitting: number): string {
  return fitting >= 1
    ? `the largest context that fits is ${fitting}: try --ctx ${fitting}`
    : 'not even a context of 1 fits: free some memory';
}

export function trainingReasons(context: number, trainedContext: number): PlanReason[] {
  return trainedContext > 0 && context > trainedContext
    ? [
        {
          kind: 'warning',
          text:
            `a context of ${context} is longer than the ${trainedContext} positions ` +
            'the model was trained for: answers that reach past them are likely to be nonsense',
        },
      ]
    : [];
}
