import type { ModelDescription } from '../model/index.js';
import { planExpertCache, policyFor } from './expert-memory.js';
import type { ExpertSizes } from './expert-memory.js';
import { failureReasons } from './failures.js';
import { fetchBuffers, fetchReasons } from './fetch-buffers.js';
import { hostSessionBytes } from './host-session.js';
import { lockOf } from './lock.js';
import { machineReasons } from './machine-reasons.js';
import { partsOf, sliceOf } from './model-parts.js';
import type { ModelParts } from './model-parts.js';
import {
  checkpointCount,
  contextAdvice,
  contextOf,
  gib,
  largestContext,
  PlanError,
  trainingReasons,
} from './plan.js';
import type { HostPlan, MachineFacts, PlanReason, PlanRequest, WeightSource } from './plan.js';

import { variableReasons } from './variables.js';

/** Threads that compute when nobody says how many there are. */
const usualThreads = 16;
/** Tokens of one prefill step on the CPU: enough to read each weight seldom, small enough that Ctrl+C is prompt. */
const usualPrefillChunk = 512;

const readBy: Readonly<Record<WeightSource, string>> = {
  mmap: '',
  read: '--no-mmap',
  direct: '--direct-io',
};

/** The weights as they are used, once their place is known. */
function weightReasons(
  parts: ModelParts,
  { memoryAvailable, isFileInRamDisk = false }: MachineFacts,
  source: WeightSource,
  cache: ExpertSizes | undefined,
): PlanReason[] {
  const bytes = cache === undefined ? parts.total : parts.nonRouted;
  const reasons: PlanReason[] = [
    {
      kind: 'note',
      text:
        source === 'mmap'
          ? `weights: ${gib(bytes)} used in place from the file's mapping, nothing is copied`
          : `weights: ${gib(bytes)} read into memory, because ${readBy[source]} was given`,
    },
  ];
  if (cache !== undefined) {
    const { slots, slotBytes, transitBytes, boundBy } = cache;
    reasons.push(
      {
        kind: 'headline',
        text: `weights: ${gib(parts.routed)} of experts are read from the file when they are needed, because --ssd-streaming was given`,
      },
      {
        kind: 'headline',
        text:
          `expert cache: ${slots} experts (${gib(slotBytes)}) in main memory, because ${boundBy}; ` +
          `and ${gib(transitBytes)} for those that a prompt needs only once`,
      },
      ...cache.reasons,
    );
  } else if (source === 'mmap' && !isFileInRamDisk && bytes > memoryAvailable) {
    reasons.push({
      kind: 'warning',
      text:
        `the weights (${gib(bytes)}) are larger than the free memory (${gib(memoryAvailable)}): ` +
        'parts are read from disk again and again, and the disk sets the speed',
    });
  }
  return reasons;
}

/** What is said wherever the processor is to compute and `--weight-paging` was given. */
const pagingNeedsGpu =
  '--weight-paging lets weights take turns in GPU memory, which the cpu backend has not; ' +
  'the backends that have it are cuda, rocm and sim';

function refuseContext(
  context: number,
  bytes: number,
  free: number,
  fits: (positions: number) => boolean,
): never {
  throw new PlanError(
    `a context of ${context} needs ${gib(bytes)} for its KV cache and buffers, ${gib(Math.max(0, free))} are free; ` +
      contextAdvice(largestContext(fits, context)),
  );
}

/**
 * Plans a run on the CPU: weights stay in the file's mapping (or are read into memory), the KV cache is taken at full
 * context. With `--ssd-streaming` the routed experts are read from the file into a cache. `loaded`: the weights are in
 * place already.
 *
 * @throws PlanError with the need, what is free, and the largest context that fits.
 */
