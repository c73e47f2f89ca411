import type { ModelDescription, ModelTensor } from '../model/index.js';
import { tensorRoles } from '../model/index.js';
import { Arena, ErrorSlot, Struct } from './abi.js';
import type { TelemetryHandle } from './abi.js';
import { layoutOf } from './layout.js';

/** The part of a model that one process evaluates. */
export interface LayerSlice {
  readonly first: number;
  /** Inclusive. */
  readonly last: number;
  /** Tokens come in; otherwise hidden states do. */
  readonly embedding: boolean;
  /** Logits go out. */
  readonly head: boolean;
}

/** `DS4_PLACE_*` of native/include/ds4.h: where a GPU backend puts the weights. */
export type Placement = 'auto' | 'resident' | 'mappedExperts' | 'streamExperts';
const placements: readonly Placement[] = ['auto', 'resident', 'mappedExperts', 'streamExperts'];

/** `DS4_SOURCE_*`: how weights leave the file; with `mmap`, a GPU's copy is made from the mapping, without pinned buffers. */
export type Source = 'mmap' | 'read' | 'direct';
const sources: readonly Source[] = ['mmap', 'read', 'direct'];

/** Which expert leaves its slot: the least recently used, or that weighed with how often it was used. */
export type ExpertPolicy = 'lru' | 'lfru';
const policies: readonly ExpertPolicy[] = ['lru', 'lfru'];

/** Memory for routed experts that are not resident, in bytes; `ds4_load_plan` has the meanings. */
export interface ExpertMemory {
  /** Device memory for copies of experts that stay. */
  readonly slotBytes: number;
  /** Device memory for experts that are used once and given up. */
  readonly transitBytes?: number;
  /** Pinned host memory for experts that device memory has no place for. */
  readonly hostBytes?: number;
  readonly policy?: ExpertPolicy;
}

/** What else the plan says about weights that are not simply resident. */
export interface WeightOptions {
  readonly experts?: ExpertMemory;
  /** Of the weights that are not routed experts, at most so many bytes in device memory; all by default. */
  readonly deviceWeightBytes?: number;
  /** Readers of missing weights. */
  readonly readThreads?: number;
  /** The weights of layers that are not routed experts take turns in so many slots. */
  readonly pageSlots?: number;
  /** What stays in host memory is read into pinned memory instead of pinning the file's mapping. */
  readonly pinCopies?: boolean;
  /** Weights in host memory may not be swapped out. */
  readonly lock?: boolean;
  /** The system need not keep what was uploaded in its page cache. */
  readonly dropReadPages?: boolean;
  /** Mapped experts: slots stay empty until `seedExperts`. */
  readonly leaveSlots?: boolean;
}

/** How weights reach a GPU. What is left out is up to the library. */
export interface Upload {
  /** Readers that fill the pinned buffers. */
  readonly threads?: number;
  /** Pinned buffers. */
  readonly slots?: number;
  readonly slotBytes?: number;
  /** Look through the file for values that are no numbers, and compare every copy with it, byte by byte. */
  readonly check?: boolean;
}

export type InstructionSet = 'auto' | 'plain' | 'avx2' | 'avx512';
export const instructionSets: readonly InstructionSet[] = ['auto', 'plain', 'avx2', 'avx512'];

export interface ModelArguments {
  readonly description: ModelDescription;
  readonly slice: LayerSlice;
  readonly device: number;
  readonly placement: Placement;
  readonly upload: Upload;
  readonly threads: number;
  readonly arithmetic: 'fast' | 'exact';
  readonly source: Source;
  readonly weights: WeightOptions;
  readonly warm: boolean;
  readonly roundTrips: boolean;
  readonly instructionSet: InstructionSet;
  readonly telemetry: TelemetryHandle;
}

const outputRoles = new Set<string>([
  'output',
  'outputNorm',
  'outputHcFn',
  'outputHcBase',
  'outputHcScale',
]);

export function wholeModel({ shape }: ModelDescription): LayerSlice {
  return { first: 0, last: shape.layerCount - 1, embedding: true, head: true };
}

export function belongsTo(slice: LayerSlice, { role, layer }: ModelTensor): boolean {
  if (layer >= 0) {
    return layer >= slice.first && layer <= slice.last;
  }
  return outputRoles.has(role) ? slice.head : slice.embedding;
}

