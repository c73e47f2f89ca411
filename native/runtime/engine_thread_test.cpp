#include "runtime/engine_thread.h"

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include <pthread.h>

#include "check.h"
#include "runtime/failure_test.h"

using namespace ds4;
using namespace ds4::runtime;

namespace {

/* Not inlined and not a leaf, so that each call really takes its kilobytes of stack. */
__attribute__((noinline)) int use_stack(int frames) {
    char bytes[16384];
    std::memset(bytes, frames & 127, sizeof(bytes));
    volatile char *const kept = bytes;
    return frames == 0 ? kept[1] : use_stack(frames - 1) + kept[2];
}

} // namespace

TEST(a_job_runs_on_the_engine_thread_and_is_over_when_run_returns) {
    EngineThread thread;
    pthread_t    ran_on = pthread_self();
    int          jobs = 0;

    thread.run([&] { ran_on = pthread_self(); });
    for (int i = 0; i < 100; ++i) {
        thread.run([&] { ++jobs; });
    }

    CHECK(pthread_equal(ran_on, pthread_self()) == 0);
    CHECK(jobs == 100);
}

TEST(what_a_job_throws_is_thrown_at_the_caller_and_the_thread_goes_on) {
    EngineThread thread;

    const test::Outcome outcome =
        test::outcome_of([&] { thread.run([] { throw Failure(DS4_E_DEVICE, "broken"); }); });
    int later = 0;
    thread.run([&] { later = 1; });

    CHECK(outcome.status == DS4_E_DEVICE);
    CHECK(outcome.says("broken"));
    CHECK(later == 1);
}

TEST(jobs_have_megabytes_of_stack_whatever_the_caller_has) {
    EngineThread thread;
    int          result = 0;

    thread.run([&] { result = use_stack(256); }); /* 4 MiB */

    CHECK(result > 0);
}

TEST(a_job_may_ask_for_another_job) {
    EngineThread thread;
    int          result = 0;

    thread.run([&] { thread.run([&] { result = 7; }); });

    CHECK(result == 7);
}

TEST(callers_on_several_threads_take_turns) {
    EngineThread             thread;
    int                      sum = 0; /* no atomic: only the engine thread touches it */
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 4; ++caller) {
        callers.emplace_back([&] {
            for (int i = 0; i < 200; ++i) {
                thread.run([&] { ++sum; });
            }
        });
    }
    for (std::thread &caller : callers) {
        caller.join();
    }

    CHECK(sum == 800);
}
