/* The native tests' framework.
 *
 *     TEST("a name that can be false") {                    // or TEST(a_name_that_can_be_false)
 *         CHECK(pool.threads() == 2);
 *         CHECK_NEAR("row of Q4_K", got, want, 1e-6);          // spans of float or double; worst absolute error
 *         CHECK_NMSE("attention avx2", got, want, 1e-10);      // normalised mean squared error
 *         CHECK_FAILS(DS4_E_ARGUMENT, open_device(7));
 *     }
 *
 * A failed check is reported and the test goes on. The comparisons print their worst element even when they pass.
 * The program runs the tests whose name contains one of its arguments, or all. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "failure.h"

namespace ds4::test {

using Body = void (*)();

struct Registration {
    Registration(const char *name, Body body, const char *file, int line);
};

void report(bool passed, const char *file, int line, std::string_view what);

/* Where test/fixtures is, plus `name`. */
std::string fixture_path(std::string_view name);

/* The whole file; a file that cannot be read fails the test and gives nothing. */
std::vector<std::byte> read_fixture(std::string_view name);

enum class Measure { worst_absolute, normalised_mean_square };

void compare(Measure measure, std::string_view what, std::span<const double> got, std::span<const double> want,
             double tolerance, const char *file, int line);

template <typename Values> std::vector<double> as_doubles(const Values &values) {
    return std::vector<double>(std::begin(values), std::end(values));
}

/* Whether the same bits stand in both. Reports the first difference. */
void compare_bits(std::string_view what, std::span<const float> got, std::span<const float> want, const char *file,
                  int line);

/* Reproducible numbers. */
class Random {
public:
    explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}

    uint32_t bits();
    float    uniform(); /* [-1, 1) */
    float    normal();
    int64_t  below(int64_t end);

    std::vector<float> normals(int64_t count, float scale = 1.0f);

private:
    uint64_t state_;
};

template <typename Call> void check_fails(ds4_status status, Call &&call, const char *text, const char *file, int line) {
    try {
        call();
    } catch (const Failure &failure) {
        report(failure.status() == status, file, line,
               std::string(text) + " failed with status " + std::to_string(failure.status()) + ": " + failure.what());
        return;
    }
    report(false, file, line, std::string(text) + " should have failed");
}

} // namespace ds4::test

#define DS4_TEST_PASTE(a, b) a##b
#define DS4_TEST_NAME(prefix, line) DS4_TEST_PASTE(prefix, line)

#define TEST(name)                                                                                                     \
    static void                          DS4_TEST_NAME(test_body_, __LINE__)();                                        \
    static const ::ds4::test::Registration DS4_TEST_NAME(test_registration_, __LINE__)(                                \
        #name, DS4_TEST_NAME(test_body_, __LINE__), __FILE__, __LINE__);                                                \
    static void DS4_TEST_NAME(test_body_, __LINE__)()

#define CHECK(condition) ::ds4::test::report(static_cast<bool>(condition), __FILE__, __LINE__, #condition)

#define CHECK_NEAR(what, got, want, tolerance)                                                                         \
    ::ds4::test::compare(::ds4::test::Measure::worst_absolute, what, ::ds4::test::as_doubles(got),                     \
                         ::ds4::test::as_doubles(want), tolerance, __FILE__, __LINE__)

#define CHECK_NMSE(what, got, want, tolerance)                                                                         \
    ::ds4::test::compare(::ds4::test::Measure::normalised_mean_square, what, ::ds4::test::as_doubles(got),             \
                         ::ds4::test::as_doubles(want), tolerance, __FILE__, __LINE__)

#define CHECK_SAME_BITS(what, got, want) ::ds4::test::compare_bits(what, got, want, __FILE__, __LINE__)

#define CHECK_FAILS(status, expression)                                                                                \
    ::ds4::test::check_fails(                                                                                          \
        status, [&] { static_cast<void>(expression); }, #expression, __FILE__, __LINE__)
