/** Kinds of fields in the structs of ds4.h. `ptr` is a 64-bit address, `chars` a fixed text. */
export type FieldKind =
  'u32' | 'i32' | 'f32' | 'u64' | 'ptr' | { readonly chars: number } | { readonly u64s: number };

/**
 * The structs of native/include/ds4.h, fields in declaration order.
 * `ds4_abi_layout` tells each one's offsets at load, so a mismatch is an error and never a wild read.
 */
export const structs = {
  ds4_error: { size: 'u32', capacity: 'u32', text: 'ptr' },
  ds4_device_info: {
    size: 'u32',
    kind: 'u32',
    index: 'u32',
    core_count: 'u32',
    total_bytes: 'u64',
    free_bytes: 'u64',
    name: { chars: 128 },
    arch: { chars: 64 },
  },
  ds4_tensor: {
    size: 'u32',
    role: 'u32',
    layer: 'i32',
    type: 'u32',
    file: 'u32',
    dim_count: 'u32',
    dims: { u64s: 4 },
    offset: 'u64',
    bytes: 'u64',
  },
  ds4_shape: {
    size: 'u32',
    layer_count: 'u32',
    embedding: 'u32',
    vocab: 'u32',
    head_count: 'u32',
    head_dim: 'u32',
    rope_dims: 'u32',
    q_rank: 'u32',
    output_groups: 'u32',
    output_rank: 'u32',
    window: 'u32',
    indexer_heads: 'u32',
    indexer_dim: 'u32',
    indexer_top_k: 'u32',
    expert_count: 'u32',
    expert_used: 'u32',
    expert_shared: 'u32',
    expert_width: 'u32',
    hash_layers: 'u32',
    hc_count: 'u32',
    sinkhorn_iterations: 'u32',
    normalise_weights: 'u32',
    round_trips: 'u32',
    rms_epsilon: 'f32',
    hc_epsilon: 'f32',
    rope_base: 'f32',
    compress_rope_base: 'f32',
    yarn_factor: 'f32',
    yarn_beta_fast: 'f32',
    yarn_beta_slow: 'f32',
    expert_scale: 'f32',
    reserved: 'u32',
    yarn_original_context: 'u64',
    compress_ratio: 'ptr',
    clamp_routed: 'ptr',
    clamp_shared: 'ptr',
  },
  ds4_load_plan: {
    size: 'u32',
    device: 'u32',
    thread_count: 'u32',
    arithmetic: 'u32',
    source: 'u32',
    warm: 'u32',
    layer_first: 'u32',
    layer_last: 'u32',
    has_embedding: 'u32',
    has_head: 'u32',
    instruction_set: 'u32',
    placement: 'u32',
    upload_threads: 'u32',
    upload_slots: 'u32',
    upload_slot_bytes: 'u64',
    check_tensors: 'u32',
    lock_weights: 'u32',
    expert_slot_bytes: 'u64',
    expert_transit_bytes: 'u64',
    expert_host_bytes: 'u64',
    device_weight_bytes: 'u64',
    expert_policy: 'u32',
    read_threads: 'u32',
    page_slots: 'u32',
    pin_copies: 'u32',
    drop_read_pages: 'u32',
    leave_slots: 'u32',
  },
  ds4_expert: {
    size: 'u32',
    layer: 'u32',
    expert: 'u32',
    is_kept: 'u32',
    uses: 'u64',
  },
  ds4_simulation: {
    size: 'u32',
    kind: 'u32',
    vram_bytes: 'u64',
    used_bytes: 'u64',
    link_bytes_per_second: 'u64',
    mapped_bytes_per_second: 'u64',
    disk_bytes_per_second: 'u64',
    link_ns: 'u32',
    disk_ns: 'u32',
    fail_call: 'u32',
    fail_count: 'u32',
    fail_at: 'u64',
    device_count: 'u32',
    read_wait_us: 'u32',
  },
  ds4_model_args: {
    size: 'u32',
    path_count: 'u32',
    tensor_count: 'u32',
    reserved: 'u32',
    paths: 'ptr',
    path_bytes: 'ptr',
    tensors: 'ptr',
    shape: 'ptr',
    plan: 'ptr',
    telemetry: 'ptr',
  },
  ds4_model_info: {
    size: 'u32',
    thread_count: 'u32',
    instruction_set: 'u32',
    reserved: 'u32',
    weight_bytes: 'u64',
    mapped_bytes: 'u64',
    device_bytes: 'u64',
    locked_bytes: 'u64',
  },
  ds4_session_args: {
    size: 'u32',
    prefill_chunk: 'u32',
    context: 'u64',
    checkpoint_count: 'u32',
    reserved: 'u32',
  },
  ds4_session_sizes: {
    size: 'u32',
    reserved: 'u32',
    kv_bytes: 'u64',
    workspace_bytes: 'u64',
    checkpoint_bytes: 'u64',
    scratch_bytes: 'u64',
  },
  ds4_tap_record: {
    kind: 'u32',
    layer: 'u32',
    position: 'u64',
    value_count: 'u32',
    reserved: 'u32',
  },
  ds4_eval_args: {
    size: 'u32',
    token_count: 'u32',
    tokens: 'ptr',
    position: 'u64',
    hidden_in: 'ptr',
    hidden_out: 'ptr',
    logits: 'ptr',
    logits_rows: 'u32',
    candidate_count: 'u32',
    candidate_logit: 'ptr',
    candidate_id: 'ptr',
    tap_mask: 'u32',
    reserved: 'u32',
    tap: 'ptr',
    tap_bytes: 'u64',
  },
  ds4_eval_result: { size: 'u32', candidate_count: 'u32', position: 'u64', tap_bytes: 'u64' },
} as const satisfies Record<string, Record<string, FieldKind>>;

export type StructName = keyof typeof structs;
export type FieldsOf<Name extends StructName> = keyof (typeof structs)[Name] & string;

function measure(kind: FieldKind): { bytes: number; alignment: number } {
  if (typeof kind === 'object') {
    return 'chars' in kind
      ? { bytes: kind.chars, alignment: 1 }
      : { bytes: 8 * kind.u64s, alignment: 8 };
  }
  return kind === 'u64' || kind === 'ptr' ? { bytes: 8, alignment: 8 } : { bytes: 4, alignment: 4 };
}

/** Offsets and size of one struct in bytes, by the C rules for 64-bit targets. */
export interface StructLayout {
  readonly bytes: number;
  readonly offsets: ReadonlyMap<string, number>;
}

export function layoutOf(name: StructName): StructLayout {
  const offsets = new Map<string, number>();
  let end = 0;
  let widest = 1;
  for (const [field, kind] of Object.entries<FieldKind>(structs[name])) {
    const { bytes, alignment } = measure(kind);
    end = Math.ceil(end / alignment) * alignment;
    offsets.set(field, end);
    end += bytes;
    widest = Math.max(widest, alignment);
  }
  return { bytes: Math.ceil(end / widest) * widest, offsets };
}
