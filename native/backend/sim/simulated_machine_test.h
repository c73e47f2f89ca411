/* For tests: a small machine, what its device enters into its ledger, and arrays on it. */
#pragma once

#include <array>
#include <cstring>
#include <vector>

#include "backend/ops.h"
#include "backend/sim/machine.h"
#include "check.h"

namespace ds4::backend::sim::test {

/* 1 byte takes 1 ns over the link, 2 ns when kernels read it in place, 4 ns from the disk. */
inline ds4_simulation small_machine(uint32_t kind = DS4_DEVICE_DISCRETE) {
    ds4_simulation machine{};
    machine.size = sizeof(machine);
    machine.kind = kind;
    machine.vram_bytes = uint64_t{1} << 20;
    machine.link_bytes_per_second = 1'000'000'000;
    machine.mapped_bytes_per_second = 500'000'000;
    machine.disk_bytes_per_second = 250'000'000;
    machine.link_ns = 10;
    machine.disk_ns = 100;
    return machine;
}

inline ds4_simulation failing(uint32_t call, uint64_t at = 1, uint32_t count = 0) {
    ds4_simulation machine = small_machine();
    machine.fail_call = call;
    machine.fail_at = at;
    machine.fail_count = count;
    return machine;
}

/* The machine of the process for as long as it lives, and one device of it. */
class Simulated {
public:
    explicit Simulated(const ds4_simulation &machine = small_machine()) : ordinary_(sim::machine().card()->description()) {
        simulate(machine);
        backend = open_backend({.threads = 1, .exact = true, .words = words.data()});
    }
    ~Simulated() { simulate(ordinary_); }
    Simulated(const Simulated &) = delete;
    Simulated &operator=(const Simulated &) = delete;

    uint64_t word(size_t index) const { return words[index]; }
    Device  &device() const { return *backend.device; }
    Ops     &ops() const { return *backend.ops; }

private:
    ds4_simulation ordinary_;

public:
    std::array<uint64_t, DS4_WORD_COUNT> words{};
    Backend                              backend;
};

/* Values in the memory of a device. */
template <typename T> class Placed {
public:
    Placed(Device &device, const std::vector<T> &values)
        : device_(device), memory_(device.allocate(values.size() * sizeof(T), "a test")), count_(values.size()) {
        device_.copy_in(get(), values.data(), values.size() * sizeof(T));
    }
    Placed(Device &device, size_t count) : Placed(device, std::vector<T>(count)) {}

    T             *get() const { return memory_.template as<T>(); }
    std::vector<T> read() const {
        std::vector<T> values(count_);
        device_.copy_out(values.data(), get(), count_ * sizeof(T));
        return values;
    }

private:
    Device    &device_;
    Allocation memory_;
    size_t     count_;
};

} // namespace ds4::backend::sim::test
