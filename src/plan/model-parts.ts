import type { ModelDescription, ModelTensor } from '../model/index.js';
import type { PlanRequest } from './plan.js';

/** Layers, inclusive, and whether what comes before and after them belongs to this process. */
export interface Slice {
  readonly first: number;
  readonly last: number;
  readonly embedding: boolean;
  readonly head: boolean;
}

/** Bytes of one layer. */
export interface LayerParts {
  readonly layer: number;
  readonly nonRouted: number;
  readonly routed: number;
  /** One routed expert: gate, up and down side by side, as a slot holds it. */
  readonly expert: number;
}

/** The bytes of a slice of a model, by what the plan may place apart. */
export interface ModelParts {
  readonly slice: Slice;
  readonly layers: readonly LayerParts[];
  readonly embedding: number;
  readonly head: number;
  readonly total: number;
  readonly routed: number;
  readonly nonRouted: number;
  /** Routed experts of all layers. */
  readonly expertCount: number;
  readonly expertsPerLayer: number;
  /** Routed experts that one token needs in a layer. */
  readonly used: number;
  /** Bytes of the largest expert: what a slot must hold. */
  readonly slot: number;
  /** Bytes of the largest layer without its routed experts: what a page must hold. */
  readonly page: number;
}

const slotAlignment = 256;

const outputRoles: ReadonlySet<string> = new Set([
  'output',
  'outputNorm',
  'outputHcFn',
  'outputHcBase',
  'outputHcScale',
]);

/** Vectors and tables are copied into GPU memory as float32 or int32, whatever limits the rest. */
const smallRoles: ReadonlySet<string> = new Set([
  'outputHcBase',
  'outputHcScale',
  'outputNorm',
  'hcAttnBase',
  'hcAttnScale',
  'hcFfnBase',
  'hcFfnScale',
  'attnNorm',
  'attnQANorm',
  'attnKvANorm',
  'attnSinks',
  'compressorNorm',
  'indexerCompressorNorm',
  'ffnNorm',
  'routerBias',
  'routerHash',
]);

export function isSmall({ role }: ModelTensor): boolean {
  return smallRoles.has(role);
}

export type TensorPart = 'embedding' | 'head' | 'layer' | 'experts';

export function partOf({ role, layer }: ModelTensor): TensorPart {
  if (role === 'expertGate' || role === 'expertUp' || role === 'expertDown') {
    return 'experts';
  }
  return layer >= 0 ? 'layer' : outputRoles.has(role) ? 'head' : 'embedding';
}

export function sliceOf({ shape }: ModelDescription, { layers }: PlanRequest): Slice {
  const last = shape.layerCount - 1;
  return layers === undefined
    ? { first: 0, last, embedding: true, head: true }
    : { ...layers, embedding: layers.first === 0, head: layers.last === last };
}

export function belongsTo(slice: Slice, tensor: ModelTensor): boolean {
  const part = partOf(tensor);
  if (part === 'embedding' || part === 'head') {
    return slice[part];
  }
  return tensor.layer >= slice.first && tensor.layer <= slice.last;
}

/** Sums up the tensors of a slice; nothing outside it counts anywhere in a plan. */
export function partsOf(model: ModelDescription, slice: Slice): ModelParts {
  const { expertCount: perLayer, expertUsed: used } = model.shape;
  const sums = { embedding: 0, head: 0, layer: 0, experts: 0 };
  const layers = Array.from({ length: slice.last - slice.first + 1 }, (_, index) => ({
    layer: slice.first + index,
    nonRouted: 0,
    routed: 0,
  }));
  for (const entry of model.tensors) {
    if (!belongsTo(slice, entry)) {
      continue;
    }
    const part = partOf(entry);
    sums[part] += entry.tensor.bytes;
    const layer = layers[entry.layer - slice.first];
    if (layer !== undefined && (part === 'layer' || part === 'experts')) {
      layer[part === 'layer' ? 'nonRouted' : 'routed'] += entry.tensor.bytes;
    }
  }
  const sized = layers.map((layer) => ({
    ...layer,
    expert: Math.ceil(layer.routed / perLayer / slotAlignment) * slotAlignment,
  }));
  const nonRouted = sums.embedding + sums.head + sums.layer;
  return {
    slice,
    layers: sized,
    embedding: sums.embedding,
    head: sums.head,
    total: nonRouted + sums.experts,
    routed: sums.experts,
    nonRouted,
    expertCount: perLayer * layers.length,
    expertsPerLayer: perLayer,
    used,
    slot: Math.max(...sized.map(({ expert }) => expert)),
    page: Math.max(...sized.map((layer) => layer.nonRouted)),
  };
}
