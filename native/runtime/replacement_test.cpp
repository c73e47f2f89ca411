#include "runtime/replacement.h"

#include <algorithm>
#include <vector>

#include "check.h"

using namespace ds4::runtime;

namespace {

bool any(size_t) { return true; }

} // namespace

TEST(the_least_recently_used_slot_goes_first) {
    LeastRecentlyUsed order(4);
    CHECK(!order.victim(any));
    for (const size_t slot : {0u, 1u, 2u, 3u, 1u, 0u}) {
        order.touch(slot, 1);
    }

    CHECK(order.victim(any) == 2u);
    CHECK(order.victim([](size_t slot) { return slot != 2; }) == 3u);
    order.forget(2);
    order.forget(2); /* twice is no harm */
    CHECK(order.victim(any) == 3u);
    order.forget(3);
    order.forget(0);
    order.forget(1);
    CHECK(!order.victim(any));
}

TEST(least_recently_used_agrees_with_a_list_of_uses) {
    LeastRecentlyUsed   order(16);
    std::vector<size_t> uses;
    uint64_t            state = 12345;
    for (int step = 0; step < 2000; ++step) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const size_t slot = state >> 60;
        std::erase(uses, slot);
        if ((state >> 40) % 5 == 0) {
            order.forget(slot);
        } else {
            order.touch(slot, 1);
            uses.push_back(slot);
        }
        CHECK(order.victim(any) == (uses.empty() ? std::nullopt : std::optional(uses.front())));
    }
}

TEST(a_slot_that_was_used_often_outlives_one_that_was_used_later) {
    LeastFrequentlyRecentlyUsed order(3);
    for (uint64_t token = 1; token <= 8; ++token) {
        order.touch(0, token); /* 8 uses: worth 203 tokens */
    }
    order.touch(1, 100);
    CHECK(order.victim(any) == 1u);
    order.touch(1, 160);
    CHECK(order.victim(any) == 0u);
}

TEST(uses_lose_half_their_worth_after_a_thousand_tokens) {
    LeastFrequentlyRecentlyUsed order(2);
    for (int use = 0; use < 15; ++use) {
        order.touch(0, 1);
    }
    order.touch(0, 4096); /* 15 uses have become none, and this one */
    order.touch(1, 4097);
    CHECK(order.victim(any) == 0u);
    CHECK(order.victim([](size_t slot) { return slot == 1; }) == 1u);
}

TEST(the_order_of_both_policies_ends_with_whoever_goes_first) {
    LeastRecentlyUsed           recent(8);
    LeastFrequentlyRecentlyUsed frequent(8);
    uint64_t                    state = 99;
    for (uint64_t token = 1; token < 500; ++token) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        recent.touch(state >> 61, token);
        frequent.touch(state >> 61, token);
        for (const Replacement *order : {static_cast<Replacement *>(&recent), static_cast<Replacement *>(&frequent)}) {
            std::vector<size_t> slots = order->order();
            CHECK(order->victim(any) == slots.back());
            CHECK(order->victim([&](size_t slot) { return slot == slots.front(); }) == slots.front());
        }
        CHECK(recent.order().front() == state >> 61);
    }
    CHECK(recent.order().size() == 8 && frequent.order().size() == 8);
    recent.forget(3);
    frequent.forget(3);
    CHECK(std::ranges::count(recent.order(), 3u) == 0 && std::ranges::count(frequent.order(), 3u) == 0);
    CHECK(recent.order().size() == 7 && frequent.order().size() == 7);
}
