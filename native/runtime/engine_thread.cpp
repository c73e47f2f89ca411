#include "runtime/engine_thread.h"

#include <cstring>
#include <string>
#include <utility>

#include "failure.h"
#include "runtime/mapping_watch.h"

namespace ds4::runtime {

namespace {

constexpr size_t kStackBytes = 8u << 20;

struct ThreadAttributes {
    ThreadAttributes() { pthread_attr_init(&value); }
    ~ThreadAttributes() { pthread_attr_destroy(&value); }
    ThreadAttributes(const ThreadAttributes &) = delete;
    ThreadAttributes &operator=(const ThreadAttributes &) = delete;

    pthread_attr_t value;
};

} // namespace

EngineThread::EngineThread() {
    ThreadAttributes attributes;
    int error = pthread_attr_setstacksize(&attributes.value, kStackBytes);
    if (error == 0) {
        error = pthread_create(&thread_, &attributes.value, &EngineThread::entry, this);
    }
    if (error != 0) {
        throw Failure(DS4_E_NO_MEMORY, std::string("cannot start the engine thread: ") + std::strerror(error));
    }
}

EngineThread::~EngineThread() {
    {
        const std::lock_guard lock(mutex_);
        closing_ = true;
    }
    changed_.notify_all();
    pthread_join(thread_, nullptr);
}

void EngineThread::run_job(Job job, void *body) {
    if (pthread_equal(pthread_self(), thread_) != 0) {
        job(body);
        return;
    }
    const std::lock_guard turn(turn_);
    std::unique_lock      lock(mutex_);
    job_ = job;
    body_ = body;
    done_ = false;
    changed_.notify_all();
    changed_.wait(lock, [this] { return done_; });
    const std::exception_ptr thrown = std::exchange(thrown_, nullptr);
    lock.unlock();
    if (thrown) {
        std::rethrow_exception(thrown);
    }
}

void EngineThread::serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this] { return job_ != nullptr || closing_; });
        if (job_ == nullptr) {
            return;
        }
        const Job          job = std::exchange(job_, nullptr);
        void *const        body = body_;
        std::exception_ptr thrown;
        lock.unlock();
        try {
            job(body);
        } catch (...) {
            thrown = std::current_exception();
        }
        lock.lock();
        thrown_ = std::move(thrown);
        done_ = true;
        changed_.notify_all();
    }
}

void *EngineThread::entry(void *self) {
    accept_mapping_signals();
    static_cast<EngineThread *>(self)->serve();
    return nullptr;
}

} // namespace ds4::runtime
