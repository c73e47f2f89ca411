#include "backend/sim/sim_device.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>

#include <fcntl.h>

#include "backend/cpu/thread_pool.h"
#include "backend/sim/sim_ring.h"
#include "failure.h"

namespace ds4::backend::sim {

namespace {

std::string in_mib(uint64_t bytes) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f MiB", static_cast<double>(bytes) / 1048576.0);
    return text;
}

Failure no_device_memory(const Card &card, size_t bytes, std::string_view what) {
    return {DS4_E_NO_MEMORY, "cannot allocate GPU memory for " + std::string(what) + ": needs " + in_mib(bytes) + ", " +
                                 in_mib(card.free_bytes()) + " of " + in_mib(card.description().vram_bytes) +
                                 " free; try a smaller --ctx or close other programs"};
}

Failure no_pinned_memory(const Card &card, size_t bytes, const std::string &what) {
    return {DS4_E_NO_MEMORY, "cannot pin " + in_mib(bytes) + " of host memory for " + what +
                                 (card.is_integrated() ? ": " + in_mib(card.free_bytes()) + " of " +
                                                             in_mib(card.description().vram_bytes) + " free"
                                                       : ": the system does not lock so much")};
}

class Mapping final : public HostMapping {
public:
    Mapping(const SimDevice &device, std::span<const std::byte> range)
        : window_(device, const_cast<std::byte *>(range.data()), range.size(), "the GPU to read") {}
    const std::byte *device_address() const override { return window_.address(); }

private:
    PinnedWindow window_;
};

class Pinned final : public PinnedMemory {
public:
    Pinned(const SimDevice &device, size_t bytes, const std::string &what)
        : bytes_(bytes), pages_(pinned_pages(device, bytes, what)), window_(device, pages_.data(), bytes, what) {}
    const std::byte     *device_address() const override { return window_.address(); }
    std::span<std::byte> bytes() const override { return {pages_.data(), bytes_}; }

private:
    size_t       bytes_;
    Pages        pages_;
    PinnedWindow window_;
};

} // namespace

SimDevice::SimDevice(std::shared_ptr<Card> card, uint64_t *words)
    : card_(std::move(card)), ledger_(words, card_->description()) {}

bool SimDevice::fails(uint32_t call) const {
    ledger_.call();
    return machine().fails(call);
}

void SimDevice::require_alive(const std::string &what) const {
    if (machine().is_lost()) {
        throw Failure(DS4_E_DEVICE, "cannot " + what + ": the simulated GPU is lost, as it was told to be");
    }
}

void SimDevice::check(uint32_t call, const char *what) const {
    if (fails(call)) {
        require_alive(what);
        throw Failure(DS4_E_DEVICE, std::string("cannot ") + what + ": the simulated GPU fails as it was told to");
    }
}

std::byte *SimDevice::own_memory(const void *address, size_t bytes, const char *what) const {
    const std::optional<Behind> found = addresses_.find(address);
    if (!found || found->place != Place::device || found->bytes < bytes) {
        char text[128];
        std::snprintf(text, sizeof text, ": %zu bytes at %p are not all in one live allocation of the GPU", bytes, address);
        throw Failure(DS4_E_DEVICE, std::string("cannot ") + what + text);
    }
    return found->memory;
}

void SimDevice::require_host(const void *address, const char *what) const {
    if (addresses_.owns(address)) {
        char text[96];
        std::snprintf(text, sizeof text, ": %p is an address of the GPU where one of the host is needed", address);
        throw Failure(DS4_E_DEVICE, std::string("cannot ") + what + text);
    }
}

DeviceInfo SimDevice::info() const {
    return {
        .kind = card_->is_integrated() ? DeviceKind::integrated : DeviceKind::discrete,
        .name = card_->is_integrated() ? "simulated integrated GPU" : "simulated discrete GPU",
        .arch = "sim",
        .core_count = cpu::usable_processors(),
        .total_bytes = card_->description().vram_bytes,
        .free_bytes = fails(DS4_SIM_CALL_MEMORY_INFO) ? 0 : card_->free_bytes(),
    };
}

Allocation SimDevice::allocate(size_t bytes, std::string_view what) {
    if (bytes == 0) {
        return {};
    }
    const bool fails_now = fails(DS4_SIM_CALL_ALLOCATE);
    require_alive("allocate GPU memory for " + std::string(what));
    if (fails_now || !card_->take(bytes)) {
        throw no_device_memory(*card_, bytes, what);
    }
    Pages            pages(bytes);
    std::byte *const address = pages.data() == nullptr ? nullptr : addresses_.open(pages.data(), bytes, Place::device);
    if (address == nullptr) {
        card_->give_back(bytes);
        throw Failure(DS4_E_NO_MEMORY, "cannot allocate host memory to simulate " + in_mib(bytes) + " of GPU memory for " +
                                           std::string(what) + ": " + std::strerror(errno));
    }
    ledger_.allocated(bytes);
    Allocation            allocation(this, address, bytes);
    const std::lock_guard lock(mutex_);
    memory_[reinterpret_cast<uintptr_t>(address)] = std::move(pages);
    return allocation;
}

