#include "backend/gpu/gpu_ops.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "failure.h"

namespace ds4::backend::gpu {

namespace {

/* In step_memory_. */
constexpr size_t kStepState = 0;
constexpr size_t kZeroState = 64; /* what ops outside a step see */
constexpr size_t kTokenIds = 128;

/* So many recordings are kept; a caller with more shapes than that gains nothing from them. */
constexpr size_t kMostRecorded = 16;

size_t most_scratch(const OpsLimits &limits) {
    return std::max({hc_scratch(limits), compress_scratch(limits), indexer_scratch(limits), attention_scratch(limits),
                     project_scratch(limits), experts_scratch(limits), route_scratch(limits), best_scratch(limits)});
}

size_t most_activation_scratch(const OpsLimits &limits) {
    return std::max(project_activation_scratch(limits), experts_activation_scratch(limits));
}

} // namespace

GpuOps::GpuOps(GpuDevice &device, bool exact)
    : device_(device), exact_(exact), stream_{device.stream(), device.facts().early_start} {
    device_.make_current();
    try {
        for (gpuEvent_t &event : paced_) {
            check(gpuEventCreateWithFlags(&event, gpuEventDisableTiming), "create an event");
        }
        for (Staging &staging : staging_) {
            check(gpuEventCreateWithFlags(&staging.read, gpuEventDisableTiming), "create an event");
        }
        reserve_tokens(1);
    } catch (...) {
        free_all();
        throw;
    }
}

GpuOps::~GpuOps() {
    free_all();
}

void GpuOps::free_all() noexcept {
    static_cast<void>(gpuSetDevice(static_cast<int>(device_.index())));
    abandon_step();
    if (!device_.settle()) {
        return;
    }
    forget_recorded();
    for (const gpuEvent_t event : paced_) {
        if (event != nullptr) {
            static_cast<void>(gpuEventDestroy(event));
        }
    }
    for (const Staging &staging : staging_) {
        if (staging.read != nullptr) {
            static_cast<void>(gpuEventDestroy(staging.read));
        }
        if (staging.data != nullptr) {
            static_cast<void>(gpuFreeHost(staging.data));
        }
    }
}

bool GpuOps::supports(quant::Type type) const {
    switch (type) {
    case quant::Type::f32:
    case quant::Type::f16:
    case quant::Type::bf16:
    case quant::Type::q8_0:
    case quant::Type::mxfp4:
    case quant::Type::q2_k:
    case quant::Type::q4_k:
    case quant::Type::q5_k:
    case quant::Type::q6_k:
    case quant::Type::iq2_xxs: return true;
    default: return false;
    }
}

/* ---- what kernels are given ------------------------------------------------------------------------ */

Position GpuOps::at(uint64_t position) const {
    const auto *memory = step_memory_.as<std::byte>();
    const auto *step = reinterpret_cast<const StepState *>(memory + (in_step_ ? kStepState : kZeroState));
    return {step, static_cast<int64_t>(position - (in_step_ ? step_.position : 0))};
}

const int32_t *GpuOps::device_tokens(const int32_t *host, int64_t count) {
    const int32_t *first = step_.tokens.data();
    if (in_step_ && host >= first && host + count <= first + step_.tokens.size()) {
        return reinterpret_cast<const int32_t *>(step_memory_.as<std::byte>() + kTokenIds) + (host - first);
    }
    if (recording_) {
        throw Failure(DS4_E_INTERNAL, "a recorded step was given token ids that are not its own");
    }
    const size_t bytes = static_cast<size_t>(count) * sizeof(int32_t);
    std::byte   *ids = grown(other_tokens_, bytes, "token ids");
    device_.copy_in(ids, host, bytes);
    return reinterpret_cast<const int32_t *>(ids);
}

RopeTable GpuOps::rope_table(const Rope &rope) {
    RopeTable table{};
    if (rope.dims / 2 > RopeTable::kMostPairs) {
        throw Failure(DS4_E_UNSUPPORTED, "the " DS4_GPU_BACKEND " backend rotates at most " +
                                             std::to_string(2 * RopeTable::kMostPairs) + " values of a vector, not " +
                                             std::to_string(rope.dims));
    }
    table.pairs = static_cast<int32_t>(rope.dims / 2);
    std::copy_n(rope.frequency, table.pairs, table.frequency);
    return table;
}

/* ---- memory of the ops' own ------------------------------------------------------------------------ */

std::byte *GpuOps::grown(Allocation &allocation, size_t bytes, const char *what) {
    begun_experts_ = {}; /* whoever asks may write over them */
    if (bytes > allocation.bytes()) {
        if (recording_) {
            throw Failure(DS4_E_INTERNAL, std::string("a recorded step needs more ") + what + " than before");
        }
        forget_recorded(); /* they hold the old address */
        allocation = {};
        allocation = device_.allocate(bytes, what);
    }
    return allocation.as<std::byte>();
}

std::byte *GpuOps::scratch(size_t bytes) {
    std::byte *data = grown(scratch_, bytes, "intermediates");
    if (bytes != 0) {
        spoil(stream_, data, bytes);
    }
    return data;
}

std::byte *GpuOps::activation_scratch(size_t bytes) {
    return grown(activation_scratch_, bytes, "8-bit activations");
}

void GpuOps::reserve_tokens(size_t count) {
    if (count <= token_capacity_) {
        return;
    }
    const size_t bytes = kTokenIds + count * sizeof(int32_t);
    /* Copies out of the old buffers may be on their way. */
    device_.wait(stream_.handle, "finish earlier work");
    token_capacity_ = 0;
    for (Staging &staging : staging_) {
        if (staging.data != nullptr) {
            static_cast<void>(gpuFreeHost(staging.data));
            staging.data = nullptr;
        }
        void *data = nullptr;
        check(gpuHostAlloc(&data, bytes, gpuHostAllocDefault), "pin memory for token ids");
        staging.data = static_cast<std::byte *>(data);
        std::memset(data, 0, bytes);
    }
    grown(step_memory_, bytes, "token ids");
    token_capacity_ = count;
}

void GpuOps::prepare(const OpsLimits &limits) {
    device_.make_current();
    reserve_tokens(static_cast<size_t>(limits.tokens));
    grown(scratch_, most_scratch(limits), "intermediates");
    grown(activation_scratch_, most_activation_scratch(limits), "8-bit activations");
}

uint64_t GpuOps::scratch_bytes(const OpsLimits &limits) const {
    return most_scratch(limits) + most_activation_scratch(limits) + kTokenIds +
           static_cast<uint64_t>(limits.tokens) * sizeof(int32_t);
}

/* ---- steps ----------------------------------------------------------------------------------------- */

void GpuOps::upload_step() {
    reserve_tokens(step_.tokens.size());
    Staging &staging = staging_[steps_++ % 2];
    device_.wait(staging.read, "finish an earlier step");
    const StepState state{step_.position};
    const size_t    token_bytes = step_.tokens.size_bytes();
    std::memcpy(staging.data + kStepState, &state, sizeof state);
    if (token_bytes != 0) {
        std::memcpy(staging.data + kTokenIds, step_.tokens.data(), token_bytes);
    }
    check(gpuMemcpyAsync(step_memory_.as<std::byte>(), staging.data, kTokenIds + token_bytes, gpuMemcpyHostToDevice,
                         stream_.handle),
          "start a step");
    check(gpuEventRecord(staging.read, stream_.handle), "start a step");
}

/* A step of a shape runs plainly when it is first seen, so that all memory is taken and all code loaded; it is recorded
 * the second time and replayed from then on. Only single tokens: there the time to start a kernel is what counts. */
bool GpuOps::begin_step(const Step &step) {
    device_.make_current();
    step_ = step;
    upload_step();
    /* Kernels of a batch fill the card: one that starts early only takes room from the one in front. */
    stream_.early_start = device_.facts().early_start && step.tokens.size() == 1;
    in_step_ = true;
    if (step.shape == 0 || step.tokens.size() != 1) {
        return false;
    }
    if (!recorded_.contains(step.shape)) {
        if (recorded_.size() >= kMostRecorded) {
            forget_recorded();
        }
        recorded_[step.shape] = nullptr;
        return false;
    }
    if (const gpuGraphExec_t runnable = recorded_[step.shape]; runnable != nullptr) {
        check(gpuGraphLaunch(runnable, stream_.handle), "run a recorded step");
        return true;
    }
    check(gpuStreamBeginCapture(stream_.handle, gpuStreamCaptureModeThreadLocal), "record a step");
    recording_ = true;
    return false;
}

void GpuOps::end_step() {
    in_step_ = false;
    if (!recording_) {
        return;
    }
    recording_ = false;
    gpuGraph_t graph = nullptr;
    check(gpuStreamEndCapture(stream_.handle, &graph), "record a step");
    gpuGraphExec_t   runnable = nullptr;
    const gpuError_t error = gpuGraphInstantiateWithFlags(&runnable, graph, 0);
    static_cast<void>(gpuGraphDestroy(graph));
    check(error, "record a step");
    recorded_[step_.shape] = runnable;
    check(gpuGraphLaunch(runnable, stream_.handle), "run a recorded step");
}

void GpuOps::abandon_step() noexcept {
    in_step_ = false;
    if (recording_) {
        recording_ = false;
        gpuGraph_t graph = nullptr;
        if (gpuStreamEndCapture(stream_.handle, &graph) == gpuSuccess && graph != nullptr) {
            static_cast<void>(gpuGraphDestroy(graph));
        }
        static_cast<void>(gpuGetLastError());
    }
}

void GpuOps::forget_recorded() noexcept {
    for (const auto &[shape, runnable] : recorded_) {
        if (runnable != nullptr && device_.settle()) { /* it may still run */
            static_cast<void>(gpuGraphExecDestroy(runnable));
        }
    }
    recorded_.clear();
}

void GpuOps::pace() {
    if (recording_) {
        return;
    }
    /* The layer before the one that was just issued is done: the device has one layer to work on meanwhile. */
    check(gpuEventRecord(paced_[layers_issued_ % 2], stream_.handle), "mark a layer's end");
    ++layers_issued_;
    device_.wait(paced_[layers_issued_ % 2], "evaluate a layer");
}

} // namespace ds4::backend::gpu
