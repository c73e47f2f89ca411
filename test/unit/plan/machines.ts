import { expect } from 'vitest';
import type {
  ModelDescription,
  ModelShape,
  ModelTensor,
  TensorRole,
} from '../../../src/model/index.js';
import { deviceSessionBytes, PlanError, planLoad } from '../../../src/plan/index.js';
import type {
  GpuFacts,
  GpuPlan,
  GpuRequest,
  HostPlan,
  LoadPlan,
  PlanRequest,
} from '../../../src/plan/index.js';

export const gib = 2 ** 30;

/** Flash's dimensions as far as plans read them. */
export const flash = {
  layerCount: 43,
  embedding: 4096,
  vocab: 129280,
  hcCount: 4,
  headCount: 64,
  headDim: 512,
  qRank: 1024,
  outputGroups: 8,
  outputRank: 1024,
  window: 128,
  indexerHeads: 64,
  indexerDim: 128,
  indexerTopK: 512,
  expertCount: 256,
  expertUsed: 6,
  expertWidth: 2048,
  trainedContext: 1048576,
  compressRatio: [0, 0, ...Array.from({ length: 41 }, (_, index) => (index % 2 === 0 ? 4 : 128))],
} as unknown as ModelShape;

interface Bytes {
  /** Of one routed expert: gate, up and down. */
  readonly expert: readonly [number, number, number];
  readonly embedding: number;
  readonly head: number;
  /** Of one layer without its routed experts, in two tensors. */
  readonly layer: number;
}

/** A model with the tensors that a plan tells apart, of the given sizes. */
export function modelOf(shape: ModelShape, bytes: Bytes): ModelDescription {
  const entry = (role: TensorRole, layer: number, size: number): ModelTensor =>
    ({ role, layer, tensor: { name: `${role}.${layer}`, bytes: size } }) as unknown as ModelTensor;
  const [gate, up, down] = bytes.expert;
  const tensors = [
    entry('tokenEmbedding', -1, bytes.embedding),
    ...Array.from({ length: shape.layerCount }, (_, layer) => [
      entry('attnQA', layer, Math.floor(bytes.layer / 4)),
      entry('attnOutputA', layer, bytes.layer - Math.floor(bytes.layer / 4)),
      entry('expertGate', layer, gate * shape.expertCount),
      entry('expertUp', layer, up * shape.expertCount),
      entry('expertDown', layer, down * shape.expertCount),
    ]).flat(),
    entry('output', -1, bytes.head),
  ];
  const total = tensors.reduce((sum, { tensor }) => sum + tensor.bytes, 0);
  const routed = (gate + up + down) * shape.expertCount * shape.layerCount;
  return {
    shape,
    tensors,
    bytes: { total, routed, nonRouted: total - routed },
  } as unknown as ModelDescription;
}

/** The file whose sizes are quoted everywhere: 8.20 GiB and 11 008 experts of 6.75 MiB. */
export const model = modelOf(flash, {
  expert: [2_162_688, 2_162_688, 2_752_512],
  embedding: 1_059_061_760,
  head: 562_626_560,
  layer: 166_946_504,
});

export function card(freeGib: number, kind: GpuFacts['kind'] = 'discrete'): GpuFacts {
  return {
    backend: 'cuda',
    index: 0,
    name: 'a card',
    kind,
    totalBytes: freeGib * gib,
    freeBytes: freeGib * gib,
  };
}

export type More = Omit<PlanRequest, 'gpu'> & { readonly ramGib?: number };

export function plan(gpu: GpuFacts, request: GpuRequest = {}, more: More = {}): GpuPlan {
  const { ramGib = 256, ...rest } = more;
  const facts = { memoryAvailable: ramGib * gib, gpu };
  const planned = planLoad(model, facts, { context: 32768, ...rest, gpu: request });
  if (planned.backend === 'cpu') {
    throw new Error('planned for the CPU');
  }
  return planned;
}

export function hostPlan(more: More = {}): HostPlan {
  const { ramGib = 256, ...rest } = more;
  const planned = planLoad(model, { memoryAvailable: ramGib * gib }, { context: 4096, ...rest });
  if (planned.backend !== 'cpu') {
    throw new Error('planned for a GPU');
  }
  return planned;
}

export function refusal(work: () => unknown): string {
  try {
    work();
  } catch (thrown) {
    expect(thrown).toBeInstanceOf(PlanError);
    return (thrown as Error).message;
  }
  throw new Error('planned');
}

export function texts({ reasons }: LoadPlan, kind: string): string {
  return reasons
    .filter((reason) => reason.kind === kind)
    .map(({ text }) => text)
    .join('\n');
}

/** Free memory with which exactly `bytes` can be used automatically, on a large card. */
export function freeFor(bytes: number): number {
  return (bytes + gib / 2) / 0.95 / gib;
}

/** Bytes of a session with 32768 positions. */
export function session(prefillChunk: number): number {
  return deviceSessionBytes(flash, {
    layers: { first: 0, last: 42 },
    context: 32768,
    prefillChunk,
    checkpoints: 4,
  }).total;
}
