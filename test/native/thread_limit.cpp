#include "thread_limit.h"

#include <atomic>
#include <cerrno>
#include <limits>

#include <dlfcn.h>
#include <pthread.h>

namespace {

constexpr size_t    kNoLimit = std::numeric_limits<size_t>::max();
std::atomic<size_t> threads_left = kNoLimit;
std::atomic<size_t> refusals = 0;

using Create = int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

} // namespace

/* The program's own comes before the library's: std::thread calls it. */
extern "C" __attribute__((visibility("default"))) int pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                                                                     void *(*body)(void *), void *argument) {
    static const auto create = reinterpret_cast<Create>(::dlsym(RTLD_NEXT, "pthread_create"));
    size_t            left = threads_left.load();
    while (left != kNoLimit && left > 0 && !threads_left.compare_exchange_weak(left, left - 1)) {
    }
    if (left == 0) {
        ++refusals;
        return EAGAIN;
    }
    return create(thread, attributes, body, argument);
}

namespace ds4::test {

ThreadLimit::ThreadLimit(size_t threads) {
    refusals = 0;
    threads_left = threads;
}

ThreadLimit::~ThreadLimit() {
    threads_left = kNoLimit;
}

size_t ThreadLimit::refused() const {
    return refusals;
}

} // namespace ds4::test