export function planHost(
  model: ModelDescription,
  facts: MachineFacts,
  request: PlanRequest,
  loaded: HostPlan | undefined,
): HostPlan {
  if (request.paging !== undefined) {
    throw new PlanError(pagingNeedsGpu);
  }
  const { shape } = model;
  const slice = sliceOf(model, request);
  const parts = partsOf(model, slice);
  const streams = request.experts?.streaming === true;
  const source = request.source ?? 'mmap';
  const context = contextOf(request, shape.trainedContext);
  const chunk = request.prefillChunk ?? usualPrefillChunk;
  const prefillChunk = chunk === 'whole' ? context : Math.min(chunk, context);
  const sessionOf = (positions: number): ReturnType<typeof hostSessionBytes> =>
    hostSessionBytes(
      shape,
      {
        layers: slice,
        context: positions,
        prefillChunk: Math.min(prefillChunk, positions),
        checkpoints: checkpointCount,
      },
      facts.threads ?? usualThreads,
    );
  const session = sessionOf(context);

  const staying = streams ? parts.nonRouted : parts.total;
  const read = source !== 'mmap' && loaded === undefined ? staying : 0;
  if (read > facts.memoryAvailable) {
    throw new PlanError(
      `reading the weights into memory needs ${gib(read)}, ${gib(facts.memoryAvailable)} are free; ` +
        `leave out ${readBy[source]} to use them from the file`,
    );
  }
  const fetch =
    streams && loaded === undefined
      ? fetchBuffers(request, facts.memoryAvailable - read)
      : undefined;
  const transit = fetch === undefined ? 0 : parts.used * parts.slot + fetch.bytes;
  const free = facts.memoryAvailable - read - transit;
  if (session.total > free) {
    refuseContext(context, session.total, free, (positions) => sessionOf(positions).total <= free);
  }

  const common = {
    backend: 'cpu' as const,
    kv: { place: 'host' as const, bytes: session.kv, bytesPerPosition: session.perPosition },
    bufferBytes: session.buffers,
    context,
    prefillChunk,
    checkpoints: checkpointCount,
  };
  const sessionReasons: PlanReason[] = [
    {
      kind: 'note',
      text:
        `KV cache: ${gib(session.kv)} at ${context} positions, taken from memory as it fills, ` +
        `and at most ${gib(session.buffers)} of buffers`,
    },
    ...trainingReasons(context, shape.trainedContext),
  ];
  if (loaded !== undefined) {
    return { ...common, weights: loaded.weights, reasons: sessionReasons };
  }

  const outside = read + session.total + (fetch?.bytes ?? 0);
  const left = facts.memoryAvailable - outside;
  const cache = streams
    ? planExpertCache(
        parts,
        {
          most: left,
          withinReserve: left,
          reserve: 0,
          total: facts.memoryAvailable,
          machine:
            facts.memoryTotal === undefined
              ? undefined
              : { name: 'main memory', bytes: facts.memoryTotal },
          outside,
          session: session.total,
        },
        request,
        Infinity,
      )
    : undefined;
  const isThere = source === 'mmap' && facts.isFileInRamDisk === true;
  const lock = lockOf(request, facts, staying, isThere ? 0 : staying);
  return {
    ...common,
    weights: {
      place: cache === undefined ? 'host' : 'streamExperts',
      source,
      lock: lock.lock,
      ...(facts.isFileInRamDisk === true ? { isFileInRamDisk: true as const } : {}),
      ...(request.readThreads === undefined ? {} : { readThreads: request.readThreads }),
      ...(fetch === undefined ? {} : { readThreads: fetch.readers, fetchBytes: fetch.bytes }),
      bytes: parts.total,
      routedBytes: parts.routed,
      ...(cache === undefined
        ? {}
        : {
            experts: {
              slotBytes: cache.slotBytes,
              transitBytes: cache.transitBytes,
              reserveBytes: cache.reserveBytes,
              hostBytes: 0,
              policy: policyFor(parts, cache.slots, request),
              slots: cache.slots,
              expertBytes: parts.slot,
              boundBy: cache.boundBy,
            },
          }),
    },
    reasons: [
      ...failureReasons(request),
      ...variableReasons(request.variables, {
        isOnGpu: false,
        streams,
        fetches: fetch !== undefined,
      }),
      ...machineReasons(facts),
      ...weightReasons(parts, facts, source, cache),
      ...(fetch === undefined ? [] : fetchReasons(fetch, request)),
      ...lock.reasons,
      ...sessionReasons,
    ],
  };
}
