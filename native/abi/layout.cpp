/* Where the fields of each struct lie, as a table for bindings to compare themselves with. The numbers are pinned: bindings
 * have them built in, and a struct that moves a field is another ABI. */
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "abi/sized_struct.h"
#include "include/ds4.h"

namespace ds4::abi {

namespace {

#define DS4_AT(type, field) static_cast<uint32_t>(offsetof(type, field))

constexpr uint32_t kError[] = {sizeof(ds4_error), DS4_AT(ds4_error, size), DS4_AT(ds4_error, capacity),
                               DS4_AT(ds4_error, text)};

constexpr uint32_t kDeviceInfo[] = {
    sizeof(ds4_device_info),          DS4_AT(ds4_device_info, size),       DS4_AT(ds4_device_info, kind),
    DS4_AT(ds4_device_info, index),   DS4_AT(ds4_device_info, core_count), DS4_AT(ds4_device_info, total_bytes),
    DS4_AT(ds4_device_info, free_bytes), DS4_AT(ds4_device_info, name),    DS4_AT(ds4_device_info, arch)};

constexpr uint32_t kTensor[] = {sizeof(ds4_tensor),          DS4_AT(ds4_tensor, size),   DS4_AT(ds4_tensor, role),
                                DS4_AT(ds4_tensor, layer),   DS4_AT(ds4_tensor, type),   DS4_AT(ds4_tensor, file),
                                DS4_AT(ds4_tensor, dim_count), DS4_AT(ds4_tensor, dims), DS4_AT(ds4_tensor, offset),
                                DS4_AT(ds4_tensor, bytes)};

constexpr uint32_t kShape[] = {sizeof(ds4_shape),
                               DS4_AT(ds4_shape, size),
                               DS4_AT(ds4_shape, layer_count),
                               DS4_AT(ds4_shape, embedding),
                               DS4_AT(ds4_shape, vocab),
                               DS4_AT(ds4_shape, head_count),
                               DS4_AT(ds4_shape, head_dim),
                               DS4_AT(ds4_shape, rope_dims),
                               DS4_AT(ds4_shape, q_rank),
                               DS4_AT(ds4_shape, output_groups),
                               DS4_AT(ds4_shape, output_rank),
                               DS4_AT(ds4_shape, window),
                               DS4_AT(ds4_shape, indexer_heads),
                               DS4_AT(ds4_shape, indexer_dim),
                               DS4_AT(ds4_shape, indexer_top_k),
                               DS4_AT(ds4_shape, expert_count),
                               DS4_AT(ds4_shape, expert_used),
                               DS4_AT(ds4_shape, expert_shared),
                               DS4_AT(ds4_shape, expert_width),
                               DS4_AT(ds4_shape, hash_layers),
                               DS4_AT(ds4_shape, hc_count),
                               DS4_AT(ds4_shape, sinkhorn_iterations),
                               DS4_AT(ds4_shape, normalise_weights),
                               DS4_AT(ds4_shape, round_trips),
                               DS4_AT(ds4_shape, rms_epsilon),
                               DS4_AT(ds4_shape, hc_epsilon),
                               DS4_AT(ds4_shape, rope_base),
                               DS4_AT(ds4_shape, compress_rope_base),
                               DS4_AT(ds4_shape, yarn_factor),
                               DS4_AT(ds4_shape, yarn_beta_fast),
                               DS4_AT(ds4_shape, yarn_beta_slow),
                               DS4_AT(ds4_shape, expert_scale),
                               DS4_AT(ds4_shape, reserved),
                               DS4_AT(ds4_shape, yarn_original_context),
                               DS4_AT(ds4_shape, compress_ratio),
                               DS4_AT(ds4_shape, clamp_routed),
                               DS4_AT(ds4_shape, clamp_shared)};

constexpr uint32_t kLoadPlan[] = {
    sizeof(ds4_load_plan),
    DS4_AT(ds4_load_plan, size),
    DS4_AT(ds4_load_plan, device),
    DS4_AT(ds4_load_plan, thread_count),
    DS4_AT(ds4_load_plan, arithmetic),
    DS4_AT(ds4_load_plan, source),
    DS4_AT(ds4_load_plan, warm),
    DS4_AT(ds4_load_plan, layer_first),
    DS4_AT(ds4_load_plan, layer_last),
    DS4_AT(ds4_load_plan, has_embedding),
    DS4_AT(ds4_load_plan, has_head),
    DS4_AT(ds4_load_plan, instruction_set),
    DS4_AT(ds4_load_plan, placement),
    DS4_AT(ds4_load_plan, upload_threads),
    DS4_AT(ds4_load_plan, upload_slots),
    DS4_AT(ds4_load_plan, upload_slot_bytes),
    DS4_AT(ds4_load_plan, check_tensors),
    DS4_AT(ds4_load_plan, lock_weights),
    DS4_AT(ds4_load_plan, expert_slot_bytes),
    DS4_AT(ds4_load_plan, expert_transit_bytes),
    DS4_AT(ds4_load_plan, expert_host_bytes),
    DS4_AT(ds4_load_plan, device_weight_bytes),
    DS4_AT(ds4_load_plan, expert_policy),
    DS4_AT(ds4_load_plan, read_threads),
    DS4_AT(ds4_load_plan, page_slots),
    DS4_AT(ds4_load_plan, pin_copies),
    DS4_AT(ds4_load_plan, drop_read_pages),
    DS4_AT(ds4_load_plan, leave_slots),
};

constexpr uint32_t kSimulation[] = {
    sizeof(ds4_simulation),
    DS4_AT(ds4_simulation, size),
    DS4_AT(ds4_simulation, kind),
    DS4_AT(ds4_simulation, vram_bytes),
    DS4_AT(ds4_simulation, used_bytes),
    DS4_AT(ds4_simulation, link_bytes_per_second),
    DS4_AT(ds4_simulation, mapped_bytes_per_second),
    DS4_AT(ds4_simulation, disk_bytes_per_second),
    DS4_AT(ds4_simulation, link_ns),
    DS4_AT(ds4_simulation, disk_ns),
    DS4_AT(ds4_simulation, fail_call),
    DS4_AT(ds4_simulation, fail_count),
    DS4_AT(ds4_simulation, fail_at),
    DS4_AT(ds4_simulation, device_count),
    DS4_AT(ds4_simulation, read_wait_us),
};

constexpr uint32_t kModelArgs[] = {
    sizeof(ds4_model_args),
    DS4_AT(ds4_model_args, size),
    DS4_AT(ds4_model_args, path_count),
    DS4_AT(ds4_model_args, tensor_count),
    DS4_AT(ds4_model_args, reserved),
    DS4_AT(ds4_model_args, paths),
    DS4_AT(ds4_model_args, path_bytes),
    DS4_AT(ds4_model_args, tensors),
    DS4_AT(ds4_model_args, shape),
    DS4_AT(ds4_model_args, plan),
    DS4_AT(ds4_model_args, telemetry),
};

constexpr uint32_t kModelInfo[] = {
    sizeof(ds4_model_info),
    DS4_AT(ds4_model_info, size),
    DS4_AT(ds4_model_info, thread_count),
    DS4_AT(ds4_model_info, instruction_set),
    DS4_AT(ds4_model_info, reserved),
    DS4_AT(ds4_model_info, weight_bytes),
    DS4_AT(ds4_model_info, mapped_bytes),
    DS4_AT(ds4_model_info, device_bytes),
    DS4_AT(ds4_model_info, locked_bytes),
};

constexpr uint32_t kExpert[] = {
    sizeof(ds4_expert),
    DS4_AT(ds4_expert, size),
    DS4_AT(ds4_expert, layer),
    DS4_AT(ds4_expert, expert),
    DS4_AT(ds4_expert, is_kept),
    DS4_AT(ds4_expert, uses),
};

constexpr uint32_t kSessionArgs[] = {
    sizeof(ds4_session_args),
    DS4_AT(ds4_session_args, size),
    DS4_AT(ds4_session_args, prefill_chunk),
    DS4_AT(ds4_session_args, context),
    DS4_AT(ds4_session_args, checkpoint_count),
    DS4_AT(ds4_session_args, reserved),
};

constexpr uint32_t kSessionSizes[] = {
    sizeof(ds4_session_sizes),
    DS4_AT(ds4_session_sizes, size),
    DS4_AT(ds4_session_sizes, reserved),
    DS4_AT(ds4_session_sizes, kv_bytes),
    DS4_AT(ds4_session_sizes, workspace_bytes),
    DS4_AT(ds4_session_sizes, checkpoint_bytes),
    DS4_AT(ds4_session_sizes, scratch_bytes),
};

constexpr uint32_t kTapRecord[] = {
    sizeof(ds4_tap_record),
    DS4_AT(ds4_tap_record, kind),
    DS4_AT(ds4_tap_record, layer),
    DS4_AT(ds4_tap_record, position),
    DS4_AT(ds4_tap_record, value_count),
    DS4_AT(ds4_tap_record, reserved),
};

constexpr uint32_t kEvalArgs[] = {
    sizeof(ds4_eval_args),
    DS4_AT(ds4_eval_args, size),
    DS4_AT(ds4_eval_args, token_count),
    DS4_AT(ds4_eval_args, tokens),
    DS4_AT(ds4_eval_args, position),
    DS4_AT(ds4_eval_args, hidden_in),
    DS4_AT(ds4_eval_args, hidden_out),
    DS4_AT(ds4_eval_args, logits),
    DS4_AT(ds4_eval_args, logits_rows),
    DS4_AT(ds4_eval_args, candidate_count),
    DS4_AT(ds4_eval_args, candidate_logit),
    DS4_AT(ds4_eval_args, candidate_id),
    DS4_AT(ds4_eval_args, tap_mask),
    DS4_AT(ds4_eval_args, reserved),
    DS4_AT(ds4_eval_args, tap),
    DS4_AT(ds4_eval_args, tap_bytes),
};

constexpr uint32_t kEvalResult[] = {
    sizeof(ds4_eval_result),
    DS4_AT(ds4_eval_result, size),
    DS4_AT(ds4_eval_result, candidate_count),
    DS4_AT(ds4_eval_result, position),
    DS4_AT(ds4_eval_result, tap_bytes),
};

/* Pins: sizeof, then each offset, written out once by hand. */
template <size_t N> constexpr bool pinned(const uint32_t (&layout)[N], const uint32_t (&numbers)[N]) {
    return std::equal(layout, layout + N, numbers);
}

static_assert(pinned(kError, {16, 0, 4, 8}));
static_assert(pinned(kDeviceInfo, {224, 0, 4, 8, 12, 16, 24, 32, 160}));
static_assert(pinned(kTensor, {72, 0, 4, 8, 12, 16, 20, 24, 56, 64}));
static_assert(pinned(kShape, {160, 0,  4,  8,  12, 16, 20, 24,  28,  32,  36,  40,  44,  48,  52,  56,  60,  64, 68,
                              72,  76, 80, 84, 88, 92, 96, 100, 104, 108, 112, 116, 120, 124, 128, 136, 144, 152}));
static_assert(pinned(kLoadPlan, {128, 0,  4,  8,  12, 16, 20, 24, 28, 32,  36,  40,  44,  48,
                                 52,  56, 64, 68, 72, 80, 88, 96, 104, 108, 112, 116, 120, 124}));
static_assert(pinned(kSimulation, {80, 0, 4, 8, 16, 24, 32, 40, 48, 52, 56, 60, 64, 72, 76}));
static_assert(pinned(kModelArgs, {64, 0, 4, 8, 12, 16, 24, 32, 40, 48, 56}));
static_assert(pinned(kModelInfo, {48, 0, 4, 8, 12, 16, 24, 32, 40}));
static_assert(pinned(kExpert, {24, 0, 4, 8, 12, 16}));
static_assert(pinned(kSessionArgs, {24, 0, 4, 8, 16, 20}));
static_assert(pinned(kSessionSizes, {40, 0, 4, 8, 16, 24, 32}));
static_assert(pinned(kTapRecord, {24, 0, 4, 8, 16, 20}));
static_assert(pinned(kEvalArgs, {96, 0, 4, 8, 16, 24, 32, 40, 48, 52, 56, 64, 72, 76, 80, 88}));
static_assert(pinned(kEvalResult, {24, 0, 4, 8, 16}));

struct NamedLayout {
    const char               *name;
    std::span<const uint32_t> layout;
};

constexpr NamedLayout kLayouts[] = {
    {"ds4_error", kError},
    {"ds4_device_info", kDeviceInfo},
    {"ds4_tensor", kTensor},
    {"ds4_shape", kShape},
    {"ds4_load_plan", kLoadPlan},
    {"ds4_simulation", kSimulation},
    {"ds4_model_args", kModelArgs},
    {"ds4_model_info", kModelInfo},
    {"ds4_expert", kExpert},
    {"ds4_session_args", kSessionArgs},
    {"ds4_session_sizes", kSessionSizes},
    {"ds4_tap_record", kTapRecord},
    {"ds4_eval_args", kEvalArgs},
    {"ds4_eval_result", kEvalResult},
};

/* Holds until a field is appended; then the left side stays and its part of this line goes. */
static_assert(kFirstSize<ds4_device_info> == sizeof(ds4_device_info) && kFirstSize<ds4_tensor> == sizeof(ds4_tensor) &&
              kFirstSize<ds4_shape> == sizeof(ds4_shape) && kFirstSize<ds4_model_args> == sizeof(ds4_model_args) &&
              kFirstSize<ds4_expert> == sizeof(ds4_expert) &&
              kFirstSize<ds4_session_args> == sizeof(ds4_session_args) &&
              kFirstSize<ds4_eval_args> == sizeof(ds4_eval_args) &&
              kFirstSize<ds4_eval_result> == sizeof(ds4_eval_result));

} // namespace

} // namespace ds4::abi

uint32_t ds4_abi_version(void) { return DS4_ABI_VERSION; }

uint32_t ds4_abi_layout(const char *name, uint32_t *values, uint32_t capacity) {
    if (name == nullptr) {
        return 0;
    }
    for (const ds4::abi::NamedLayout &entry : ds4::abi::kLayouts) {
        if (std::strcmp(entry.name, name) == 0) {
            const size_t written = values == nullptr ? 0 : std::min<size_t>(capacity, entry.layout.size());
            std::copy_n(entry.layout.begin(), written, values);
            return static_cast<uint32_t>(entry.layout.size());
        }
    }
    return 0;
}
