#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "abi/guard.h"
#include "abi/handles.h"
#include "abi/sized_struct.h"
#include "backend/ops.h"

namespace ds4::abi {

namespace {

/* The caller's arguments in this library's own structs. */
struct ModelArgs {
    std::vector<runtime::WeightFile>    files;
    std::vector<ds4_tensor>             tensors;
    ds4_shape                           shape;
    ds4_load_plan                       plan;
    std::shared_ptr<runtime::Telemetry> telemetry;
};

constexpr uint32_t kMostUploadThreads = 256;
constexpr uint32_t kMostUploadSlots = 4096;
constexpr uint32_t kMostPageSlots = 4096;

void check_choice(const char *name, uint32_t value, uint32_t most) {
    if (value > most) {
        throw Failure(DS4_E_ARGUMENT, std::string(name) + " is " + std::to_string(value) +
                                          ", which this library does not know");
    }
}

void check_count(const char *name, uint32_t value, uint32_t most) {
    if (value > most) {
        throw Failure(DS4_E_ARGUMENT, std::string(name) + " is " + std::to_string(value) + "; the most is " +
                                          std::to_string(most));
    }
}

ModelArgs read_args(const ds4_model_args *given) {
    const ds4_model_args args = read_struct(given, "ds4_model_args");
    if (args.telemetry == nullptr || args.paths == nullptr || args.path_bytes == nullptr || args.tensors == nullptr) {
        throw Failure(DS4_E_ARGUMENT, "telemetry, paths, path_bytes or tensors of ds4_model_args is NULL");
    }
    ModelArgs known;
    known.telemetry = args.telemetry->block;
    known.shape = read_struct(args.shape, "ds4_shape");
    known.plan = read_struct(args.plan, "ds4_load_plan");
    known.tensors = read_structs(args.tensors, args.tensor_count, "ds4_tensor");
    for (uint32_t i = 0; i < args.path_count; ++i) {
        if (args.paths[i] == nullptr) {
            throw Failure(DS4_E_ARGUMENT, "path " + std::to_string(i) + " is NULL");
        }
        known.files.push_back({args.paths[i], args.path_bytes[i]});
    }
    check_choice("arithmetic", known.plan.arithmetic, DS4_ARITHMETIC_EXACT);
    check_choice("source", known.plan.source, DS4_SOURCE_DIRECT);
    check_choice("warm", known.plan.warm, 1);
    check_choice("instruction_set", known.plan.instruction_set, DS4_ISA_AVX512);
    check_choice("placement", known.plan.placement, DS4_PLACE_STREAM_EXPERTS);
    check_choice("lock_weights", known.plan.lock_weights, 1);
    check_choice("expert_policy", known.plan.expert_policy, DS4_POLICY_LFRU);
    check_choice("pin_copies", known.plan.pin_copies, 1);
    check_choice("drop_read_pages", known.plan.drop_read_pages, 1);
    check_choice("leave_slots", known.plan.leave_slots, 1);
    check_count("read_threads", known.plan.read_threads, kMostUploadThreads);
    check_count("page_slots", known.plan.page_slots, kMostPageSlots);
    check_choice("check_tensors", known.plan.check_tensors, 1);
    check_count("upload_threads", known.plan.upload_threads, kMostUploadThreads);
    check_count("upload_slots", known.plan.upload_slots, kMostUploadSlots);
    return known;
}

runtime::WeightPlan weight_plan(const ds4_load_plan &plan) {
    runtime::WeightPlan known;
    switch (plan.source) {
    case DS4_SOURCE_READ: known.source = runtime::WeightSource::read; break;
    case DS4_SOURCE_DIRECT: known.source = runtime::WeightSource::direct; break;
    default: known.source = runtime::WeightSource::mmap; break;
    }
    switch (plan.placement) {
    case DS4_PLACE_RESIDENT: known.placement = runtime::WeightPlacement::resident; break;
    case DS4_PLACE_MAPPED_EXPERTS: known.placement = runtime::WeightPlacement::mapped_experts; break;
    case DS4_PLACE_STREAM_EXPERTS: known.placement = runtime::WeightPlacement::stream_experts; break;
    default: break;
    }
    known.upload = {plan.upload_threads, plan.upload_slots, plan.upload_slot_bytes, plan.drop_read_pages == 1};
    /* Host backends use the mapping itself. */
    known.upload.from_mapping =
        known.placement != runtime::WeightPlacement::automatic && known.source == runtime::WeightSource::mmap;
    known.upload.compare = plan.check_tensors == 1;
    known.most_device_bytes = plan.device_weight_bytes;
    known.pin_copies = plan.pin_copies == 1;
    known.lock = plan.lock_weights == 1;
    return known;
}

std::shared_ptr<model::Model> load(const ModelArgs &args) {
    const runtime::PhaseScope phase(*args.telemetry, DS4_PHASE_LOAD);
    const model::Shape        shape = model::Shape::checked(args.shape);
    const model::Slice        slice = model::Slice::checked(args.plan, shape);
    args.telemetry->poll_cancel("loading the model");
    args.telemetry->set(DS4_WORD_TOKENS_DONE, 0);
    for (size_t word = DS4_WORD_EVALS; word < DS4_WORD_COUNT; ++word) {
        args.telemetry->set(word, 0);
    }
    backend::Backend backend = backend::open_backend({
        .device = args.plan.device,
        .threads = args.plan.thread_count,
        .exact = args.plan.arithmetic == DS4_ARITHMETIC_EXACT,
        .instruction_set = args.plan.instruction_set,
        .cancel = args.telemetry->words() + DS4_WORD_CANCEL,
        .words = args.telemetry->words(),
    });
    const model::WeightSources sources{
        .files = args.files,
        .tensors = args.tensors,
        .plan = weight_plan(args.plan),
        .warm = args.plan.warm == 1,
        .experts = {.slot_bytes = args.plan.expert_slot_bytes,
                    .transit_bytes = args.plan.expert_transit_bytes,
                    .host_bytes = args.plan.expert_host_bytes,
                    .policy = args.plan.expert_policy == DS4_POLICY_LFRU ? runtime::ReplacementPolicy::lfru
                                                                        : runtime::ReplacementPolicy::lru},
        .page_slots = args.plan.page_slots,
        .read_threads = args.plan.read_threads,
        .leave_slots = args.plan.leave_slots == 1,
    };
    return std::make_shared<model::Model>(std::move(backend), shape, slice, sources, args.telemetry);
}

} // namespace

} // namespace ds4::abi

