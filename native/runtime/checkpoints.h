/* Copies of what the rings of a KvCache will overwrite, so that a session can return exactly to positions that lie farther
 * back than the rings reach. Compressed rows need no copy: they are only appended. */
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "backend/device.h"
#include "runtime/kv_cache.h"

namespace ds4::runtime {

class Checkpoints {
public:
    /* Room for `count` states of `cache`, taken now, so that saving one cannot fail. */
    Checkpoints(backend::Device &device, const KvCache &cache, uint32_t count);

    static uint64_t bytes_of_one(const KvCache &cache);
    /* The same before there is a cache. */
    static uint64_t bytes_of_one(const KvShape &shape);

    /* Remembers the present state; when there is no room, instead of the one saved longest ago. */
    void save(const KvCache &cache);

    /* The farthest saved position at or before `position`. */
    std::optional<uint64_t> latest_at(uint64_t position) const;
    /* Puts back the state saved at `position`, which must exist. */
    void restore(KvCache &cache, uint64_t position) const;

    /* Positions after `position` are about to hold other tokens: states saved there are void. */
    void forget_after(uint64_t position);

private:
    struct Slot {
        float   *data = nullptr;
        uint64_t position = 0;
        uint64_t age = 0; /* when it was saved; 0: free */
    };

    backend::Device    &device_;
    backend::Allocation memory_;
    std::vector<Slot>   slots_;
    uint64_t            saved_ = 0;
};

} // namespace ds4::runtime
