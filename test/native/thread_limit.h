/* For tests: a system that starts no more threads, which no limit of the system does to everybody who may run tests. */
#pragma once

#include <cstddef>

namespace ds4::test {

/* While it lives, this process starts so many more threads; further ones fail as they do when the system has no more. One at a
 * time. */
class ThreadLimit {
public:
    explicit ThreadLimit(size_t threads);
    ~ThreadLimit();
    ThreadLimit(const ThreadLimit &) = delete;
    ThreadLimit &operator=(const ThreadLimit &) = delete;

    /* Threads that were refused. */
    size_t refused() const;
};

} // namespace ds4::test
