/* Memory of the host's, of whole pages that are there already. */
#pragma once

#include <cstddef>
#include <utility>

namespace ds4::backend::gpu {

/* What pinning costs is that the system finds and clears each page. A driver that is asked for pinned memory does so in one
 * thread; large pages that several threads have touched before are pinned ten times faster
 * (docs/performance.md#pinning). */
class TouchedPages {
public:
    TouchedPages() = default;
    /* Zeroed. Empty when the system refuses; where it grants more than it has, touching ends the process. */
    explicit TouchedPages(size_t bytes);
    ~TouchedPages();
    TouchedPages(TouchedPages &&other) noexcept { swap(other); }
    TouchedPages &operator=(TouchedPages &&other) noexcept {
        TouchedPages taken(std::move(other));
        swap(taken);
        return *this;
    }
    TouchedPages(const TouchedPages &) = delete;
    TouchedPages &operator=(const TouchedPages &) = delete;

    std::byte *data() const { return data_; }
    /* Keeps the pages until the process ends. */
    void abandon() noexcept { data_ = nullptr; }

private:
    void swap(TouchedPages &other) noexcept {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
    }

    std::byte *data_ = nullptr;
    size_t     bytes_ = 0;
};

} // namespace ds4::backend::gpu
