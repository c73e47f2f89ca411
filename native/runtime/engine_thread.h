/* One thread that does the work of a model's calls, one at a time, while the caller waits.
 *
 * Calls arrive on stacks whose size is not ours to choose (the FFI gives an asynchronous call as little as 128 KiB), and
 * kernels keep thread-bound state; so the work always runs here. */
#pragma once

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <type_traits>

#include <pthread.h>

namespace ds4::runtime {

class EngineThread {
public:
    EngineThread();
    ~EngineThread(); /* joins; must not run on the engine thread itself */
    EngineThread(const EngineThread &) = delete;
    EngineThread &operator=(const EngineThread &) = delete;

    /* Runs `body` on the thread and waits for it; what it throws is thrown here. */
    template <typename Body> void run(Body &&body) {
        using Plain = std::remove_reference_t<Body>;
        run_job([](void *erased) { (*static_cast<Plain *>(erased))(); }, std::addressof(body));
    }

private:
    using Job = void (*)(void *);

    void         run_job(Job job, void *body);
    void         serve();
    static void *entry(void *self);

    std::mutex              turn_;  /* held by the caller whose job runs; others queue here */
    std::mutex              mutex_; /* guards what follows */
    std::condition_variable changed_;
    Job                     job_ = nullptr;
    void                   *body_ = nullptr;
    bool                    done_ = false;
    bool                    closing_ = false;
    std::exception_ptr      thrown_;
    pthread_t               thread_{};
};

} // namespace ds4::runtime
