/* The machine that is simulated: the cards in it, and the calls that are to fail. A process has one, as it would have one
 * real one. */
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "include/ds4.h"

namespace ds4::backend::sim {

/* A card and how much of it is taken. Everybody who opened it shares it. */
class Card {
public:
    explicit Card(const ds4_simulation &description) : description_(description) {}

    const ds4_simulation &description() const { return description_; }
    bool                  is_integrated() const { return description_.kind == DS4_DEVICE_INTEGRATED; }
    uint64_t              free_bytes() const;

    /* False, and nothing taken, when there is not so much. */
    [[nodiscard]] bool take(uint64_t bytes);
    void               give_back(uint64_t bytes);
    /* Memory of the host that stays where it is: the card's own where the two are one. */
    [[nodiscard]] bool pin(uint64_t bytes);
    void               unpin(uint64_t bytes);

private:
    uint64_t free_locked() const { return description_.vram_bytes - description_.used_bytes - taken_; }

    const ds4_simulation description_;
    mutable std::mutex   mutex_;
    uint64_t             taken_ = 0;
};

/* How a read from a file goes wrong. */
struct ReadFault {
    bool                    is_refused = false; /* EIO */
    bool                    is_short = false;   /* half of the bytes come */
    std::optional<uint64_t> wrong_at;           /* the offset in the file of a byte that comes with all its bits turned */
};

class Machine {
public:
    Machine();

    /* From now on another machine, whose calls are counted from the first again. Devices that are open keep the card they
     * have, but their calls fail as the new description says, so that a failure can be put into the middle of their life.
     * Throws Failure(DS4_E_ARGUMENT). */
    void become(const ds4_simulation &description);

    uint32_t card_count() const;
    /* Throws Failure(DS4_E_DEVICE) when there are fewer. */
    std::shared_ptr<Card> card(uint32_t index = 0) const;

    /* Counts one use of a call, of all devices. Whether it is one that is to fail. */
    bool fails(uint32_t call);
    /* Counts a read of so many bytes from there on. */
    ReadFault read_fault(uint64_t offset, uint64_t bytes);
    /* Whether the card has failed for good: then nothing that it is asked for succeeds any more. */
    bool is_lost() const;
    /* So much longer than here does each read take. */
    std::chrono::microseconds read_wait() const;

private:
    bool counts_now();

    mutable std::mutex                 mutex_;
    std::vector<std::shared_ptr<Card>> cards_; /* all alike */
    std::chrono::microseconds          read_wait_{0};
    uint32_t                           fail_call_ = DS4_SIM_CALL_NONE;
    uint32_t                           fail_count_ = 0;
    uint64_t                           fail_at_ = 0;
    uint64_t                           uses_ = 0; /* of fail_call_ */
    bool                               is_lost_ = false;
};

/* The process's. */
Machine &machine();

} // namespace ds4::backend::sim
