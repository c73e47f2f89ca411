import { Ds4Error, ExitCode } from '../error/index.js';

/** A GPU as it is before anything is loaded, measured by the caller. */
export interface GpuFacts {
  readonly backend: 'cuda' | 'rocm';
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
  /** The device of a GPU backend; without it the plan is for the CPU. */
  readonly gpu?: GpuFacts;
}

export interface GpuRequest {
  /** `--gpu-resident`, `--no-gpu-resident`, or neither. */
  readonly resident?: boolean;
  /** The environment variable that asks for the copy of the model; the options win over it. */
  readonly copyAskedBy?: string;
  /** The environment variable that forbids the copy; it wins over the options. */
  readonly copyForbiddenBy?: string;
  /** Memory to use at most, in GiB; without it what is free less a reserve. */
  readonly budgetGib?: number;
  /** Kind that the device is taken for, whatever it says, and who says so. */
  readonly treatAs?: { readonly kind: GpuFacts['kind']; readonly by: string };
  /** Size of one buffer of the upload ring in MiB. */
  readonly copyChunkMib?: number;
}

export interface PlanRequest {
  /** Positions of prompt and answer together; without it 32768, or what the model was trained for if that is less. */
  readonly context?: number;
  /** Tokens of one prefill step; `whole`: as many as the context has. */
  readonly prefillChunk?: number | 'whole';
  readonly source?: 'mmap' | 'read';
  readonly layers?: { readonly first: number; readonly last: number };
  readonly gpu?: GpuRequest;
  /** Why an attempt to copy the whole model into GPU memory failed; it is not planned again. */
  readonly failedCopy?: string;
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

export interface HostPlan extends SessionPlan {
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
}

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
  readonly weights: {
    /** All in GPU memory, or the routed experts in the file's mapping, pinned, and the rest in GPU memory. */
    readonly place: 'device' | 'mappedExperts';
    readonly bytes: number;
    readonly routedBytes: number;
    readonly deviceBytes: number;
  };
  readonly upload: { readonly slots: number; readonly slotBytes: number };
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

/** The request does not fit this machine. */
export class PlanError extends Ds4Error {
  readonly exitCode = ExitCode.runtime;
}

export const gibibyte = 2 ** 30;

export function gib(bytes: number): string {
  return `${(bytes / gibibyte).toFixed(2)} GiB`;
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
