/* A GPU that is not there: memory of its own, kept apart from the host's, behind a bus that counts. Its arithmetic is in
 * sim_ops.h. */
#pragma once

#include <memory>
#include <string>

#include "backend/device.h"
#include "backend/sim/address_space.h"
#include "backend/sim/ledger.h"
#include "backend/sim/machine.h"

namespace ds4::backend::sim {

class SimDevice final : public Device {
public:
    /* Keeps its ledger in `words`, which outlive it; nullptr: nowhere. */
    SimDevice(std::shared_ptr<Card> card, uint64_t *words);

    DeviceInfo info() const override;
    bool       reads_host_memory() const override { return false; }
    void       copy_in(void *to_device, const void *from_host, size_t bytes) override;
    void       copy_out(void *to_host, const void *from_device, size_t bytes) override;
    void       copy_within(void *to_device, const void *from_device, size_t bytes) override;

    std::unique_ptr<HostMapping>  map_host(std::span<const std::byte> range) override;
    std::unique_ptr<UploadRing>   upload_ring(size_t slots, size_t slot_bytes) override;
    std::unique_ptr<PinnedMemory> pin_memory(size_t bytes, std::string_view what) override;
    ssize_t                       read_file(int descriptor, void *to, size_t bytes, uint64_t offset) const override;
    Allocation                    allocate(size_t bytes, std::string_view what) override;
    void                          spoil(void *memory, size_t bytes) noexcept override;

    Card               &card() const { return *card_; }
    AddressSpace       &addresses() const { return addresses_; }
    const Ledger       &ledger() const { return ledger_; }

    /* Counts one use of a call; whether it is one that is to fail. */
    bool fails(uint32_t call) const;
    /* Throws Failure(DS4_E_DEVICE), with what was to be done, when it is. */
    void check(uint32_t call, const char *what) const;
    /* The same when the card has failed for good. */
    void require_alive(const std::string &what) const;

    /* The memory behind `bytes` bytes of the device's own. Throws Failure(DS4_E_DEVICE) with what was to be done. */
    std::byte *own_memory(const void *address, size_t bytes, const char *what) const;
    /* Throws Failure(DS4_E_DEVICE) for an address of the device where one of the host is needed. */
    void       require_host(const void *address, const char *what) const;

private:
    void release(void *data, size_t bytes) noexcept override;

    std::shared_ptr<Card>      card_;
    Ledger                     ledger_;
    mutable AddressSpace       addresses_;
    std::mutex                 mutex_;
    std::map<uintptr_t, Pages> memory_; /* behind each allocation */
};

/* Memory of the host that counts as pinned, and that kernels find through a window, for as long as it lives. */
class PinnedWindow {
public:
    /* Throws Failure(DS4_E_NO_MEMORY) naming `what`. */
    PinnedWindow(const SimDevice &device, std::byte *memory, size_t bytes, const std::string &what);
    ~PinnedWindow();
    PinnedWindow(const PinnedWindow &) = delete;
    PinnedWindow &operator=(const PinnedWindow &) = delete;

    const std::byte *address() const { return address_; }

private:
    const SimDevice &device_;
    size_t           bytes_;
    std::byte       *address_;
};

/* Pinned pages. Throws Failure(DS4_E_NO_MEMORY). */
Pages pinned_pages(const SimDevice &device, size_t bytes, const std::string &what);

} // namespace ds4::backend::sim
