#include "runtime/file_lock.h"

#include <fstream>
#include <memory>
#include <sstream>

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "runtime/failure_test.h"
#include "runtime/temporary_file_test.h"

using namespace ds4;
using namespace ds4::runtime;

namespace {

std::string text_of(const std::string &path) {
    std::ifstream     file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

} // namespace

TEST(a_lock_names_its_holder_and_keeps_its_file) {
    const test::TemporaryFile file(test::counting_bytes(40));
    const std::string         pid = std::to_string(::getpid());
    uint64_t                  holder = 1;
    auto                      lock = std::make_unique<FileLock>(file.path(), holder);
    CHECK(holder == 0);
    CHECK(text_of(file.path()) == pid + "\n");

    const test::Outcome second = test::outcome_of([&] { FileLock(file.path(), holder); });
    CHECK(second.status == DS4_E_BUSY);
    CHECK(second.says("pid " + pid));
    CHECK(holder == static_cast<uint64_t>(::getpid()));

    lock.reset();
    FileLock(file.path(), holder);
    CHECK(::access(file.path().c_str(), F_OK) == 0);
}

TEST(a_new_lock_file_is_for_its_owner_only) {
    const test::TemporaryFile place({});
    const std::string         path = place.path() + ".lock";
    uint64_t                  holder = 0;
    {
        const FileLock lock(path, holder);
        struct stat    status {};
        CHECK(::stat(path.c_str(), &status) == 0);
        CHECK((status.st_mode & 0077) == 0);
    }
    ::unlink(path.c_str());
}

TEST(a_planted_link_does_not_lead_to_another_file) {
    const test::TemporaryFile precious(test::counting_bytes(40));
    const std::string         link = precious.path() + ".lock";
    CHECK(::symlink(precious.path().c_str(), link.c_str()) == 0);
    uint64_t holder = 0;

    const test::Outcome outcome = test::outcome_of([&] { FileLock(link, holder); });
    ::unlink(link.c_str());

    CHECK(outcome.status == DS4_E_IO);
    CHECK(text_of(precious.path()).size() == 40);
}

TEST(an_unusable_path_is_an_io_failure) {
    uint64_t holder = 0;

    CHECK(test::outcome_of([&] { FileLock("/nonexistent/ds4.lock", holder); }).status == DS4_E_IO);
    CHECK(test::outcome_of([&] { FileLock("/tmp", holder); }).status == DS4_E_IO);
    CHECK(test::outcome_of([&] { FileLock("/dev/null", holder); }).status == DS4_E_IO);
}
