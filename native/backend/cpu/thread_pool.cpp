#include "backend/cpu/thread_pool.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <system_error>

#include <sched.h>

#include "failure.h"

namespace ds4::backend::cpu {

namespace {

/* state_: bits 0..14 workers inside, bit 15 open, bits 16..31 number of the loop. The number may come round again: a
 * worker that slept through 65536 loops then misses one, and others do its share. */
constexpr uint32_t kInside = 0x7fff;
constexpr uint32_t kOpen = 0x8000;
constexpr uint32_t kLoop = 0x10000;

constexpr int kWorkerSpins = 2000;
constexpr int kCallerSpins = 4000;

void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

} // namespace

ThreadPool::ThreadPool(uint32_t threads, uint64_t *cancel) : cancel_(cancel) {
    threads = std::min(threads, kInside);
    workers_.reserve(threads);
    try {
        for (uint32_t thread = 1; thread < threads; ++thread) {
            workers_.emplace_back([this, thread] { serve(thread); });
        }
    } catch (const std::system_error &error) {
        const size_t started = workers_.size();
        stop();
        throw Failure(DS4_E_DEVICE, "cannot start " + std::to_string(threads) + " threads: the system gave " +
                                        std::to_string(started + 1) + " (" + error.what() +
                                        "); ask for fewer with --threads");
    }
}

ThreadPool::~ThreadPool() {
    stop();
}

void ThreadPool::stop() noexcept {
    ending_.store(1, std::memory_order_relaxed);
    state_.fetch_add(kLoop, std::memory_order_seq_cst);
    state_.notify_all();
    for (std::thread &worker : workers_) {
        worker.join();
    }
    workers_.clear();
}

void ThreadPool::share(int64_t items, const void *body, Call call) {
    call_ = call;
    body_ = body;
    items_ = items;
    next_.store(0, std::memory_order_relaxed);
    const uint32_t loop = (state_.load(std::memory_order_relaxed) & ~(kLoop - 1)) + kLoop;
    state_.store(loop | kOpen, std::memory_order_seq_cst);
    state_.notify_all();

    take_items(0);

    uint32_t state = state_.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen;
    for (int spin = 0; (state & kInside) != 0; ++spin) {
        if (spin < kCallerSpins) {
            relax();
        } else {
            state_.wait(state, std::memory_order_acquire);
        }
        state = state_.load(std::memory_order_acquire);
    }
}

void ThreadPool::take_items(uint32_t thread) {
    for (;;) {
        const int64_t item = next_.fetch_add(1, std::memory_order_relaxed);
        if (item >= items_) {
            return;
        }
        call_(body_, item, thread);
    }
}

void ThreadPool::serve(uint32_t thread) {
    uint32_t served = 0; /* the loop this worker last took part in */
    int      spin = 0;
    for (;;) {
        uint32_t state = state_.load(std::memory_order_acquire);
        if (ending_.load(std::memory_order_relaxed) != 0) {
            return;
        }
        const uint32_t loop = state & ~(kLoop - 1);
        if (loop == served || (state & kOpen) == 0) {
            if (++spin < kWorkerSpins) {
                relax();
            } else {
                state_.wait(state, std::memory_order_acquire);
                spin = 0;
            }
            continue;
        }
        if (!state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) {
            continue;
        }
        served = loop;
        take_items(thread);
        spin = 0;
        const uint32_t after = state_.fetch_sub(1, std::memory_order_acq_rel) - 1;
        if ((after & kOpen) == 0 && (after & kInside) == 0) {
            state_.notify_all();
        }
    }
}

namespace {

/* Processors worth of time per period, or 0 for no limit. */
double read_quota(const char *path, const char *format) {
    FILE *file = std::fopen(path, "re");
    if (file == nullptr) {
        return 0.0;
    }
    double    quota = 0.0;
    double    period = 100'000.0;
    const int fields = std::fscanf(file, format, &quota, &period);
    std::fclose(file);
    return fields >= 1 && quota > 0.0 && period > 0.0 ? quota / period : 0.0;
}

} // namespace

uint32_t usable_processors() {
    uint32_t  processors = std::max(1u, std::thread::hardware_concurrency());
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        processors = std::max(1, CPU_COUNT(&set));
    }
    double quota = read_quota("/sys/fs/cgroup/cpu.max", "%lf %lf");
    if (quota == 0.0) {
        quota = read_quota("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "%lf"); /* the usual period is 100 ms */
    }
    if (quota > 0.0) {
        processors = std::min(processors, std::max(1u, static_cast<uint32_t>(std::ceil(quota))));
    }
    return processors;
}

} // namespace ds4::backend::cpu
