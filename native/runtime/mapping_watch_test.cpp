#include "runtime/mapping_watch.h"

#include <algorithm>
#include <csignal>
#include <memory>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "runtime/failure_test.h"
#include "runtime/file.h"
#include "runtime/temporary_file_test.h"

using namespace ds4;
using namespace ds4::runtime;

namespace {

constexpr size_t kPages = 64;

/* A mapped file of kPages pages, without what lies before its second page. */
struct Mapped {
    const std::vector<std::byte> bytes = test::counting_bytes(kPages * page_bytes());
    const test::TemporaryFile    file{bytes};
    const ReadOnlyFile           opened{file.path(), bytes.size()};
    FileMapping                  mapping{opened, page_bytes(), bytes.size() - page_bytes()};

    void cut(uint64_t pages) const { CHECK(::truncate(file.path().c_str(), static_cast<off_t>(pages * page_bytes())) == 0); }
    std::byte     read(uint64_t offset) const { return *static_cast<const volatile std::byte *>(mapping.at(offset)); }
    test::Outcome check() const {
        return test::outcome_of([this] { mapping.check_read(opened); });
    }
};

/* How a child process ends that does this. */
template <typename Body> int end_of(Body &&body) {
    const pid_t child = ::fork();
    if (child == 0) {
        body();
        ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return status;
}

} // namespace

TEST(reading_what_the_file_has_lost_is_a_failure_with_file_and_offset) {
    const Mapped   mapped;
    const uint64_t offset = 20 * page_bytes() + 7;
    CHECK(mapped.read(offset) == mapped.bytes[offset]);
    CHECK(mapped.check().status == DS4_OK);

    mapped.cut(10);
    CHECK(mapped.check().status == DS4_OK); /* nothing was read yet */
    CHECK(mapped.read(offset) == std::byte{0});
    const test::Outcome outcome = mapped.check();

    CHECK(outcome.status == DS4_E_IO);
    CHECK(outcome.says(mapped.file.path() + " at offset " + std::to_string(offset)));
    CHECK(outcome.says("cut from " + std::to_string(mapped.bytes.size()) + " to " + std::to_string(10 * page_bytes())));
}

TEST(what_was_lost_stays_lost_when_the_file_is_whole_again) {
    const Mapped mapped;
    mapped.cut(0);
    mapped.read(5 * page_bytes());
    mapped.cut(kPages);

    const test::Outcome outcome = mapped.check();

    CHECK(outcome.status == DS4_E_IO);
    CHECK(outcome.says("at offset " + std::to_string(5 * page_bytes())));
    CHECK(outcome.says("restored"));
}

TEST(many_threads_may_find_the_loss_at_once) {
    for (int round = 0; round < 20; ++round) {
        const Mapped             mapped;
        std::vector<std::jthread> readers;
        mapped.cut(0);
        for (size_t reader = 0; reader < 4; ++reader) {
            readers.emplace_back([&mapped, reader] {
                for (uint64_t page = 1 + reader; page < kPages; page += 3) {
                    mapped.read(page * page_bytes());
                }
            });
        }
        readers.clear();

        CHECK(mapped.check().status == DS4_E_IO);
    }
}

TEST(the_loss_of_one_mapping_is_not_that_of_another) {
    const Mapped whole;
    Mapped       cut;
    cut.cut(0);
    cut.read(page_bytes());
    const FileMapping taken = std::move(cut.mapping);

    CHECK(whole.check().status == DS4_OK);
    CHECK(whole.read(3 * page_bytes()) == whole.bytes[3 * page_bytes()]);
    CHECK(cut.check().status == DS4_OK); /* it has gone with the mapping */
    CHECK(test::outcome_of([&] { taken.check_read(cut.opened); }).status == DS4_E_IO);
}

TEST(a_place_is_given_back_with_its_mapping) {
    const Mapped mapped;
    for (int i = 0; i < 3000; ++i) {
        const FileMapping again(mapped.opened, 0, page_bytes());
    }
    std::vector<FileMapping> many;
    const test::Outcome      outcome = test::outcome_of([&] {
        for (int i = 0; i < 3000; ++i) {
            many.emplace_back(mapped.opened, 0, page_bytes());
        }
    });

    CHECK(outcome.status == DS4_E_NO_MEMORY);
    CHECK(outcome.says("1024 are mapped already"));
    many.clear();
    CHECK(test::outcome_of([&] { many.emplace_back(mapped.opened, 0, page_bytes()); }).status == DS4_OK);
}

TEST(a_bus_error_elsewhere_still_ends_the_process) {
    const Mapped mapped; /* so that the handler is there */
    const auto   elsewhere = [&] {
        void *const other = ::mmap(nullptr, page_bytes(), PROT_READ, MAP_SHARED, mapped.opened.descriptor(), 0);
        mapped.cut(0);
        static_cast<void>(*static_cast<const volatile char *>(other));
    };

    /* By the signal, or by a sanitizer that was there before us. */
    CHECK(end_of(elsewhere) != 0);
    CHECK(end_of([] { ::raise(SIGBUS); }) != 0);
}

TEST(a_thread_that_was_started_with_the_signal_blocked_can_accept_it) {
    const Mapped mapped;
    mapped.cut(0);
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    std::jthread([&] {
        accept_mapping_signals();
        mapped.read(page_bytes());
    }).join();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);

    CHECK(mapped.check().status == DS4_E_IO);
}
