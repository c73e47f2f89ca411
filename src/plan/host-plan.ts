import type { ModelDescription } from '../model/index.js';
import { sessionBytes } from './kv-cache.js';
import {
  checkpointCount,
  contextAdvice,
  contextOf,
  gib,
  largestContext,
  PlanError,
  trainingReasons,
} from './plan.js';
import type { HostPlan, MachineFacts, PlanReason, PlanRequest } from './plan.js';

/** Tokens of one prefill step on the CPU: enough to read each weight seldom, small enough that Ctrl+C is prompt. */
const usualPrefillChunk = 512;

/**
 * Plans a run on the CPU: weights stay in the file's mapping (or are read into memory), the KV cache is taken at full
 * context. `loaded`: the weights are in place already.
 *
 * @throws PlanError with the need, what is free, and the largest context that fits.
 */
export function planHost(
  model: ModelDescription,
  facts: MachineFacts,
  request: PlanRequest,
  loaded: boolean,
): HostPlan {
  const { shape } = model;
  const layers = request.layers ?? { first: 0, last: shape.layerCount - 1 };
  const source = request.source ?? 'mmap';
  const context = contextOf(request, shape.trainedContext);
  const chunk = request.prefillChunk ?? usualPrefillChunk;
  const prefillChunk = chunk === 'whole' ? context : Math.min(chunk, context);
  const session = sessionBytes(shape, layers, context, prefillChunk);
  const weightBytes = model.bytes.total;

  const copied = source === 'read' && !loaded ? weightBytes : 0;
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
    throw new PlanError(
      `a context of ${context} needs ${gib(session.kv)} for its KV cache, ${gib(free)} are free; ` +
        contextAdvice(fitting),
    );
  }

  const reasons: PlanReason[] = [
    {
      kind: 'note',
      text:
        source === 'mmap'
          ? `weights: ${gib(weightBytes)} used in place from the file's mapping, nothing is copied`
          : `weights: ${gib(weightBytes)} read into memory, because --no-mmap was given`,
    },
  ];
  if (source === 'mmap' && weightBytes > facts.memoryAvailable && !loaded) {
    reasons.push({
      kind: 'warning',
      text:
        `the weights (${gib(weightBytes)}) are larger than the free memory (${gib(facts.memoryAvailable)}): ` +
        'parts are read from disk again and again, and the disk sets the speed',
    });
  }
  reasons.push(
    {
      kind: 'note',
      text: `KV cache: ${gib(session.kv)} at ${context} positions, taken from memory as it fills`,
    },
    ...trainingReasons(context, shape.trainedContext),
  );
  return {
    backend: 'cpu',
    weights: { place: 'host', source, bytes: weightBytes, routedBytes: model.bytes.routed },
    kv: { place: 'host', bytes: session.kv, bytesPerPosition: session.perPosition },
    context,
    prefillChunk,
    checkpoints: checkpointCount,
    reasons,
  };
}
