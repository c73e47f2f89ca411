/* For tests of runtime: plain host memory as a device, which counts what it lent and can refuse. It can also pretend that
 * kernels could not read the host's memory. */
#pragma once

#include <atomic>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <utility>
#include <vector>

#include "backend/device.h"
#include "failure.h"

namespace ds4::test {

class HostDevice : public backend::Device {
public:
    backend::DeviceInfo info() const override {
        return {backend::DeviceKind::host, "test", "test", 1, free_bytes, free_bytes};
    }

    bool reads_host_memory() const override { return reads_host; }

    void copy_in(void *to, const void *from, size_t bytes) override { std::memcpy(to, from, bytes); }
    void copy_out(void *to, const void *from, size_t bytes) override { std::memcpy(to, from, bytes); }
    void copy_within(void *to, const void *from, size_t bytes) override { std::memcpy(to, from, bytes); }

    std::unique_ptr<backend::HostMapping> map_host(std::span<const std::byte> range) override {
        if (pins_left == 0) {
            throw Failure(DS4_E_DEVICE, "the system does not pin this");
        }
        --pins_left;
        return std::make_unique<Pin>(*this, range);
    }
    std::unique_ptr<backend::UploadRing> upload_ring(size_t slots, size_t slot_bytes) override {
        if (rings_left == 0) {
            throw Failure(DS4_E_NO_MEMORY, "the system does not pin buffers");
        }
        --rings_left;
        return std::make_unique<Ring>(*this, slots, slot_bytes);
    }

    std::unique_ptr<backend::PinnedMemory> pin_memory(size_t bytes, std::string_view what) override {
        if (pins_left == 0) {
            throw Failure(DS4_E_NO_MEMORY, "the system does not pin memory for " + std::string(what));
        }
        --pins_left;
        return std::make_unique<Pinned>(*this, bytes);
    }

    backend::Allocation allocate(size_t bytes, std::string_view what) override {
        if (bytes > free_bytes) {
            throw Failure(DS4_E_NO_MEMORY, "no room for " + std::string(what));
        }
        void *const data = ::operator new(bytes, std::align_val_t(64));
        std::memset(data, 0, bytes);
        lent_bytes += bytes;
        return {this, data, bytes};
    }

    uint64_t free_bytes = uint64_t{1} << 34;
    uint64_t lent_bytes = 0;
    bool     reads_host = true;
    bool     delivers_late = false; /* what a ring sends arrives only when somebody waits for it; nonsense is there before */

    uint64_t              pins_left = std::numeric_limits<uint64_t>::max();
    uint64_t              rings_left = std::numeric_limits<uint64_t>::max();
    uint64_t              pinned_bytes = 0; /* now */
    std::atomic<uint64_t> sends = 0;
    std::atomic<uint64_t> sends_left = std::numeric_limits<uint64_t>::max();
    size_t                ring_slots = 0; /* of the last ring */
    size_t                ring_bytes = 0;
    bool                  finished = false; /* was the last ring waited for */

private:
    class Pin : public backend::HostMapping {
    public:
        Pin(HostDevice &device, std::span<const std::byte> range) : device_(device), range_(range) {
            device_.pinned_bytes += range.size();
        }
        ~Pin() override { device_.pinned_bytes -= range_.size(); }
        const std::byte *device_address() const override { return range_.data(); }

    private:
        HostDevice                &device_;
        std::span<const std::byte> range_;
    };

    class Pinned : public backend::PinnedMemory {
    public:
        Pinned(HostDevice &device, size_t bytes) : device_(device), memory_(bytes) { device_.pinned_bytes += bytes; }
        ~Pinned() override { device_.pinned_bytes -= memory_.size(); }
        const std::byte     *device_address() const override { return memory_.data(); }
        std::span<std::byte> bytes() const override { return memory_; }

    private:
        HostDevice                    &device_;
        mutable std::vector<std::byte> memory_;
    };

    class Ring : public backend::UploadRing {
    public:
        Ring(HostDevice &device, size_t slots, size_t slot_bytes)
            : device_(device), slots_(slots, std::vector<std::byte>(slot_bytes)) {
            device_.ring_slots = slots;
            device_.ring_bytes = slots * slot_bytes;
            device_.finished = false;
        }
        std::span<std::byte> wait(size_t slot) override {
            deliver();
            return slots_.at(slot);
        }
        void                 send(size_t slot, void *to, size_t bytes, size_t from) override {
            send_pinned(slot, to, slots_[slot].data() + from, bytes);
        }
        void send_pinned(size_t slot, void *to, const std::byte *from, size_t bytes) override {
            const std::lock_guard lock(mutex_);
            if (device_.sends_left-- == 0) {
                throw Failure(DS4_E_DEVICE, "the bus is broken");
            }
            if (device_.delivers_late) {
                std::memset(to, 0xff, bytes);
                late_.push_back({static_cast<std::byte *>(to), from, bytes});
            } else {
                std::memcpy(to, from, bytes);
            }
            on_the_way_.insert(slot);
            ++device_.sends;
        }
        /* Not when it is first asked. */
        bool arrived(size_t slot) override {
            const bool arrived = on_the_way_.erase(slot) == 0;
            if (arrived) {
                deliver();
            }
            return arrived;
        }
        void follow_ops() override {}
        void precede_ops() override { deliver(); }
        void finish() override {
            deliver();
            device_.finished = true;
        }

    private:
        struct Copy {
            std::byte       *to;
            const std::byte *from;
            size_t           bytes;
        };
        void deliver() {
            const std::lock_guard lock(mutex_);
            for (const Copy &copy : std::exchange(late_, {})) {
                std::memcpy(copy.to, copy.from, copy.bytes);
            }
        }

        HostDevice                         &device_;
        std::vector<std::vector<std::byte>> slots_;
        std::mutex                          mutex_;
        std::set<size_t>                    on_the_way_;
        std::vector<Copy>                   late_;
    };

    void spoil(void *memory, size_t bytes) noexcept override { std::memset(memory, 0xff, bytes); }

    void release(void *data, size_t bytes) noexcept override {
        lent_bytes -= bytes;
        ::operator delete(data, std::align_val_t(64));
    }
};

} // namespace ds4::test
