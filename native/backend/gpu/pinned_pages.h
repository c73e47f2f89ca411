/* Page-locked memory of the host's, of whole pages: files are read straight into it past the system's cache. */
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "backend/gpu/gpu_device.h"
#include "backend/gpu/touched_pages.h"

namespace ds4::backend::gpu {

class PinnedPages {
public:
    PinnedPages() = default;
    /* Zeroed, and mapped for kernels. Throws Failure(DS4_E_NO_MEMORY or DS4_E_DEVICE), a sentence that begins: cannot pin
     * `what`. */
    PinnedPages(const GpuDevice &device, size_t bytes, const std::string &what);
    /* Waits for who uses it. What a card that is lost may still reach stays until the process ends. */
    ~PinnedPages();
    PinnedPages(PinnedPages &&other) noexcept { swap(other); }
    PinnedPages &operator=(PinnedPages &&other) noexcept {
        PinnedPages taken(std::move(other));
        swap(taken);
        return *this;
    }
    PinnedPages(const PinnedPages &) = delete;
    PinnedPages &operator=(const PinnedPages &) = delete;

    std::byte *data() const { return data_; }
    size_t     bytes() const { return bytes_; }

private:
    void swap(PinnedPages &other) noexcept {
        std::swap(device_, other.device_);
        std::swap(pages_, other.pages_);
        std::swap(block_, other.block_);
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
    }

    bool pin_touched();
    void take_from_driver(const std::string &what);

    const GpuDevice *device_ = nullptr;
    TouchedPages     pages_;           /* of our own, or */
    void            *block_ = nullptr; /* as the runtime gave it */
    std::byte       *data_ = nullptr;
    size_t           bytes_ = 0;
};

} // namespace ds4::backend::gpu
