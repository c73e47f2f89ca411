/* Which slot gives up what it holds. Slots are numbers below a count; a slot is known from its first touch until it is
 * forgotten. Which policy is the better one was decided by replaying recorded choices: docs/memory.md. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace ds4::runtime {

enum class ReplacementPolicy { lru, lfru };

/* Time is counted in tokens. */
class Replacement {
public:
    virtual ~Replacement() = default;
    virtual void touch(size_t slot, uint64_t token) = 0;
    virtual void forget(size_t slot) = 0;
    /* The known slot that is missed least, of those that may go. */
    virtual std::optional<size_t> victim(const std::function<bool(size_t)> &may_go) const = 0;
    /* The known slots, the one that is missed most first. */
    virtual std::vector<size_t> order() const = 0;
};

/* The slot that was not used for longest. */
class LeastRecentlyUsed final : public Replacement {
public:
    explicit LeastRecentlyUsed(size_t slots) : links_(slots + 1) { links_[end()] = {end(), end()}; }

    void touch(size_t slot, uint64_t) override {
        forget(slot);
        Link &first = links_[end()];
        links_[slot] = {end(), first.next};
        links_[first.next].previous = slot;
        first.next = slot;
    }
    void forget(size_t slot) override {
        Link &link = links_[slot];
        if (link.next != kUnknown) {
            links_[link.next].previous = link.previous;
            links_[link.previous].next = link.next;
            link = {};
        }
    }
    std::optional<size_t> victim(const std::function<bool(size_t)> &may_go) const override {
        for (size_t slot = links_[end()].previous; slot != end(); slot = links_[slot].previous) {
            if (may_go(slot)) {
                return slot;
            }
        }
        return std::nullopt;
    }
    std::vector<size_t> order() const override {
        std::vector<size_t> slots;
        for (size_t slot = links_[end()].next; slot != end(); slot = links_[slot].next) {
            slots.push_back(slot);
        }
        return slots;
    }

private:
    static constexpr size_t kUnknown = std::numeric_limits<size_t>::max();
    struct Link {
        size_t previous = kUnknown;
        size_t next = kUnknown;
    };
    size_t end() const { return links_.size() - 1; }

    std::vector<Link> links_; /* a ring from the latest to the earliest; the last link is where it begins and ends */
};

/* The same, but a slot that was used often counts as used later: by 64 tokens for each doubling of its uses. Uses count half
 * after each 1024 tokens, so that an old favourite does not stay for ever. */
class LeastFrequentlyRecentlyUsed final : public Replacement {
public:
    explicit LeastFrequentlyRecentlyUsed(size_t slots) : slots_(slots) {}

    void                  touch(size_t slot, uint64_t token) override;
    void                  forget(size_t slot) override;
    std::optional<size_t> victim(const std::function<bool(size_t)> &may_go) const override;
    std::vector<size_t>   order() const override;

private:
    struct Slot {
        bool     known = false;
        double   score = 0;
        uint64_t uses = 0;
        uint64_t token = 0;
    };

    std::vector<Slot>                   slots_;
    std::set<std::pair<double, size_t>> by_score_;
};

std::unique_ptr<Replacement> make_replacement(ReplacementPolicy policy, size_t slots);

} // namespace ds4::runtime
