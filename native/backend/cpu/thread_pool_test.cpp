#include "backend/cpu/thread_pool.h"

#include <chrono>
#include <vector>

#include "check.h"
#include "thread_limit.h"

using ds4::backend::cpu::ThreadPool;

namespace {

constexpr int64_t kPlenty = int64_t{1} << 40; /* work enough to be shared */

} // namespace

TEST("every item runs exactly once, on a thread of the pool, in loop after loop") {
    for (const uint32_t threads : {1u, 2u, 3u, 5u}) {
        ThreadPool           pool(threads);
        std::vector<int>     runs(1000);
        std::atomic<int64_t> foreign = 0;
        CHECK(pool.threads() == threads);
        for (int loop = 0; loop < 200; ++loop) {
            pool.run(static_cast<int64_t>(runs.size()), kPlenty, [&](int64_t item, uint32_t thread) {
                ++runs[static_cast<size_t>(item)];
                foreign += thread >= threads ? 1 : 0;
            });
        }
        CHECK(foreign == 0);
        CHECK(runs == std::vector<int>(1000, 200));
    }
}

TEST("ranges cover all items without overlap") {
    ThreadPool pool(2);
    for (const int64_t items : {0, 1, 2, 7, 8, 9, 1000}) {
        std::vector<int> runs(static_cast<size_t>(items));
        pool.run_ranges(items, kPlenty, [&](int64_t first, int64_t last, uint32_t) {
            for (int64_t item = first; item < last; ++item) {
                ++runs[static_cast<size_t>(item)];
            }
        });
        CHECK(runs == std::vector<int>(static_cast<size_t>(items), 1));
    }
}

TEST("small work stays on the caller") {
    ThreadPool            pool(3);
    const auto            caller = std::this_thread::get_id();
    bool                  only_caller = true;

    pool.run(100, 10, [&](int64_t, uint32_t) { only_caller = only_caller && std::this_thread::get_id() == caller; });

    CHECK(only_caller);
}

TEST("sleeping workers come back for the next loop, and a pool without work can be closed") {
    ThreadPool           pool(2);
    std::atomic<int64_t> sum = 0;
    for (int round = 0; round < 3; ++round) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5)); /* longer than a worker looks for work */
        pool.run(50, kPlenty, [&](int64_t item, uint32_t) { sum += item; });
    }
    CHECK(sum == 3 * 49 * 50 / 2);
    const ThreadPool idle(4);
    CHECK(idle.threads() == 4);
}

TEST("there is at least one processor to use") {
    CHECK(ds4::backend::cpu::usable_processors() >= 1);
}

TEST("a cancelled loop stops taking items and says so, and the next one runs again") {
    for (const uint32_t threads : {1u, 2u, 3u}) {
        uint64_t             cancel = 0;
        ThreadPool           pool(threads, &cancel);
        std::atomic<int64_t> ran = 0;

        CHECK_FAILS(DS4_E_CANCELLED, pool.run(1000, kPlenty, [&](int64_t, uint32_t) {
            ++ran;
            std::atomic_ref<uint64_t>(cancel).store(1, std::memory_order_relaxed);
        }));
        CHECK(ran < 1000);

        cancel = 0;
        ran = 0;
        pool.run(1000, kPlenty, [&](int64_t, uint32_t) { ++ran; });
        CHECK(ran == 1000);
    }
}

TEST("a pool that the system gives too few threads says how many there were, and ends those") {
    for (const size_t started : {0u, 1u, 3u}) {
        const ds4::test::ThreadLimit limit(started);

        CHECK_FAILS(DS4_E_DEVICE, ThreadPool(5));
        CHECK(limit.refused() == 1);
    }
    const ThreadPool whole(5);
    CHECK(whole.threads() == 5);
}
