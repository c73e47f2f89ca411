#include <algorithm>
#include <cstdint>
#include <cstring>

#include "backend/cpu/instruction_set.h"
#include "backend/cpu/thread_pool.h"
#include "backend/ops.h"
#include "check.h"

using namespace ds4;
using namespace ds4::backend;

TEST("the host describes itself") {
    const DeviceInfo info = open_device(0)->info();

    CHECK(device_count() == 1);
    CHECK(info.kind == DeviceKind::host);
    CHECK(!info.name.empty());
    CHECK(info.arch == cpu::instruction_set_name(cpu::widest_instruction_set()));
    CHECK(info.core_count == cpu::usable_processors());
    CHECK(info.total_bytes >= info.free_bytes && info.free_bytes > 0);
}

TEST("memory is zero, aligned and writable to its end") {
    const auto device = open_device(0);
    for (const size_t bytes : {size_t{1}, size_t{100}, size_t{1} << 20}) {
        const Allocation allocation = device->allocate(bytes, "a test");
        const auto      *data = allocation.as<unsigned char>();
        CHECK(allocation.bytes() == bytes);
        CHECK(reinterpret_cast<uintptr_t>(data) % 64 == 0);
        CHECK(std::all_of(data, data + bytes, [](unsigned char byte) { return byte == 0; }));
        std::memset(allocation.as<unsigned char>(), 1, bytes);
    }
    CHECK(device->allocate(0, "nothing").as<char>() == nullptr);
}

TEST("more memory than the machine has is refused with a sentence that says how much") {
    const auto device = open_device(0);

    CHECK_FAILS(DS4_E_NO_MEMORY, device->allocate(size_t{1} << 60, "the KV cache"));

    try {
        device->allocate(size_t{1} << 60, "the KV cache");
    } catch (const Failure &failure) {
        CHECK(std::strstr(failure.what(), "the KV cache: needs 1099511627776.0 MiB") != nullptr);
        CHECK(std::strstr(failure.what(), "free") != nullptr);
    }
}

TEST("a device that is not there is refused") {
    CHECK_FAILS(DS4_E_DEVICE, open_device(1));
    CHECK_FAILS(DS4_E_DEVICE, open_backend({.device = 3}));
}

TEST("an instruction set can be asked for, up to what the machine has") {
    for (uint32_t set = DS4_ISA_PLAIN; set <= cpu::widest_instruction_set(); ++set) {
        CHECK(open_backend({.threads = 1, .instruction_set = set}).instruction_set == set);
    }
    CHECK(open_backend({.threads = 1}).instruction_set == cpu::widest_instruction_set());
    CHECK_FAILS(DS4_E_ARGUMENT, open_backend({.threads = 1, .instruction_set = DS4_ISA_AVX512 + 1}));
}

TEST("the number of threads is the one asked for, or that of the usable processors") {
    CHECK(open_backend({.threads = 3}).threads == 3);
    CHECK(open_backend({}).threads == cpu::usable_processors());
}

TEST("every weight type is supported and nothing else") {
    const Backend backend = open_backend({.threads = 1});

    CHECK(backend.ops->supports(quant::Type::iq2_xxs));
    CHECK(!backend.ops->supports(quant::Type::i32));
    CHECK(!backend.ops->supports(static_cast<quant::Type>(11)));
}
