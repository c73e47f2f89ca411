import type { ModelDescription } from '../model/index.js';
import { belongsTo, partOf, sliceOf } from './model-parts.js';
import type { TensorPart } from './model-parts.js';
import { withinLimit } from './non-routed.js';
import type { LoadPlan, PlanRequest } from './plan.js';

/** Where weights are while a model runs. */
export type Place =
  /** GPU memory. */
  | 'device'
  /** GPU memory, in turns. */
  | 'pages'
  /** The file's mapping, pinned and read by the GPU over the bus (or in place where memory is shared). */
  | 'pinnedMapping'
  /** The same in pinned memory that the weights were read into. */
  | 'pinnedMemory'
  /** The file, from which they are read when they are needed. */
  | 'file'
  /** The file's mapping, used by the processor. */
  | 'mapping'
  /** Main memory that the weights were read into. */
  | 'memory';

/** Tensors of one part of the model that are in one place. */
export interface PlacedTensors {
  readonly part: TensorPart;
  /** Undefined outside the layers. */
  readonly layer: number | undefined;
  readonly place: Place;
  readonly tensors: readonly string[];
  readonly bytes: number;
}

/** The place of each tensor of the plan, given the tensors that are in GPU memory for good. */
function placeOf(plan: LoadPlan, part: TensorPart, isInside: boolean): Place {
  const { weights } = plan;
  if (part === 'experts' && weights.place === 'streamExperts') {
    return 'file';
  }
  if (plan.backend === 'cpu') {
    return weights.source === 'mmap' ? 'mapping' : 'memory';
  }
  if (plan.weights.place === 'device') {
    return 'device';
  }
  const pinned = plan.weights.pinCopies ? 'pinnedMemory' : 'pinnedMapping';
  if (part === 'experts') {
    return pinned;
  }
  if (plan.weights.pageSlots !== undefined) {
    return part === 'layer' ? 'pages' : 'device';
  }
  return isInside ? 'device' : pinned;
}

/**
 * Where every tensor of the slice is, in the order of the graph: each has exactly one place. Copies in an expert cache
 * come on top.
 */
export function placesOf(
  plan: LoadPlan,
  model: ModelDescription,
  request: Pick<PlanRequest, 'layers'> = {},
): PlacedTensors[] {
  const slice = sliceOf(model, request);
  const tensors = model.tensors.filter((entry) => belongsTo(slice, entry));
  const limit = plan.backend === 'cpu' ? undefined : plan.weights.deviceWeightBytes;
  const inside = withinLimit(tensors, limit ?? Infinity);
  const groups = new Map<string, PlacedTensors>();
  for (const entry of tensors) {
    const part = partOf(entry);
    const place = placeOf(plan, part, inside.has(entry));
    const key = `${part} ${entry.layer} ${place}`;
    const group = groups.get(key);
    groups.set(key, {
      part,
      layer: entry.layer < 0 ? undefined : entry.layer,
      place,
      tensors: [...(group?.tensors ?? []), entry.tensor.name],
      bytes: (group?.bytes ?? 0) + entry.tensor.bytes,
    });
  }
  return [...groups.values()];
}