ds4_status ds4_model_open(const ds4_model_args *args, ds4_model **model, ds4_error *error) {
    using namespace ds4;
    return abi::guarded(error, [&] {
        if (model == nullptr) {
            throw Failure(DS4_E_ARGUMENT, "model is NULL");
        }
        *model = nullptr;
        auto opened = std::make_unique<ds4_model>();
        opened->loaded = std::make_shared<abi::LoadedModel>();
        opened->loaded->thread.run([&] { opened->loaded->model = abi::load(abi::read_args(args)); });
        *model = opened.release();
    });
}

void ds4_model_close(ds4_model *model) { const std::unique_ptr<ds4_model> owned(model); }

ds4_status ds4_model_describe(ds4_model *model, ds4_model_info *info, ds4_error *error) {
    using namespace ds4;
    return abi::guarded(error, [&] {
        if (model == nullptr) {
            throw Failure(DS4_E_ARGUMENT, "model is NULL");
        }
        const model::Model &known = *model->loaded->model;
        ds4_model_info      filled{};
        filled.thread_count = known.backend().threads;
        filled.instruction_set = known.backend().instruction_set;
        filled.weight_bytes = known.store().weight_bytes();
        filled.mapped_bytes = known.store().mapped_bytes();
        filled.locked_bytes = known.store().locked_bytes();
        filled.device_bytes = known.backend().device->reads_host_memory() ? 0 : known.store().device_bytes();
        abi::write_struct(info, filled, "ds4_model_info");
    });
}
