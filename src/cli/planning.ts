import { probeBackend } from '../engine/index.js';
import type { ModelDescription } from '../model/index.js';
import { PlanError, planLoad, planSession } from '../plan/index.js';
import type { GpuFacts, GpuRequest, LoadPlan, MachineFacts, PlanRequest } from '../plan/index.js';
import type { BackendChoice } from './backend-choice.js';
import type { GpuEnvironment } from './environment.js';
import { availableMemory } from './host-memory.js';
import type { Run } from './run.js';
import type { Settings } from './settings.js';

function gpuRequest(settings: Readonly<Settings>, environment: GpuEnvironment): GpuRequest {
  const { gpuResident, gpuVram } = settings;
  const { copyAskedBy, copyForbiddenBy, copyChunkMib, registeredWeights } = environment;
  const budgetGib = gpuVram === 'auto' ? undefined : gpuVram?.[0];
  return {
    ...(gpuResident === undefined ? {} : { resident: gpuResident }),
    ...(copyAskedBy === undefined ? {} : { copyAskedBy }),
    ...(copyForbiddenBy === undefined ? {} : { copyForbiddenBy }),
    ...(copyChunkMib === undefined ? {} : { copyChunkMib }),
    ...(budgetGib === undefined ? {} : { budgetGib }),
    ...(registeredWeights === 'auto'
      ? {}
      : { treatAs: { kind: registeredWeights, by: 'DS4_ROCM_REGISTERED_WEIGHTS' } }),
  };
}

/** What the options ask of the planner. `--prefill-chunk` wins over its environment variable. */
function planRequest(
  { settings, environment }: Run,
  context: number | undefined,
  failedCopy?: string,
): PlanRequest {
  const chunk = settings.prefillChunk ?? environment.prefillChunk;
  return {
    source: settings.source,
    gpu: gpuRequest(settings, environment.gpu),
    ...(context === undefined ? {} : { context }),
    ...(chunk === undefined ? {} : { prefillChunk: chunk }),
    ...(failedCopy === undefined ? {} : { failedCopy }),
  };
}

/** The device as it is now. One that answers no more has no free memory. */
function gpuFacts(run: Run, { backend, device }: BackendChoice): GpuFacts | undefined {
  if (backend === 'cpu' || device === undefined) {
    return undefined;
  }
  const state = probeBackend(backend, run.environment.libraryDirectory);
  const now =
    state.kind === 'ready' ? state.devices.find(({ index }) => index === device.index) : undefined;
  return {
    backend,
    index: device.index,
    name: device.name,
    // Only a device that says so shares main memory; everything else is treated with the safer choice.
    kind: device.kind === 'integrated' ? 'integrated' : 'discrete',
    totalBytes: device.totalBytes,
    freeBytes: now?.freeBytes ?? 0,
  };
}

function machineFacts(run: Run, choice: BackendChoice): MachineFacts {
  const gpu = gpuFacts(run, choice);
  return { memoryAvailable: availableMemory(), ...(gpu === undefined ? {} : { gpu }) };
}

/**
 * Plans a run on the machine as it is now. A GPU that nobody asked for and that cannot take the model is left alone, and
 * the CPU takes its place with a warning.
 *
 * @throws PlanError
 */
export function planRun(
  run: Run,
  choice: BackendChoice,
  description: ModelDescription,
  failedCopy?: string,
): LoadPlan {
  const { gpu, ...host } = machineFacts(run, choice);
  const request = planRequest(run, run.settings.context, failedCopy);
  if (gpu === undefined) {
    return planLoad(description, host, request);
  }
  try {
    return planLoad(description, { ...host, gpu }, request);
  } catch (thrown) {
    if (choice.isAsked || !(thrown instanceof PlanError)) {
      throw thrown;
    }
    const plan = planLoad(description, host, request);
    const text = `backend cpu, because ${thrown.message}`;
    return { ...plan, reasons: [{ kind: 'warning', text }, ...plan.reasons] };
  }
}

/**
 * Plans another session of a loaded model.
 *
 * @throws PlanError
 */
export function planAnotherSession(
  run: Run,
  choice: BackendChoice,
  description: ModelDescription,
  loaded: LoadPlan,
  context: number,
): LoadPlan {
  return planSession(description, machineFacts(run, choice), planRequest(run, context), loaded);
}
