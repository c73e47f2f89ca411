/* Memory that an operation needs while it runs. Grows to the largest demand and stays, so that nothing is allocated in
 * the steady state. Contents do not survive growing. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace ds4::backend::cpu {

class Scratch {
public:
    /* At least `count` elements, 64-byte aligned; valid until the next call. */
    template <typename T> T *take(int64_t count) {
        const size_t bytes = static_cast<size_t>(count) * sizeof(T);
        if (bytes > bytes_) {
            data_.reset();
            bytes_ = 0;
            const size_t grown = (bytes + bytes / 4 + 63) / 64 * 64;
            data_.reset(static_cast<std::byte *>(::operator new(grown, kAlignment)));
            bytes_ = grown;
        }
        return reinterpret_cast<T *>(data_.get());
    }

private:
    static constexpr std::align_val_t kAlignment{64};
    struct Free {
        void operator()(std::byte *data) const { ::operator delete(data, kAlignment); }
    };

    std::unique_ptr<std::byte, Free> data_;
    size_t                           bytes_ = 0;
};

} // namespace ds4::backend::cpu