/** A `ds4_model_args` with everything it points to, in one arena that the caller frees after the call. */
export function writeModelArguments(options: ModelArguments): {
  arena: Arena;
  args: Struct<'ds4_model_args'>;
  error: ErrorSlot;
  handleOffset: number;
} {
  const { description, slice } = options;
  const { shape, gguf } = description;
  const tensors = description.tensors.filter((tensor) => belongsTo(slice, tensor));
  const tensorBytes = layoutOf('ds4_tensor').bytes;
  const pathBytes = gguf.files.reduce((sum, file) => sum + 4 * file.path.length + 32, 0);
  const arena = new Arena(
    8192 +
      tensors.length * tensorBytes +
      pathBytes +
      3 * (4 * shape.layerCount + 16) +
      ErrorSlot.bytes,
  );

  const error = new ErrorSlot(arena);
  const handleOffset = arena.take(8);

  const table = arena.take(tensors.length * tensorBytes);
  tensors.forEach(({ role, layer, tensor }, index) => {
    const entry = new Struct(arena, 'ds4_tensor', table + index * tensorBytes);
    entry.setU32('role', tensorRoles[role]);
    entry.setI32('layer', layer);
    entry.setU32('type', tensor.type);
    entry.setU32('file', tensor.file);
    entry.setU32('dim_count', tensor.dims.length);
    for (let dim = 0; dim < 4; dim += 1) {
      entry.setU64('dims', tensor.dims[dim] ?? 1, dim);
    }
    entry.setU64('offset', tensor.offset);
    entry.setU64('bytes', tensor.bytes);
  });

  const paths = arena.take(8 * gguf.files.length);
  const sizes = arena.take(8 * gguf.files.length);
  gguf.files.forEach((file, index) => {
    arena.view.setBigUint64(sizes + 8 * index, BigInt(file.bytes), true);
    arena.view.setBigUint64(paths + 8 * index, arena.string(file.path), true);
  });

  const plan = new Struct(arena, 'ds4_load_plan');
  plan.setU32('device', options.device);
  plan.setU32('thread_count', options.threads);
  plan.setU32('arithmetic', options.arithmetic === 'exact' ? 1 : 0);
  plan.setU32('source', sources.indexOf(options.source));
  plan.setU32('warm', options.warm ? 1 : 0);
  plan.setU32('layer_first', slice.first);
  plan.setU32('layer_last', slice.last);
  plan.setU32('has_embedding', slice.embedding ? 1 : 0);
  plan.setU32('has_head', slice.head ? 1 : 0);
  plan.setU32('instruction_set', instructionSets.indexOf(options.instructionSet));
  plan.setU32('placement', placements.indexOf(options.placement));
  plan.setU32('upload_threads', options.upload.threads ?? 0);
  plan.setU32('upload_slots', options.upload.slots ?? 0);
  plan.setU64('upload_slot_bytes', options.upload.slotBytes ?? 0);
  plan.setU32('check_tensors', options.upload.check === true ? 1 : 0);
  writeWeightOptions(plan, options.weights);

  const args = new Struct(arena, 'ds4_model_args');
  args.setU32('path_count', gguf.files.length);
  args.setU32('tensor_count', tensors.length);
  args.setU64('paths', arena.address(paths));
  args.setU64('path_bytes', arena.address(sizes));
  args.setU64('tensors', arena.address(table));
  args.setU64('shape', writeShape(arena, options).address);
  args.setU64('plan', plan.address);
  args.setU64('telemetry', options.telemetry);
  return { arena, args, error, handleOffset };
}

function writeWeightOptions(plan: Struct<'ds4_load_plan'>, options: WeightOptions): void {
  const { experts } = options;
  plan.setU32('lock_weights', options.lock === true ? 1 : 0);
  plan.setU64('expert_slot_bytes', experts?.slotBytes ?? 0);
  plan.setU64('expert_transit_bytes', experts?.transitBytes ?? 0);
  plan.setU64('expert_host_bytes', experts?.hostBytes ?? 0);
  plan.setU32('expert_policy', policies.indexOf(experts?.policy ?? 'lru'));
  plan.setU64('device_weight_bytes', options.deviceWeightBytes ?? 0);
  plan.setU32('read_threads', options.readThreads ?? 0);
  plan.setU32('page_slots', options.pageSlots ?? 0);
  plan.setU32('pin_copies', options.pinCopies === true ? 1 : 0);
  plan.setU32('drop_read_pages', options.dropReadPages === true ? 1 : 0);
  plan.setU32('leave_slots', options.leaveSlots === true ? 1 : 0);
}

function writeShape(
  arena: Arena,
  { description, roundTrips }: ModelArguments,
): Struct<'ds4_shape'> {
  const { shape } = description;
  const out = new Struct(arena, 'ds4_shape');
  out.setU32('layer_count', shape.layerCount);
  out.setU32('embedding', shape.embedding);
  out.setU32('vocab', shape.vocab);
  out.setU32('head_count', shape.headCount);
  out.setU32('head_dim', shape.headDim);
  out.setU32('rope_dims', shape.ropeDims);
  out.setU32('q_rank', shape.qRank);
  out.setU32('output_groups', shape.outputGroups);
  out.setU32('output_rank', shape.outputRank);
  out.setU32('window', shape.window);
  out.setU32('indexer_heads', shape.indexerHeads);
  out.setU32('indexer_dim', shape.indexerDim);
  out.setU32('indexer_top_k', shape.indexerTopK);
  out.setU32('expert_count', shape.expertCount);
  out.setU32('expert_used', shape.expertUsed);
  out.setU32('expert_shared', shape.expertShared);
  out.setU32('expert_width', shape.expertWidth);
  out.setU32('hash_layers', shape.hashLayers);
  out.setU32('hc_count', shape.hcCount);
  out.setU32('sinkhorn_iterations', shape.sinkhornIterations);
  out.setU32('normalise_weights', shape.normaliseWeights ? 1 : 0);
  out.setU32('round_trips', roundTrips ? 1 : 0);
  out.setF32('rms_epsilon', shape.rmsEpsilon);
  out.setF32('hc_epsilon', shape.hcEpsilon);
  out.setF32('rope_base', shape.ropeBase);
  out.setF32('compress_rope_base', shape.compressRopeBase);
  out.setF32('yarn_factor', shape.yarnFactor);
  out.setF32('yarn_beta_fast', shape.yarnBetaFast);
  out.setF32('yarn_beta_slow', shape.yarnBetaSlow);
  out.setF32('expert_scale', shape.expertScale);
  out.setU64('yarn_original_context', shape.yarnOriginalContext);

  const ratios = arena.take(4 * shape.layerCount);
  arena.uint32(ratios, shape.layerCount).set(shape.compressRatio);
  out.setU64('compress_ratio', arena.address(ratios));
  const routed = arena.take(4 * shape.layerCount);
  arena.float32(routed, shape.layerCount).set(shape.clampRouted);
  out.setU64('clamp_routed', arena.address(routed));
  const shared = arena.take(4 * shape.layerCount);
  arena.float32(shared, shape.layerCount).set(shape.clampShared);
  out.setU64('clamp_shared', arena.address(shared));
  return out;
}
