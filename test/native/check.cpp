#include "check.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>

namespace ds4::test {

namespace {

struct Case {
    std::string name;
    Body        body;
    const char *file;
    int         line;
};

std::vector<Case> &cases() {
    static std::vector<Case> all;
    return all;
}

size_t failed_checks = 0;

} // namespace

Registration::Registration(const char *name, Body body, const char *file, int line) {
    /* The macro hands over the spelling of its argument: a string with its quotes or an identifier. */
    std::string sentence(name);
    std::erase(sentence, '"');
    std::replace(sentence.begin(), sentence.end(), '_', ' ');
    cases().push_back({std::move(sentence), body, file, line});
}

void report(bool passed, const char *file, int line, std::string_view what) {
    if (!passed) {
        ++failed_checks;
        std::printf("    %s:%d: failed: %.*s\n", file, line, static_cast<int>(what.size()), what.data());
    }
}

std::string fixture_path(std::string_view name) {
    const char *folder = std::getenv("DS4_TEST_FIXTURES");
    return std::string(folder != nullptr ? folder : "test/fixtures") + "/" + std::string(name);
}

std::vector<std::byte> read_fixture(std::string_view name) {
    const std::string path = fixture_path(name);
    FILE             *file = std::fopen(path.c_str(), "rb");
    report(file != nullptr, __FILE__, __LINE__, "open " + path + " (run from the root of the project)");
    std::vector<std::byte> bytes;
    if (file == nullptr) {
        return bytes;
    }
    std::byte block[4096];
    size_t    count = 0;
    while ((count = std::fread(block, 1, sizeof block, file)) != 0) {
        bytes.insert(bytes.end(), block, block + count);
    }
    std::fclose(file);
    return bytes;
}

void compare(Measure measure, std::string_view what, std::span<const double> got, std::span<const double> want,
             double tolerance, const char *file, int line) {
    if (got.size() != want.size()) {
        report(false, file, line,
               std::string(what) + ": " + std::to_string(got.size()) + " values, wanted " + std::to_string(want.size()));
        return;
    }
    size_t worst = 0;
    double worst_error = 0.0;
    double squares = 0.0;
    double norm = 0.0;
    for (size_t i = 0; i < got.size(); ++i) {
        double error = std::fabs(got[i] - want[i]);
        if (got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i]))) {
            error = 0.0; /* equal infinities too */
        } else if (std::isnan(error)) {
            error = INFINITY;
        }
        if (error > worst_error) {
            worst = i;
            worst_error = error;
        }
        squares += error * error;
        norm += std::isfinite(want[i]) ? want[i] * want[i] : 0.0;
    }
    const double nmse = squares == 0.0 ? 0.0 : squares / std::max(norm, 1e-300);
    const bool   by_worst = measure == Measure::worst_absolute;
    const bool   passed = (by_worst ? worst_error : nmse) <= tolerance;
    char         text[512];
    std::snprintf(text, sizeof text, "%.*s: nmse %.3g, worst error %.3g at %zu of %zu (got %.9g, want %.9g), allowed %s %.3g",
                  static_cast<int>(what.size()), what.data(), nmse, worst_error, worst, got.size(),
                  got.empty() ? 0.0 : got[worst], want.empty() ? 0.0 : want[worst], by_worst ? "error" : "nmse", tolerance);
    if (passed) {
        std::printf("    %s\n", text);
    } else {
        report(false, file, line, text);
    }
}

void compare_bits(std::string_view what, std::span<const float> got, std::span<const float> want, const char *file,
                  int line) {
    if (got.size() != want.size()) {
        report(false, file, line, std::string(what) + ": different lengths");
        return;
    }
    for (size_t i = 0; i < got.size(); ++i) {
        if (std::bit_cast<uint32_t>(got[i]) != std::bit_cast<uint32_t>(want[i])) {
            char text[256];
            std::snprintf(text, sizeof text, "%.*s: element %zu of %zu is %.9g (%08x), wanted %.9g (%08x)",
                          static_cast<int>(what.size()), what.data(), i, got.size(), static_cast<double>(got[i]),
                          std::bit_cast<uint32_t>(got[i]), static_cast<double>(want[i]), std::bit_cast<uint32_t>(want[i]));
            report(false, file, line, text);
            return;
        }
    }
}

uint32_t Random::bits() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<uint32_t>(state_ >> 32);
}

float Random::uniform() {
    return static_cast<float>(bits() >> 8) * 0x1p-23f - 1.0f;
}

float Random::normal() {
    /* The sum of twelve uniform numbers is normal enough. */
    float total = 0.0f;
    for (int i = 0; i < 12; ++i) {
        total += uniform();
    }
    return total * 0.5f;
}

int64_t Random::below(int64_t end) {
    return static_cast<int64_t>(bits() % static_cast<uint64_t>(end));
}

std::vector<float> Random::normals(int64_t count, float scale) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float &value : values) {
        value = normal() * scale;
    }
    return values;
}

} // namespace ds4::test

int main(int argument_count, char **arguments) {
    using namespace ds4::test;
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    std::sort(cases().begin(), cases().end(), [](const Case &a, const Case &b) {
        const int order = std::strcmp(a.file, b.file);
        return order != 0 ? order < 0 : a.line < b.line;
    });
    size_t passed = 0;
    size_t failed = 0;
    for (const Case &one : cases()) {
        const bool wanted = argument_count < 2 || std::any_of(arguments + 1, arguments + argument_count, [&](const char *part) {
                                return std::strstr(one.name.c_str(), part) != nullptr || std::strstr(one.file, part) != nullptr;
                            });
        if (!wanted) {
            continue;
        }
        std::printf("%s: %s\n", one.file, one.name.c_str());
        const size_t before = failed_checks;
        try {
            one.body();
        } catch (const std::exception &error) {
            report(false, one.file, one.line, std::string("exception: ") + error.what());
        }
        ++(failed_checks == before ? passed : failed);
    }
    std::printf("%zu passed, %zu failed\n", passed, failed);
    return failed == 0 && passed != 0 ? 0 : 1;
}
