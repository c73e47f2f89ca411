import { availableParallelism } from 'node:os';
import { probeBackend } from '../engine/index.js';
import type { ModelDescription } from '../model/index.js';
import {
  OversizeError,
  PlanError,
  planLoad,
  planSession,
  planSplit,
  planSplitSession,
  sharedPlan,
  tokenCost,
} from '../plan/index.js';
import type {
  ExpertRequest,
  GpuFacts,
  GpuRequest,
  LoadPlan,
  MachineFacts,
  NamedVariable,
  PlanFailure,
  PlanRequest,
  SplitPlan,
} from '../plan/index.js';
import { simulationOf } from './backend-choice.js';
import type { BackendChoice } from './backend-choice.js';
import { formatBytes } from './bytes.js';
import type { GpuEnvironment } from './environment.js';
import { RunError } from './errors.js';
import { availableMemory } from './host-memory.js';
import { lockLimit } from './lock-limit.js';
import { isInRamDisk } from './ram-disk.js';
import type { Run } from './run.js';
import type { PlannedMachine, Settings } from './settings.js';
import { totalMemory } from './total-memory.js';

function gpuRequest(settings: Readonly<Settings>, environment: GpuEnvironment): GpuRequest {
  const { gpuResident, gpuVram, uploadBufferMib, checkTensors } = settings;
  const { copyAskedBy, copyForbiddenBy, copyChunkMib, registeredWeights } = environment;
  return {
    resident: gpuResident,
    copyAskedBy,
    copyForbiddenBy,
    copyChunkMib: uploadBufferMib ?? copyChunkMib,
    copyChunkBy:
      uploadBufferMib === undefined ? 'DS4_CUDA_MODEL_COPY_CHUNK_MB' : '--upload-buffer-mib',
    checkUpload: checkTensors,
    pinForbiddenBy: environment.pinnedFallbackForbiddenBy,
    budgetGib: gpuVram === 'auto' ? undefined : gpuVram?.[0],
    budgetsGib: gpuVram === 'auto' ? undefined : gpuVram,
    treatAs:
      registeredWeights === 'auto'
        ? undefined
        : { kind: registeredWeights, by: 'DS4_ROCM_REGISTERED_WEIGHTS' },
  };
}

function expertRequest(settings: Readonly<Settings>, environment: GpuEnvironment): ExpertRequest {
  const hostGib = settings.ssdStreaming ? settings.hostExpertCacheGib : undefined;
  return {
    streaming: settings.ssdStreaming,
    // Their options say that they have no effect otherwise.
    cache: settings.ssdStreaming ? settings.expertCache : undefined,
    hostGib,
    // An option wins over a variable.
    hostTier: hostGib !== undefined || environment.hostMappedExpertFallback,
    outsideGib: environment.streamModelCacheGib,
    bufferedBy: environment.bufferedReadsBy,
    policy: settings.expertPolicy,
    reserveGib: environment.streamFreeReserveGib,
    percent: environment.autoCachePercent,
  };
}

/** The variables that are set, each with the option that says the same and wins, if there is one. */
function namedVariables({
  settings,
  environment,
}: Pick<Run, 'settings' | 'environment'>): NamedVariable[] {
  const { prefillChunk, gpuResident, uploadBufferMib, ssdStreaming, expertCache } = settings;
  const given = (isGiven: boolean, option: string): string | undefined =>
    isGiven ? option : undefined;
  const copy = given(gpuResident === false, '--no-gpu-resident');
  const cache = given(expertCache !== undefined && ssdStreaming, '--ssd-streaming-cache-experts');
  const overriding: Readonly<Record<string, string | undefined>> = {
    DS4_METAL_PREFILL_CHUNK: given(prefillChunk !== undefined, '--prefill-chunk'),
    DS4_CUDA_COPY_MODEL_CHUNKED: copy,
    DS4_CUDA_COPY_MODEL: copy,
    DS4_CUDA_MODEL_COPY_CHUNK_MB: given(uploadBufferMib !== undefined, '--upload-buffer-mib'),
    DS4_ROCM_STREAM_FREE_RESERVE_GIB: cache,
    DS4_ROCM_STREAM_FREE_RESERVE_GB: cache,
    DS4_SSD_AUTO_CACHE_PCT: cache,
    DS4_ROCM_HOST_MAPPED_EXPERT_FALLBACK: given(
      settings.hostExpertCacheGib !== undefined,
      '--host-expert-cache',
    ),
  };
  return environment.gpu.named.map((variable) => ({
    ...variable,
    overriddenBy: overriding[variable.name],
  }));
}

