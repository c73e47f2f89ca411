import type { ModelDescription } from '../model/index.js';
import { planExpertCache, policyFor } from './expert-memory.js';
import type { ExpertSizes } from './expert-memory.js';
import { failureReasons } from './failures.js';
import { sessionBytes } from './kv-cache.js';
import { lockOf } from './lock.js';
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
  { memoryAvailable }: MachineFacts,
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
  } else if (source === 'mmap' && bytes > memoryAvailable) {
    reasons.push({
      kind: 'warning',
      text:
        `the weights (${gib(bytes)}) are larger than the free memory (${gib(memoryAvailable)}): ` +
        'parts are read from disk again and again, and the disk sets the speed',
    });
  }
  return reasons;
}

/** What GPU options mean for the processor: nothing, and then it is said. */
function withoutEffect({ paging }: PlanRequest): PlanReason[] {
  return paging === undefined
    ? []
    : [
        {
          kind: 'warning',
          text: '--weight-paging has no effect with the cpu backend: the system pages the mapping of the file',
        },
      ];
}

function refuseContext(
  context: number,
  kv: number,
  free: number,
  fits: (positions: number) => boolean,
): never {
  throw new PlanError(
    `a context of ${context} needs ${gib(kv)} for its KV cache, ${gib(Math.max(0, free))} are free; ` +
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
  const { shape } = model;
  const slice = sliceOf(model, request);
  const parts = partsOf(model, slice);
  const streams = request.experts?.streaming === true;
  const source = request.source ?? 'mmap';
  const context = contextOf(request, shape.trainedContext);
  const chunk = request.prefillChunk ?? usualPrefillChunk;
  const prefillChunk = chunk === 'whole' ? context : Math.min(chunk, context);
  const session = sessionBytes(shape, slice, context, prefillChunk);

  const staying = streams ? parts.nonRouted : parts.total;
  const read = source !== 'mmap' && loaded === undefined ? staying : 0;
  if (read > facts.memoryAvailable) {
    throw new PlanError(
      `reading the weights into memory needs ${gib(read)}, ${gib(facts.memoryAvailable)} are free; ` +
        `leave out ${readBy[source]} to use them from the file`,
    );
  }
  const transit = streams && loaded === undefined ? parts.used * parts.slot : 0;
  const free = facts.memoryAvailable - read - transit;
  if (session.kv > free) {
    refuseContext(context, session.kv, free, (positions) => {
      const step = Math.min(prefillChunk, positions);
      return sessionBytes(shape, slice, positions, step).kv <= free;
    });
  }

  const common = {
    backend: 'cpu' as const,
    kv: { place: 'host' as const, bytes: session.kv, bytesPerPosition: session.perPosition },
    context,
    prefillChunk,
    checkpoints: checkpointCount,
  };
  const sessionReasons: PlanReason[] = [
    {
      kind: 'note',
      text: `KV cache: ${gib(session.kv)} at ${context} positions, taken from memory as it fills`,
    },
    ...trainingReasons(context, shape.trainedContext),
  ];
  if (loaded !== undefined) {
    return { ...common, weights: loaded.weights, reasons: sessionReasons };
  }

  const left = facts.memoryAvailable - read - session.kv;
  const cache = streams
    ? planExpertCache(
        parts,
        {
          most: left,
          withinReserve: left,
          reserve: 0,
          total: facts.memoryAvailable,
          outside: read + session.kv,
          session: session.kv,
        },
        request,
        Infinity,
      )
    : undefined;
  const lock = lockOf(request, facts, staying);
  return {
    ...common,
    weights: {
      place: cache === undefined ? 'host' : 'streamExperts',
      source,
      lock: lock.lock,
      ...(request.readThreads === undefined ? {} : { readThreads: request.readThreads }),
      bytes: parts.total,
      routedBytes: parts.routed,
      ...(cache === undefined
        ? {}
        : {
            experts: {
              slotBytes: cache.slotBytes,
              transitBytes: cache.transitBytes,
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
      ...withoutEffect(request),
      ...weightReasons(parts, facts, source, cache),
      ...lock.reasons,
      ...sessionReasons,
    ],
  };
}
