#include "runtime/file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "runtime/failure_test.h"
#include "runtime/temporary_file_test.h"

using namespace ds4;
using namespace ds4::runtime;

namespace {

/* A file whose reads follow a script: bytes of the next read, or a negative errno. After the script reads are whole. */
class ScriptedSource : public ByteSource {
public:
    ScriptedSource(std::vector<std::byte> bytes, std::vector<int> script)
        : bytes_(std::move(bytes)), script_(std::move(script)) {}

    ssize_t read_some(void *to, size_t bytes, uint64_t offset) const override {
        ++reads_;
        size_t most = bytes;
        if (next_ < script_.size()) {
            const int step = script_[next_++];
            if (step < 0) {
                errno = -step;
                return -1;
            }
            most = static_cast<size_t>(step);
        }
        if (offset >= bytes_.size()) {
            return 0;
        }
        const size_t count = std::min({most, bytes, bytes_.size() - static_cast<size_t>(offset)});
        std::memcpy(to, bytes_.data() + offset, count);
        return static_cast<ssize_t>(count);
    }
    const std::string &path() const override { return path_; }

    int reads() const { return reads_; }

private:
    std::vector<std::byte> bytes_;
    std::vector<int>       script_;
    std::string            path_ = "scripted.gguf";
    mutable size_t         next_ = 0;
    mutable int            reads_ = 0;
};

} // namespace

TEST(reads_that_come_short_or_interrupted_give_the_same_bytes) {
    const std::vector<std::byte> bytes = test::counting_bytes(5000);
    const ScriptedSource         source(bytes, {1, -EINTR, 7, -EINTR, -EINTR, 2000, 3});
    std::vector<std::byte>       got(4000);

    read_fully(source, got, 500);

    CHECK(std::equal(got.begin(), got.end(), bytes.begin() + 500));
    CHECK(source.reads() == 8);
}

TEST(a_file_that_ends_early_is_an_error_with_path_offset_and_progress) {
    const ScriptedSource   source(test::counting_bytes(1000), {});
    std::vector<std::byte> got(600);

    const test::Outcome outcome = test::outcome_of([&] { read_fully(source, got, 700); });

    CHECK(outcome.status == DS4_E_IO);
    CHECK(outcome.says("scripted.gguf"));
    CHECK(outcome.says("300 of 600 bytes at offset 700"));
}

TEST(a_failing_read_is_an_error_with_its_cause) {
    const ScriptedSource   source(test::counting_bytes(1000), {100, -EIO});
    std::vector<std::byte> got(600);

    const test::Outcome outcome = test::outcome_of([&] { read_fully(source, got, 0); });

    CHECK(outcome.status == DS4_E_IO);
    CHECK(outcome.says(std::strerror(EIO)));
    CHECK(outcome.says("100 of 600"));
}

TEST(a_missing_file_names_path_and_cause) {
    const test::Outcome outcome = test::outcome_of([] { ReadOnlyFile("/nonexistent/model.gguf", 1); });

    CHECK(outcome.status == DS4_E_IO);
    CHECK(outcome.says("/nonexistent/model.gguf"));
    CHECK(outcome.says(std::strerror(ENOENT)));
}

TEST(a_file_of_another_size_than_its_header_was_read_with_is_refused) {
    const test::TemporaryFile file(test::counting_bytes(100));

    const test::Outcome outcome = test::outcome_of([&] { ReadOnlyFile(file.path(), 101); });

    CHECK(outcome.status == DS4_E_IO);
    CHECK(outcome.says("has 100 bytes"));
    CHECK(outcome.says("101"));
}

TEST(a_directory_or_a_pipe_is_no_weight_file) {
    const test::TemporaryFile place({});
    const std::string         pipe = place.path() + ".pipe";
    CHECK(::mkfifo(pipe.c_str(), 0600) == 0);

    const test::Outcome directory = test::outcome_of([] { ReadOnlyFile("/tmp", 1); });
    const test::Outcome fifo = test::outcome_of([&] { ReadOnlyFile(pipe, 0); });
    ::unlink(pipe.c_str());

    CHECK(directory.status == DS4_E_IO && directory.says("not a regular file"));
    CHECK(fifo.status == DS4_E_IO && fifo.says("not a regular file"));
}

TEST(a_mapping_may_begin_at_any_byte) {
    const std::vector<std::byte> bytes = test::counting_bytes(3 * page_bytes() + 17);
    const test::TemporaryFile    file(bytes);
    const ReadOnlyFile           opened(file.path(), bytes.size());

    const FileMapping mapping(opened, page_bytes() + 5, page_bytes());

    CHECK(std::memcmp(mapping.at(page_bytes() + 5), bytes.data() + page_bytes() + 5, page_bytes()) == 0);
}

TEST(a_file_that_shrinks_while_in_use_is_noticed) {
    const test::TemporaryFile file(test::counting_bytes(1000));
    const ReadOnlyFile        opened(file.path(), 1000);
    opened.check_unchanged();
    CHECK(::truncate(file.path().c_str(), 999) == 0);

    const test::Outcome outcome = test::outcome_of([&] { opened.check_unchanged(); });

    CHECK(outcome.status == DS4_E_IO);
    CHECK(outcome.says("from 1000 to 999 bytes"));
}

TEST(a_file_that_is_written_to_while_in_use_is_noticed) {
    const test::TemporaryFile file(test::counting_bytes(1000));
    const ReadOnlyFile        opened(file.path(), 1000);
    const timespec            times[2] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT}, {.tv_sec = 12345, .tv_nsec = 6}};
    CHECK(::utimensat(AT_FDCWD, file.path().c_str(), times, 0) == 0);

    const test::Outcome outcome = test::outcome_of([&] { opened.check_unchanged(); });

    CHECK(outcome.status == DS4_E_IO);
    CHECK(outcome.says("written to while in use"));
}