/** What the options ask of the planner. `--prefill-chunk` wins over its environment variable. */
function planRequest(
  run: Pick<Run, 'settings' | 'environment'>,
  context: number | undefined,
  failures: readonly PlanFailure[] = [],
): PlanRequest {
  const { settings, environment } = run;
  return {
    variables: namedVariables(run),
    lock: settings.lockWeights,
    keepPages: environment.gpu.keepModelPages,
    readThreads: environment.gpu.readWorkers,
    gpu: gpuRequest(settings, environment.gpu),
    experts: expertRequest(settings, environment.gpu),
    failures,
    source: settings.source,
    context,
    prefillChunk: settings.prefillChunk ?? environment.prefillChunk,
    paging: settings.weightPaging ? { slots: settings.weightPagingSlots } : undefined,
  };
}

/** The devices as they are now. One that answers no more has no free memory. */
function gpuFacts(run: Run, { backend, devices }: BackendChoice): GpuFacts[] {
  if (backend === 'cpu' || devices.length === 0) {
    return [];
  }
  const state = probeBackend(backend, run.environment.libraryDirectory);
  const now = state.kind === 'ready' ? state.devices : [];
  return devices.map((device) => {
    const kind = backend === 'sim' ? simulationOf(run)?.kind : device.kind;
    return {
      backend,
      index: device.index,
      name: device.name,
      // Only a device that says so shares main memory; everything else is treated with the safer choice.
      kind: kind === 'integrated' ? 'integrated' : 'discrete',
      totalBytes: device.totalBytes,
      freeBytes: now.find(({ index }) => index === device.index)?.freeBytes ?? 0,
    };
  });
}

/** A machine that was described by hand, for `--inspect`. */
function describedFacts(
  { ramBytes, kind }: PlannedMachine,
  { backend, devices }: BackendChoice,
): MachineFacts {
  const gpus =
    backend === 'cpu'
      ? []
      : devices.map(({ index, name, totalBytes, freeBytes }) => ({
          backend,
          index,
          name,
          kind,
          totalBytes,
          freeBytes,
        }));
  return {
    memoryAvailable: ramBytes,
    memoryTotal: ramBytes,
    gpu: gpus[0],
    gpus: gpus.length > 1 ? gpus : undefined,
  };
}

/**
 * The machine with less main memory, as --simulate-used-memory asks.
 *
 * @throws RunError when it has not so much.
 */
function withUsedMemory(facts: MachineFacts, usedGib: number | undefined): MachineFacts {
  if (usedGib === undefined) {
    return facts;
  }
  const usedBytes = usedGib * 2 ** 30;
  const { memoryAvailable, memoryTotal } = facts;
  if (usedBytes > memoryAvailable) {
    throw new RunError(
      `--simulate-used-memory ${usedGib}: only ${formatBytes(memoryAvailable)} of main memory are free; name less`,
    );
  }
  return {
    ...facts,
    simulatedUsedBytes: usedBytes,
    memoryAvailable: memoryAvailable - usedBytes,
    memoryTotal: memoryTotal === undefined ? undefined : memoryTotal - usedBytes,
  };
}

function machineFacts(run: Run, choice: BackendChoice, model: ModelDescription): MachineFacts {
  return withUsedMemory(wholeMachine(run, choice, model), run.settings.simulatedUsedGib);
}

function wholeMachine(run: Run, choice: BackendChoice, model: ModelDescription): MachineFacts {
  const { planFor } = run.settings;
  if (planFor !== undefined) {
    return describedFacts(planFor, choice);
  }
  const simulated = choice.backend === 'sim' ? simulationOf(run) : undefined;
  const gpus = gpuFacts(run, choice);
  return {
    memoryAvailable: simulated?.ramBytes ?? availableMemory(),
    memoryTotal: simulated?.ramBytes ?? totalMemory(),
    threads: run.settings.threads ?? availableParallelism(),
    // A simulated machine has a memory of its own, and the file is not in it.
    isFileInRamDisk:
      simulated === undefined && model.gguf.files.every(({ path }) => isInRamDisk(path)),
    lockableBytes: lockLimit(),
    gpu: gpus[0],
    gpus: gpus.length > 1 ? gpus : undefined,
    rates:
      simulated === undefined
        ? undefined
        : {
            link: simulated.linkBytesPerSecond,
            mapped: simulated.mappedBytesPerSecond,
            disk: simulated.diskBytesPerSecond,
          },
  };
}

