#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "backend/gpu/architecture.h"
#include "backend/gpu/parity_test.h"

using namespace ds4;
using namespace ds4::backend;
using namespace ds4::backend::gpu::test;

namespace {

std::vector<uint8_t> random_bytes(size_t count, uint64_t seed) {
    Random               random(seed);
    std::vector<uint8_t> bytes(count);
    for (uint8_t &byte : bytes) {
        byte = static_cast<uint8_t>(random.bits());
    }
    return bytes;
}

/* Values in pages that may only be read, like a mapped file, with a page before and behind. Nothing else lies in these
 * pages: copies into memory of which a part is pinned fail. */
class ReadOnlyPages {
public:
    explicit ReadOnlyPages(std::span<const std::byte> values) : bytes_(3 * kPage + values.size()) {
        data_ = static_cast<std::byte *>(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        std::memcpy(data_ + kOffset, values.data(), values.size());
        mprotect(data_, bytes_, PROT_READ);
    }
    ~ReadOnlyPages() { munmap(data_, bytes_); }
    ReadOnlyPages(const ReadOnlyPages &) = delete;
    ReadOnlyPages &operator=(const ReadOnlyPages &) = delete;

    std::span<const std::byte> from_second_page_on() const { return {data_ + kOffset, bytes_ - kPage - kOffset}; }

private:
    static constexpr size_t kPage = 4096;
    static constexpr size_t kOffset = kPage + 64; /* in the middle of a page, as tensors begin */

    size_t     bytes_;
    std::byte *data_ = nullptr;
};

} // namespace

TEST("the card describes itself") {
    const DeviceInfo info = open_device(0)->info();

    CHECK(device_count() >= 1);
    CHECK(info.kind == DeviceKind::discrete || info.kind == DeviceKind::integrated);
    CHECK(!info.name.empty());
    CHECK(info.arch.starts_with("sm_") || info.arch.starts_with("gfx"));
    CHECK(info.core_count > 0);
    CHECK(info.total_bytes >= info.free_bytes && info.free_bytes > 0);
    CHECK(!open_device(0)->reads_host_memory());
}

TEST("device memory begins as zeros, aligned, and holds what is copied") {
    const auto device = open_device(0);
    for (const size_t bytes : {size_t{1}, size_t{100}, size_t{1} << 20}) {
        const std::vector<uint8_t> sent = random_bytes(bytes, bytes);
        std::vector<uint8_t>       got(bytes, 1);
        const Allocation           memory = device->allocate(bytes, "a test");
        const Allocation           other = device->allocate(bytes, "a test");

        CHECK(memory.bytes() == bytes && reinterpret_cast<uintptr_t>(memory.as<char>()) % 64 == 0);
        device->copy_out(got.data(), memory.as<void>(), bytes);
        CHECK(got == std::vector<uint8_t>(bytes));

        device->copy_in(memory.as<void>(), sent.data(), bytes);
        device->copy_within(other.as<void>(), memory.as<void>(), bytes);
        device->copy_out(got.data(), other.as<void>(), bytes);
        CHECK(got == sent);
    }
    CHECK(device->allocate(0, "nothing").as<char>() == nullptr);
}

TEST("more memory than the card has is refused with a sentence that says how much") {
    const auto device = open_device(0);

    CHECK_FAILS(DS4_E_NO_MEMORY, device->allocate(size_t{1} << 45, "the KV cache"));

    try {
        device->allocate(size_t{1} << 45, "the KV cache");
    } catch (const Failure &failure) {
        CHECK(std::strstr(failure.what(), "the KV cache: needs 33554432.0 MiB, ") != nullptr);
        CHECK(std::strstr(failure.what(), " free; try a smaller --ctx") != nullptr);
    }
    CHECK(device->allocate(64, "afterwards").bytes() == 64);
}

TEST("a card that is not there is refused") {
    CHECK_FAILS(DS4_E_DEVICE, open_device(1000));
    CHECK_FAILS(DS4_E_DEVICE, open_backend({.device = 1000}));
    CHECK_FAILS(DS4_E_ARGUMENT, open_backend({.instruction_set = DS4_ISA_AVX2}));
}

TEST("code runs on later cards of its generation only") {
    CHECK(gpu::runs_on("sm_80 sm_90", "sm_90"));
    CHECK(gpu::runs_on("sm_80 sm_90", "sm_89"));
    CHECK(gpu::runs_on("sm_120", "sm_121"));
    CHECK(!gpu::runs_on("sm_86 sm_90", "sm_80"));
    CHECK(!gpu::runs_on("sm_80 sm_90", "sm_100"));
    CHECK(!gpu::runs_on("sm_10", "sm_100"));
    CHECK(gpu::runs_on("gfx942 gfx1100", "gfx1100"));
    CHECK(!gpu::runs_on("gfx1100", "gfx1101"));
    CHECK(!gpu::runs_on("", "sm_90"));
}

TEST("an upload ring takes pieces from several threads and loses none") {
    constexpr size_t kSlots = 3, kSlotBytes = 10000, kPieces = 40;
    const auto                 device = open_device(0);
    const std::vector<uint8_t> sent = random_bytes(kPieces * kSlotBytes - 77, 5);
    std::vector<uint8_t>       got(sent.size());
    const Allocation           memory = device->allocate(sent.size(), "a test");
    {
        const auto ring = device->upload_ring(kSlots, kSlotBytes);
        std::vector<std::thread> readers;
        for (size_t slot = 0; slot < kSlots; ++slot) {
            readers.emplace_back([&, slot] {
                for (size_t piece = slot; piece < kPieces; piece += kSlots) {
                    const size_t               begin = piece * kSlotBytes;
                    const size_t               bytes = std::min(kSlotBytes, sent.size() - begin);
                    const std::span<std::byte> buffer = ring->wait(slot);
                    std::memcpy(buffer.data(), sent.data() + begin, bytes);
                    ring->send(slot, memory.as<std::byte>() + begin, bytes);
                }
            });
        }
        for (std::thread &reader : readers) {
            reader.join();
        }
        ring->finish();
    }

    device->copy_out(got.data(), memory.as<void>(), got.size());

    CHECK(got == sent);
}

TEST("upload buffers begin at a page and hold what was asked for") {
    const auto device = open_device(0);
    const auto ring = device->upload_ring(3, 5000);
    for (size_t slot = 0; slot < 3; ++slot) {
        const std::span<std::byte> buffer = ring->wait(slot);
        CHECK(reinterpret_cast<uintptr_t>(buffer.data()) % 4096 == 0 && buffer.size() >= 5000);
        std::memset(buffer.data(), 1, buffer.size());
    }
}

TEST("a slot may be sent from any byte on, and memory that is pinned without a slot") {
    constexpr size_t           kBytes = 10000, kSkipped = 300;
    const auto                 device = open_device(0);
    const std::vector<uint8_t> sent = random_bytes(3 * kBytes, 7);
    std::vector<uint8_t>       got(sent.size());
    const Allocation           memory = device->allocate(sent.size(), "a test");
    const auto                 pinned = device->pin_memory(kBytes, "a test");
    const ReadOnlyPages        pages{std::as_bytes(std::span(sent)).subspan(2 * kBytes)};
    const std::span            of_host = pages.from_second_page_on();
    const auto                 mapping = device->map_host(of_host);
    const auto                 ring = device->upload_ring(2, kSkipped + kBytes);

    std::memcpy(ring->wait(0).data() + kSkipped, sent.data(), kBytes);
    ring->send(0, memory.as<std::byte>(), kBytes, kSkipped);
    std::memcpy(pinned->bytes().data(), sent.data() + kBytes, kBytes);
    ring->send_pinned(1, memory.as<std::byte>() + kBytes, pinned->bytes().data(), kBytes);
    ring->send_pinned(0, memory.as<std::byte>() + 2 * kBytes, of_host.data(), kBytes);
    while (!ring->arrived(0) || !ring->arrived(1)) {
        std::this_thread::yield();
    }

    device->copy_out(got.data(), memory.as<void>(), got.size());
    CHECK(got == sent);
}

TEST("uploads and ops wait for each other where they are told to") {
    constexpr int64_t   kWidth = 64;
    constexpr size_t    kBytes = kWidth * sizeof(float);
    Backend             backend = gpu::test::gpu(true);
    Random              random(4);
    auto                row = room<float>(backend, kWidth); /* one place for one row after the other */
    const auto          ring = backend.device->upload_ring(1, kBytes);
    const Matrix        embedding{quant::Type::f32, RowLayout::file, 1, kWidth, kBytes,
                           reinterpret_cast<const std::byte *>(row.get())};
    const int32_t       token = 0;
    std::vector<Placed<float>>      seen;
    std::vector<std::vector<float>> want;
    for (int turn = 0; turn < 5; ++turn) {
        want.push_back(random.normals(kWidth));
        seen.push_back(room<float>(backend, kWidth));
    }

    for (size_t turn = 0; turn < seen.size(); ++turn) {
        ring->follow_ops();
        std::memcpy(ring->wait(0).data(), want[turn].data(), kBytes);
        ring->send(0, row.get(), kBytes);
        if (turn % 2 == 1) {
            ring->finish(); /* with ops in front that nobody waited for */
        }
        ring->precede_ops();
        backend.ops->embed({.tokens = {&token, 1}, .embedding = &embedding, .hc = 1, .streams = seen[turn].get()});
    }

    for (size_t turn = 0; turn < seen.size(); ++turn) {
        CHECK_SAME_BITS("row " + std::to_string(turn), seen[turn].read(), want[turn]);
    }
}

TEST("pinned memory begins as zeros, at a page, and kernels read it in place") {
    constexpr int64_t kWidth = 96, kRows = 50;
    constexpr size_t  kBytes = kRows * kWidth * sizeof(float);
    Backend                  backend = gpu::test::gpu(true);
    const auto               pinned = backend.device->pin_memory(kBytes, "a test");
    const std::span          bytes = pinned->bytes();
    Random                   random(3);
    const std::vector<float> rows = random.normals(kRows * kWidth);
    const Matrix embedding{quant::Type::f32, RowLayout::file, kRows, kWidth, kWidth * int64_t{sizeof(float)},
                           pinned->device_address()};
    const int32_t tokens[] = {49, 0, 7};
    auto          streams = room<float>(backend, 3 * kWidth);

    CHECK(bytes.size() == kBytes && reinterpret_cast<uintptr_t>(bytes.data()) % 4096 == 0);
    CHECK(reinterpret_cast<uintptr_t>(pinned->device_address()) % 4096 == 0);
    CHECK(std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0}; }));
    std::memcpy(bytes.data(), rows.data(), kBytes);
    backend.ops->embed({.tokens = tokens, .embedding = &embedding, .hc = 1, .streams = streams.get()});

    std::vector<float> want;
    for (const int32_t token : tokens) {
        want.insert(want.end(), rows.begin() + token * kWidth, rows.begin() + (token + 1) * kWidth);
    }
    CHECK_SAME_BITS("rows of pinned memory", streams.read(), want);
}

TEST("kernels read mapped host memory in place") {
    constexpr int64_t kWidth = 96, kRows = 50;
    Backend                  backend = gpu::test::gpu(true);
    Random                   random(3);
    const std::vector<float> rows = random.normals(kRows * kWidth);
    const ReadOnlyPages      pages{std::as_bytes(std::span(rows))};
    const auto               mapping = backend.device->map_host(pages.from_second_page_on());
    const Matrix embedding{quant::Type::f32, RowLayout::file, kRows, kWidth, kWidth * int64_t{sizeof(float)},
                           mapping->device_address()};
    const int32_t tokens[] = {49, 0, 7};
    auto          streams = room<float>(backend, 3 * kWidth);

    backend.ops->embed({.tokens = tokens, .embedding = &embedding, .hc = 1, .streams = streams.get()});

    std::vector<float> want;
    for (const int32_t token : tokens) {
        want.insert(want.end(), rows.begin() + token * kWidth, rows.begin() + (token + 1) * kWidth);
    }
    CHECK_SAME_BITS("rows of a mapping", streams.read(), want);
}
