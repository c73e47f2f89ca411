/* What only an emulated card can be made to do: to be missing, of another architecture, full, or lost. */
#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <sys/mman.h>

#include "backend/gpu/gpu_device.h"
#include "backend/gpu/parity_test.h"

using namespace ds4;
using namespace ds4::backend;
using namespace ds4::backend::gpu::test;

namespace {

/* Another card for as long as it lives. */
class OtherCard {
public:
    OtherCard() : before_(emulated::card()) {}
    ~OtherCard() {
        emulated::card() = before_;
        emulated::mend();
    }
    OtherCard(const OtherCard &) = delete;
    OtherCard &operator=(const OtherCard &) = delete;

    emulated::Card *operator->() { return &emulated::card(); }

private:
    emulated::Card before_;
};

template <typename Call> std::string sentence_of(Call &&call) {
    try {
        call();
    } catch (const Failure &failure) {
        return failure.what();
    }
    return "";
}

bool has(const std::string &sentence, const char *part) {
    return sentence.find(part) != std::string::npos;
}

void norm(Backend &backend, const Placed<float> &x, const Placed<float> &weight) {
    backend.ops->rms_norm({1, 64, x.get(), weight.get(), 1e-6f, x.get()});
}

} // namespace

TEST("without a driver or a card there are no devices, and opening one says what to do") {
    for (const int count : {-1, 0}) {
        OtherCard card;
        card->count = count;

        CHECK(device_count() == 0);
        CHECK_FAILS(DS4_E_DEVICE, open_device(0));
        const std::string sentence = sentence_of([] { open_device(0); });
        CHECK(has(sentence, DS4_GPU_LIBRARY));
        CHECK(has(sentence, "install or update the driver"));
    }
}

TEST("a driver that is there and cannot count its cards is no machine without one") {
    OtherCard card;
    emulated::fail_call("gpuGetDeviceCount", gpuErrorNotSupported);
    CHECK_FAILS(DS4_E_DEVICE, device_count());
    emulated::fail_call("gpuGetDeviceCount", gpuErrorNotSupported);
    CHECK(has(sentence_of([] { open_device(0); }), "does not work: gpuErrorNotSupported"));
    CHECK(device_count() == 1);
}

TEST("a card of an architecture without code is refused with its name, its architecture and what there is") {
    OtherCard card;
    card->major = 12;

    const std::string sentence = sentence_of([] { open_device(0); });

    CHECK(has(sentence, "no code for Emulated card (sm_120), only for sm_80 sm_90"));
    CHECK(has(sentence, "CUDA_ARCH=sm_120"));
    card->major = 8;
    card->minor = 9;
    CHECK(open_device(0)->info().arch == "sm_89");
}

TEST("a card that shares the host's memory is integrated") {
    OtherCard card;
    card->integrated = true;

    CHECK(open_device(0)->info().kind == DeviceKind::integrated);
}

TEST("a lost card fails every call with the runtime's words") {
    OtherCard card;
    Backend   backend = gpu::test::gpu(true);
    auto      x = room<float>(backend, 64);
    auto      weight = room<float>(backend, 64);
    emulated::fail_call("launch", gpuErrorLaunchFailure);

    const std::string sentence = sentence_of([&] { norm(backend, x, weight); });

    CHECK(has(sentence, "unspecified launch failure (gpuErrorLaunchFailure)"));
    CHECK_FAILS(DS4_E_DEVICE, norm(backend, x, weight));
    CHECK_FAILS(DS4_E_DEVICE, x.read());
    CHECK_FAILS(DS4_E_DEVICE, backend.device->info());
    CHECK_FAILS(DS4_E_DEVICE, backend.ops->pace());
    emulated::mend(); /* memory is given back to a card that works */
}

TEST("a driver that refuses to map memory as read only is asked without") {
    OtherCard                    card;
    const auto                   device = open_device(0);
    const std::vector<std::byte> host(10000);
    emulated::fail_call("gpuHostRegister", gpuErrorNotSupported);

    CHECK(device->map_host(host)->device_address() != nullptr);

    emulated::fail_call("gpuHostRegister", gpuErrorNotSupported);
    emulated::fail_call("gpuHostRegister", gpuErrorMemoryAllocation);
    CHECK_FAILS(DS4_E_NO_MEMORY, device->map_host(host));
    emulated::fail_call("gpuHostGetDevicePointer", gpuErrorNotSupported);
    CHECK_FAILS(DS4_E_DEVICE, device->map_host(host));
    CHECK(emulated::pinned_bytes() == 0);
}

