/* Whole pages from the system. */
#pragma once

#include <cstddef>
#include <utility>

#include <sys/mman.h>

namespace ds4::backend::sim {

inline constexpr size_t kPageBytes = 4096;
/* In every byte it makes not-a-number of any float. */
inline constexpr int    kPoison = 0xff;

/* Zeroed memory, taken from the system only as it is touched: a card may be larger than the machine that plays it. Empty when
 * the system refuses. */
class Pages {
public:
    Pages() = default;
    explicit Pages(size_t bytes) : bytes_(bytes) {
        void *const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        data_ = data == MAP_FAILED ? nullptr : static_cast<std::byte *>(data);
    }
    ~Pages() {
        if (data_ != nullptr) {
            ::munmap(data_, bytes_);
        }
    }
    Pages(Pages &&other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
    Pages &operator=(Pages &&other) noexcept {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }

    std::byte *data() const { return data_; }

private:
    std::byte *data_ = nullptr;
    size_t     bytes_ = 0;
};

} // namespace ds4::backend::sim
