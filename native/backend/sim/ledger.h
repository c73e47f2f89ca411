/* What a simulated device moved and holds, in the DS4_WORD_SIM_* of ds4.h. Several threads may write at once; all amounts are
 * integers that are only added, so that their order does not show. */
#pragma once

#include <cstdint>

#include "include/ds4.h"

namespace ds4::backend::sim {

class Ledger {
public:
    /* `words` may be nullptr: then nothing is written. Begins the account anew, but for what is alive. */
    Ledger(uint64_t *words, const ds4_simulation &machine);

    void call() const { add(DS4_WORD_SIM_CALLS, 1); }

    void copied_in(uint64_t bytes) const;
    void copied_out(uint64_t bytes) const;
    void read_mapped(uint64_t bytes) const;
    void read_disk(uint64_t bytes) const;

    void allocated(uint64_t bytes) const;
    void freed(uint64_t bytes) const;
    void pinned(uint64_t bytes) const { add(DS4_WORD_SIM_PINNED_BYTES, bytes); }
    void unpinned(uint64_t bytes) const { subtract(DS4_WORD_SIM_PINNED_BYTES, bytes); }

private:
    void add(uint32_t word, uint64_t value) const;
    void subtract(uint32_t word, uint64_t value) const;

    uint64_t            *words_;
    const ds4_simulation machine_;
};

} // namespace ds4::backend::sim