/** A plan with the machine that it was made for. */
export interface Planned {
  /** Of several devices, what all their parts take together. */
  readonly plan: LoadPlan;
  /** The plan of each part, when more than one device has any. */
  readonly split?: SplitPlan;
  readonly facts: MachineFacts;
}

/** Whether the processor would be faster than a GPU that has no room for the weights that every token needs. */
function isBetterOnCpu(
  gpuPlan: LoadPlan,
  cpuPlan: LoadPlan,
  description: ModelDescription,
  facts: MachineFacts,
): boolean {
  return (
    gpuPlan.backend !== 'cpu' &&
    gpuPlan.weights.deviceWeightBytes !== undefined &&
    tokenCost(cpuPlan, description, facts).seconds < tokenCost(gpuPlan, description, facts).seconds
  );
}

function together(split: SplitPlan): Pick<Planned, 'plan' | 'split'> {
  return { plan: sharedPlan(split), ...(split.parts.length > 1 ? { split } : {}) };
}

/** The plan for the CPU instead of a GPU, with the reason as a warning. */
function instead(plan: LoadPlan, reason: string): LoadPlan {
  const text = `backend cpu, because ${reason}`;
  return { ...plan, reasons: [{ kind: 'warning', text }, ...plan.reasons] };
}

/**
 * Plans a run on the machine as it is now. A GPU that nobody asked for and that cannot take the model, or not even the
 * weights outside the experts with any gain, is left alone, and the CPU takes its place with a warning. A size that the
 * machine can never have is refused all the same: whoever named it did not mean the CPU.
 *
 * @throws PlanError
 */
export function planRun(
  run: Run,
  choice: BackendChoice,
  description: ModelDescription,
  failures: readonly PlanFailure[] = [],
): Planned {
  const facts = machineFacts(run, choice, description);
  const request = planRequest(run, run.settings.context, failures);
  if (facts.gpus !== undefined) {
    return { facts, ...together(planSplit(description, facts, request)) };
  }
  const { gpu, ...host } = facts;
  if (gpu === undefined || choice.isAsked) {
    return { facts, plan: planLoad(description, facts, request) };
  }
  let plan: LoadPlan;
  try {
    plan = planLoad(description, facts, request);
  } catch (thrown) {
    if (!(thrown instanceof PlanError) || thrown instanceof OversizeError) {
      throw thrown;
    }
    return { facts: host, plan: instead(planLoad(description, host, request), thrown.message) };
  }
  const onCpu = planIfPossible(description, host, request);
  return onCpu !== undefined && isBetterOnCpu(plan, onCpu, description, facts)
    ? {
        facts: host,
        plan: instead(
          onCpu,
          `${gpu.backend} device ${gpu.index} (${gpu.name}) has no room for the weights that every token needs`,
        ),
      }
    : { facts, plan };
}

function planIfPossible(
  description: ModelDescription,
  facts: MachineFacts,
  request: PlanRequest,
): LoadPlan | undefined {
  try {
    return planLoad(description, facts, request);
  } catch (thrown) {
    if (thrown instanceof PlanError) {
      return undefined;
    }
    throw thrown;
  }
}

/**
 * Plans a session that takes the place of the one that `current` has.
 *
 * @throws PlanError
 */
export function planNextSession(
  run: Run,
  choice: BackendChoice,
  description: ModelDescription,
  current: Pick<Planned, 'plan' | 'split'>,
  context: number,
): Pick<Planned, 'plan' | 'split'> {
  const facts = machineFacts(run, choice, description);
  const request = planRequest(run, context);
  if (current.split !== undefined) {
    return together(planSplitSession(description, facts, request, current.split));
  }
  // Of several devices one that has it all need not be the first.
  const device = current.plan.backend === 'cpu' ? undefined : current.plan.device.index;
  const gpu = facts.gpus?.find(({ index }) => index === device) ?? facts.gpu;
  return { plan: planSession(description, { ...facts, gpu }, request, current.plan) };
}