void SimDevice::release(void *data, size_t bytes) noexcept {
    if (data == nullptr) {
        return;
    }
    addresses_.close(data);
    {
        const std::lock_guard lock(mutex_);
        memory_.erase(reinterpret_cast<uintptr_t>(data));
    }
    card_->give_back(bytes);
    ledger_.freed(bytes);
}

void SimDevice::spoil(void *memory, size_t bytes) noexcept {
    const std::optional<Behind> found = addresses_.find(memory);
    if (found && found->bytes >= bytes) {
        std::memset(found->memory, kPoison, bytes);
    } else if (!found && addresses_.pins(static_cast<std::byte *>(memory), bytes)) {
        std::memset(memory, kPoison, bytes);
    }
}

void SimDevice::copy_in(void *to_device, const void *from_host, size_t bytes) {
    if (bytes == 0) {
        return;
    }
    constexpr const char *what = "copy to the device";
    std::byte *const      to = own_memory(to_device, bytes, what);
    require_host(from_host, what);
    check(DS4_SIM_CALL_COPY, what);
    std::memcpy(to, from_host, bytes);
    ledger_.copied_in(bytes);
}

void SimDevice::copy_out(void *to_host, const void *from_device, size_t bytes) {
    if (bytes == 0) {
        return;
    }
    constexpr const char  *what = "copy from the device";
    const std::byte *const from = own_memory(from_device, bytes, what);
    require_host(to_host, what);
    check(DS4_SIM_CALL_COPY, what);
    std::memcpy(to_host, from, bytes);
    ledger_.copied_out(bytes);
}

void SimDevice::copy_within(void *to_device, const void *from_device, size_t bytes) {
    if (bytes == 0) {
        return;
    }
    constexpr const char  *what = "copy within the device";
    std::byte *const       to = own_memory(to_device, bytes, what);
    const std::byte *const from = own_memory(from_device, bytes, what);
    check(DS4_SIM_CALL_COPY, what);
    std::memcpy(to, from, bytes);
}

std::unique_ptr<HostMapping> SimDevice::map_host(std::span<const std::byte> range) {
    require_host(range.data(), "pin host memory for the GPU to read");
    check(DS4_SIM_CALL_MAP, "pin host memory for the GPU to read");
    return std::make_unique<Mapping>(*this, range);
}

std::unique_ptr<PinnedMemory> SimDevice::pin_memory(size_t bytes, std::string_view what) {
    return std::make_unique<Pinned>(*this, bytes, std::string(what));
}

std::unique_ptr<UploadRing> SimDevice::upload_ring(size_t slots, size_t slot_bytes) {
    return std::make_unique<SimRing>(*this, slots, slot_bytes);
}

ssize_t SimDevice::read_file(int descriptor, void *to, size_t bytes, uint64_t offset) const {
    if (const std::chrono::microseconds wait = machine().read_wait(); wait.count() > 0) {
        std::this_thread::sleep_for(wait);
    }
    if ((::fcntl(descriptor, F_GETFL) & O_DIRECT) != 0 && fails(DS4_SIM_CALL_DIRECT)) {
        errno = EINVAL;
        return -1;
    }
    ledger_.call();
    const ReadFault fault = machine().read_fault(offset, bytes);
    if (fault.is_refused) {
        errno = EIO;
        return -1;
    }
    ssize_t got = Device::read_file(descriptor, to, bytes, offset);
    if (got > 1 && fault.is_short) {
        got /= 2;
    }
    if (got > 0) {
        ledger_.read_disk(static_cast<uint64_t>(got));
    }
    if (fault.wrong_at && got > 0 && *fault.wrong_at - offset < static_cast<uint64_t>(got)) {
        std::byte &wrong = static_cast<std::byte *>(to)[*fault.wrong_at - offset];
        wrong = ~wrong;
    }
    return got;
}

PinnedWindow::PinnedWindow(const SimDevice &device, std::byte *memory, size_t bytes, const std::string &what)
    : device_(device), bytes_(bytes) {
    if (!device_.card().pin(bytes)) {
        throw no_pinned_memory(device_.card(), bytes, what);
    }
    address_ = device_.addresses().open(memory, bytes, Place::host);
    if (address_ == nullptr) {
        device_.card().unpin(bytes);
        throw no_pinned_memory(device_.card(), bytes, what);
    }
    device_.ledger().pinned(bytes);
}

PinnedWindow::~PinnedWindow() {
    device_.addresses().close(address_);
    device_.card().unpin(bytes_);
    device_.ledger().unpinned(bytes_);
}

Pages pinned_pages(const SimDevice &device, size_t bytes, const std::string &what) {
    const bool fails = device.fails(DS4_SIM_CALL_PIN);
    device.require_alive("pin host memory for " + what);
    if (fails) {
        throw no_pinned_memory(device.card(), bytes, what);
    }
    Pages pages(bytes);
    if (pages.data() == nullptr && bytes > 0) {
        throw no_pinned_memory(device.card(), bytes, what);
    }
    return pages;
}

} // namespace ds4::backend::sim