TEST("whichever call fails while a backend, a ring and pinned memory are opened, nothing is kept") {
    const char *const calls[] = {"gpuGetDeviceCount", "gpuGetDeviceProperties", "gpuSetDevice", "gpuMalloc",
                                 "gpuMemsetAsync", "gpuHostAlloc", "gpuHostRegister", "gpuHostGetDevicePointer",
                                 "gpuStreamCreateWithFlags", "gpuEventCreateWithFlags", "gpuStreamQuery"};
    for (const char *call : calls) {
        for (int skip = 0; skip < 12; ++skip) {
            OtherCard card;
            emulated::fail_call(call, gpuErrorMemoryAllocation, skip);
            try {
                const Backend backend = gpu::test::gpu(true);
                const auto    ring = backend.device->upload_ring(2, 4096);
                const auto    pinned = backend.device->pin_memory(10000, "a test");
                const auto    large = backend.device->pin_memory(9 << 20, "a test");
            } catch (const Failure &) {
            }
            CHECK(emulated::allocated_bytes() == 0 && emulated::pinned_bytes() == 0);
        }
    }
}

TEST("memory that cannot be pinned is refused with what it was for") {
    OtherCard  card;
    const auto device = open_device(0);

    emulated::fail_call("gpuHostAlloc", gpuErrorMemoryAllocation);
    const std::string sentence = sentence_of([&] { device->pin_memory(3 << 20, "experts"); });
    CHECK(has(sentence, "cannot pin 3.0 MiB of host memory for experts: "));
    emulated::fail_call("gpuHostRegister", gpuErrorNotSupported);
    emulated::fail_call("gpuHostAlloc", gpuErrorMemoryAllocation);
    CHECK(has(sentence_of([&] { device->pin_memory(30 << 20, "experts"); }), "cannot pin 30.0 MiB of host memory for experts: "));
    emulated::fail_call("gpuHostAlloc", gpuErrorMemoryAllocation);
    CHECK_FAILS(DS4_E_NO_MEMORY, device->pin_memory(64, "a test"));
    emulated::fail_call("gpuHostAlloc", gpuErrorNotSupported);
    CHECK_FAILS(DS4_E_DEVICE, device->pin_memory(64, "a test"));
    emulated::fail_call("gpuHostAlloc", gpuErrorMemoryAllocation, 1);
    CHECK(has(sentence_of([&] { device->upload_ring(2, 64 << 10); }), "cannot pin 2 upload buffers of 64 KiB each: "));
    CHECK(emulated::pinned_bytes() == 0);
}

TEST("memory that the driver does not let go of stays") {
    OtherCard  card;
    const auto device = open_device(0);
    void      *page = nullptr;
    {
        const auto pinned = device->pin_memory(9 << 20, "a test");
        page = pinned->bytes().data();
        emulated::fail_call("gpuHostUnregister", gpuErrorNotSupported);
    }
    unsigned char is_there = 0;
    CHECK(mincore(page, 4096, &is_there) == 0);
    CHECK(gpuHostUnregister(page) == gpuSuccess);
    munmap(page, 9 << 20);
}

TEST("more memory than the host has is refused, and does not end the process") {
    const auto        device = open_device(0);
    const std::string sentence = sentence_of([&] { device->pin_memory(size_t{1} << 50, "experts"); });

    CHECK(has(sentence, "of host memory for experts: "));
    CHECK(has(sentence, "MiB of host memory are free"));
    CHECK_FAILS(DS4_E_NO_MEMORY, device->pin_memory(size_t{1} << 50, "experts"));
    CHECK(emulated::pinned_bytes() == 0);
}

TEST("memory whose pages the driver does not pin is the driver's own, and zero as well") {
    OtherCard        card;
    const auto       device = open_device(0);
    constexpr size_t kBytes = (20 << 20) + 4097;
    for (const bool refused : {false, true}) {
        if (refused) {
            emulated::fail_call("gpuHostRegister", gpuErrorNotSupported);
        }
        const auto                 pinned = device->pin_memory(kBytes, "a test");
        const std::span<std::byte> bytes = pinned->bytes();

        CHECK(bytes.size() == kBytes && reinterpret_cast<uintptr_t>(bytes.data()) % 4096 == 0);
        CHECK(std::ranges::count(bytes, std::byte{0}) == static_cast<std::ptrdiff_t>(kBytes));
        CHECK(pinned->device_address() != nullptr && emulated::pinned_bytes() >= kBytes);
        std::ranges::fill(bytes, std::byte{1});
    }
    CHECK(emulated::pinned_bytes() == 0);
}

TEST("whichever call of an upload fails, the ring says so and the next upload works") {
    struct Planned {
        const char *call;
        int         skip;
    };
    const Planned calls[] = {{"gpuSetDevice", 0}, {"gpuMemcpyAsync", 0},     {"gpuEventRecord", 0}, {"gpuEventQuery", 0},
                             {"gpuEventQuery", 1}, {"gpuStreamWaitEvent", 0}, {"gpuStreamQuery", 0}};
    OtherCard  card;
    const auto device = open_device(0);
    const auto memory = device->allocate(64, "a test");
    const auto ring = device->upload_ring(1, 4096);
    const auto upload = [&](float value) {
        ring->follow_ops();
        std::memcpy(ring->wait(0).data(), &value, sizeof value);
        ring->send(0, memory.as<void>(), sizeof value);
        while (!ring->arrived(0)) {
        }
        ring->precede_ops();
        ring->finish();
        float got = 0.0f;
        device->copy_out(&got, memory.as<void>(), sizeof got);
        return got;
    };
    float value = 1.0f;
    for (const auto &[call, skip] : calls) {
        emulated::fail_call(call, gpuErrorNotSupported, skip);
        value += 1.0f;
        CHECK_FAILS(DS4_E_DEVICE, upload(-value));
        CHECK(upload(value) == value);
    }
}

