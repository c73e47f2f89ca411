#include <cstring>
#include <string>
#include <vector>

#include "backend/gpu/launch.h"
#include "check.h"

using namespace ds4;
using namespace ds4::backend::gpu;

namespace {

DS4_KERNEL sum_block(const float *x, float *out) {
    __shared__ float sums[32];
    const float sum = group_sum(x[blockIdx.x * blockDim.x + threadIdx.x]);
    if (lane() == 0) {
        sums[group()] = sum;
    }
    sync_block();
    if (group() == 0) {
        const float all = group_sum(lane() < groups() ? sums[lane()] : 0.0f);
        if (lane() == 0) {
            out[blockIdx.x] = all;
        }
    }
}

DS4_KERNEL without_barrier(int *out) {
    DS4_SHARED(int, values);
    values[threadIdx.x] = static_cast<int>(threadIdx.x);
    out[threadIdx.x] += values[blockDim.x - 1 - threadIdx.x] == static_cast<int>(blockDim.x - 1 - threadIdx.x) ? 1 : 0;
}

DS4_KERNEL odd_lanes_leave_early(int *out) {
    if (threadIdx.x % 2 == 0) {
        out[threadIdx.x] = shuffle_xor(1, 1);
    }
}

DS4_KERNEL second_group_skips_barrier() {
    if (group() == 0) {
        sync_block();
    }
}

DS4_KERNEL groups_loop_apart(int *out) { /* each group has a count of its own */
    int value = 0;
    for (int i = 0; i <= group(); ++i) {
        value += shuffle(static_cast<int>(threadIdx.x), 31 - lane()) + (ballot(lane() < 3) == 7u ? 1 : 0);
    }
    out[threadIdx.x] = value;
}

std::string failure_of(void (*call)()) {
    try {
        call();
    } catch (const Failure &failure) {
        return failure.what();
    }
    return "";
}

struct DeviceInts {
    explicit DeviceInts(size_t count_) : count(count_) {
        check(gpuMalloc(&data, count * sizeof(int)), "allocate");
        check(gpuMemsetAsync(data, 0, count * sizeof(int), nullptr), "clear");
    }
    ~DeviceInts() { gpuFree(data); }
    std::vector<int> read() const {
        std::vector<int> values(count);
        check(gpuMemcpyAsync(values.data(), data, count * sizeof(int), gpuMemcpyDeviceToHost, nullptr), "read");
        return values;
    }
    size_t count;
    int   *data = nullptr;
};

} // namespace

TEST("groups and blocks add up what their lanes hold") {
    std::vector<float> x(3 * 128);
    std::vector<float> sums(3);
    for (size_t i = 0; i < x.size(); ++i) {
        x[i] = static_cast<float>(i % 128) + (i < 128 ? 0.0f : 1.0f);
    }

    launch({}, sum_block, {3}, 128, 0, x.data(), sums.data());

    CHECK(sums == std::vector<float>({8128.0f, 8256.0f, 8256.0f}));
}

TEST("groups may loop apart from each other") {
    DeviceInts out(128);

    launch({}, groups_loop_apart, {1}, 128, 0, out.data);

    const std::vector<int> got = out.read();
    bool right = true;
    for (int i = 0; i < 128; ++i) {
        right = right && got[static_cast<size_t>(i)] == (i / 32 + 1) * (i / 32 * 32 + 31 - i % 32 + 1);
    }
    CHECK(right);
}

TEST("a missing barrier gives wrong results") {
    DeviceInts out(64);

    for (int i = 0; i < 20; ++i) {
        launch({}, without_barrier, {1}, 64, 64 * sizeof(int), out.data);
    }

    bool all = true;
    for (const int count : out.read()) {
        all = all && count == 20;
    }
    CHECK(!all);
}

TEST("lanes that miss their group or block are named") {
    const std::string odd = failure_of([] {
        DeviceInts out(32);
        launch({}, odd_lanes_leave_early, {1}, 32, 0, out.data);
    });
    const std::string skipped = failure_of([] { launch({}, second_group_skips_barrier, {1}, 64, 0); });

    CHECK(odd.find("a shuffle, but lane") != std::string::npos || odd.find("has ended, but lane") != std::string::npos);
    CHECK(odd.find("block 0,0,0 of 32 threads") != std::string::npos);
    CHECK(skipped.find("lane 0 waits at sync_block, but lane 32 has ended") != std::string::npos);
}

TEST("a recorded launch keeps its arguments and runs at each launch of the graph") {
    DeviceInts     out(64);
    gpuStream_t    stream = nullptr;
    gpuGraph_t     graph = nullptr;
    gpuGraphExec_t runnable = nullptr;
    check(gpuStreamCreateWithFlags(&stream, gpuStreamNonBlocking), "create a stream");
    int *where = out.data;
    check(gpuStreamBeginCapture(stream, gpuStreamCaptureModeThreadLocal), "begin");
    launch({stream}, groups_loop_apart, {1}, 64, 0, where);
    where = nullptr;
    void *refused = nullptr;
    CHECK(gpuMalloc(&refused, 16) == gpuErrorStreamCaptureUnsupported);
    check(gpuStreamEndCapture(stream, &graph), "end");
    check(gpuGraphInstantiateWithFlags(&runnable, graph, 0), "instantiate");
    check(gpuGraphDestroy(graph), "destroy");

    CHECK(out.read() == std::vector<int>(64));
    check(gpuGraphLaunch(runnable, stream), "launch");
    check(gpuDeviceSynchronize(), "wait");

    CHECK(out.read()[0] == 32);
    check(gpuGraphExecDestroy(runnable), "destroy");
    check(gpuStreamDestroy(stream), "destroy");
    gpuGetLastError();
}
