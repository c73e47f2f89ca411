/* Workers that share loops with the caller.
 *
 * A loop is a number of items; threads take the next few until none is left. The caller takes part and never waits for
 * a worker that has not begun: on a busy machine a worker that gets no processor costs nothing. Idle workers look for
 * work for some tens of microseconds, so that the next loop of the same token starts at once, then sleep. */
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "failure.h"

namespace ds4::backend::cpu {

class ThreadPool {
public:
    /* `threads` counts the caller; at least 1. While the word at `cancel` is not 0, large loops end early and throw: a
     * single one can take a second on a small machine. Throws Failure(DS4_E_DEVICE) if the system gives no thread. */
    explicit ThreadPool(uint32_t threads, uint64_t *cancel = nullptr);
    ~ThreadPool();
    ThreadPool(const ThreadPool &) = delete;
    ThreadPool &operator=(const ThreadPool &) = delete;

    uint32_t threads() const { return static_cast<uint32_t>(workers_.size()) + 1; }

    /* Calls body(item, thread) for each item of [0, items), thread in [0, threads()). `work` is a guess of the
     * multiplications of the whole loop; small loops run on the caller alone. Not reentrant, one caller at a time.
     * The body must not throw. Throws Failure(DS4_E_CANCELLED); then some items did not run. */
    template <typename Body> void run(int64_t items, int64_t work, const Body &body) {
        if (items <= 1 || work < kSmallWork) {
            for (int64_t item = 0; item < items; ++item) {
                body(item, uint32_t{0});
            }
            return;
        }
        const auto unless_cancelled = [&](int64_t item, uint32_t thread) {
            if (!cancelled()) {
                body(item, thread);
            }
        };
        if (workers_.empty()) {
            for (int64_t item = 0; item < items; ++item) {
                unless_cancelled(item, uint32_t{0});
            }
        } else {
            using Checked = decltype(unless_cancelled);
            share(items, &unless_cancelled, [](const void *opaque, int64_t item, uint32_t thread) {
                (*static_cast<const Checked *>(opaque))(item, thread);
            });
        }
        if (cancelled()) {
            throw Failure(DS4_E_CANCELLED, "the evaluation was cancelled");
        }
    }

    /* The same with ranges of items: body(first, last, thread). For many small items. */
    template <typename Body> void run_ranges(int64_t items, int64_t work, const Body &body) {
        if (work < kSmallWork) {
            if (items > 0) {
                body(int64_t{0}, items, uint32_t{0});
            }
            return;
        }
        const int64_t ranges = std::min<int64_t>(items, int64_t{threads()} * kRangesPerThread);
        run(ranges, work, [&](int64_t range, uint32_t thread) {
            body(items * range / ranges, items * (range + 1) / ranges, thread);
        });
    }

    /* Into how many pieces a loop should be cut for each thread: more than one, because a thread may start late or lose
     * its processor for a while. */
    static constexpr int64_t kRangesPerThread = 4;

private:
    using Call = void (*)(const void *body, int64_t item, uint32_t thread);

    /* What a loop must be worth before other threads are asked: waking them costs about as much as this many
     * multiplications. */
    static constexpr int64_t kSmallWork = 40'000;

    bool cancelled() const {
        return cancel_ != nullptr && std::atomic_ref<uint64_t>(*cancel_).load(std::memory_order_relaxed) != 0;
    }

    void share(int64_t items, const void *body, Call call);
    void take_items(uint32_t thread);
    void serve(uint32_t thread);
    void stop() noexcept;

    uint64_t *const cancel_;

    /* The loop in progress. Written only while it is closed and no worker is inside. */
    Call        call_ = nullptr;
    const void *body_ = nullptr;
    int64_t     items_ = 0;

    /* Apart from each other, because different threads write them all the time. */
    alignas(64) std::atomic<int64_t> next_{0};
    alignas(64) std::atomic<uint32_t> state_{0};  /* number of the loop, open bit, workers inside */
    alignas(64) std::atomic<uint32_t> ending_{0};

    std::vector<std::thread> workers_;
};

/* Processors this process may use: its affinity mask, cut to the quota of its control group. */
uint32_t usable_processors();

} // namespace ds4::backend::cpu