TEST("a card that stops answering is given up after a while, wherever it stops, and nothing waits for it again") {
    constexpr uint32_t kPatienceMs = 30;
    constexpr int      kWays = 5;
    for (uint64_t works = 0; works < 12; ++works) {
        std::string sentences[kWays];
        for (int way = 0; way < kWays; ++way) {
            OtherCard card;
            {
                const std::vector<std::byte> host(10000);
                Backend                      backend = gpu::test::gpu(true);
                const auto                   memory = backend.device->allocate(4096, "a test");
                const auto                   ring = backend.device->upload_ring(2, 4096);
                const auto                   pinned = backend.device->pin_memory(10000, "a test");
                const auto                   mapping = backend.device->map_host(host);
                const auto                   x = room<float>(backend, 64);
                const auto                   weight = room<float>(backend, 64);
                const std::vector<int32_t>   tokens = {1};
                emulated::hang(works, kPatienceMs);
                const auto turn = [&] {
                    backend.ops->begin_step({0, tokens, way == 1 ? uint64_t{8} : 0});
                    norm(backend, x, weight);
                    backend.ops->end_step();
                    switch (way) {
                    case 0: static_cast<void>(x.read()); break;
                    case 1: backend.ops->pace(); break;
                    case 2:
                        ring->follow_ops();
                        ring->send(0, memory.as<void>(), 4096);
                        static_cast<void>(ring->wait(0));
                        break;
                    case 3:
                        ring->send_pinned(1, memory.as<void>(), pinned->bytes().data(), 4096);
                        while (!ring->arrived(1)) {
                        }
                        break;
                    default:
                        ring->send(1, memory.as<void>(), 4096);
                        ring->precede_ops();
                        static_cast<void>(backend.device->allocate(64, "a test"));
                    }
                };
                sentences[way] = sentence_of([&] {
                    for (int i = 0; i < 20; ++i) {
                        turn();
                    }
                });
                backend.ops->abandon_step();
                CHECK(has(sentence_of(turn), "is not used again, because it did not answer earlier"));
                CHECK_FAILS(DS4_E_DEVICE, open_device(0));
                CHECK_FAILS(DS4_E_DEVICE, backend.device->info());
            }
            CHECK(emulated::allocated_bytes() > 0 && emulated::pinned_bytes() > 0); /* it may still reach them */
        }
        for (const std::string &sentence : sentences) {
            CHECK(sentence.starts_with("the GPU failed to "));
            CHECK(has(sentence, ": device 0 has not answered for 1 s and counts as lost; "));
        }
        CHECK(has(sentences[1], "evaluate a layer") || has(sentences[1], "finish an earlier step"));
    }
    CHECK(open_device(0)->info().free_bytes > 0);
}

TEST("a copy that is on its way is no error") {
    OtherCard  card;
    Backend    backend = gpu::test::gpu(true);
    const auto x = place(backend, std::vector<float>(64, 3.0f));
    const auto weight = room<float>(backend, 64);
    const auto ring = backend.device->upload_ring(2, 4096);

    CHECK(ring->arrived(0));
    const std::vector<float> ones(64, 1.0f);
    std::memcpy(ring->wait(0).data(), ones.data(), 64 * sizeof(float));
    ring->send(0, weight.get(), 64 * sizeof(float));
    CHECK(!ring->arrived(0));
    CHECK(ring->arrived(1));
    ring->precede_ops();
    norm(backend, x, weight);
    CHECK(x.read()[0] > 0.9f && x.read()[0] < 1.1f);
    CHECK(ring->arrived(0));
}

TEST("a step that cannot be recorded fails, and the next one works") {
    const char *const calls[] = {"gpuStreamBeginCapture", "gpuStreamEndCapture", "gpuGraphInstantiateWithFlags",
                                 "gpuGraphLaunch", "gpuMemcpyAsync", "gpuEventRecord"};
    for (const char *call : calls) {
        OtherCard                  card;
        Backend                    backend = gpu::test::gpu(true);
        const auto                 x = place(backend, std::vector<float>(64, 3.0f));
        const auto                 weight = place(backend, std::vector<float>(64, 1.0f));
        const std::vector<int32_t> tokens = {1};
        const auto                 step = [&](uint64_t position) {
            if (!backend.ops->begin_step({position, tokens, 8})) {
                norm(backend, x, weight);
            }
            backend.ops->end_step();
        };
        step(0);
        emulated::fail_call(call, gpuErrorNotSupported);

        CHECK_FAILS(DS4_E_DEVICE, step(1));
        backend.ops->abandon_step();
        for (uint64_t position = 1; position < 4; ++position) {
            step(position);
        }
        CHECK(emulated::graph_launches() > 0);
        CHECK(x.read()[0] > 0.9f && x.read()[0] < 1.1f);
    }
}
