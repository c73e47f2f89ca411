/* For tests: what a piece of code failed with. */
#pragma once

#include <string>

#include "failure.h"

namespace ds4::test {

struct Outcome {
    ds4_status  status = DS4_OK;
    std::string sentence;

    bool says(const std::string &part) const { return sentence.find(part) != std::string::npos; }
};

template <typename Body> Outcome outcome_of(Body &&body) {
    try {
        body();
        return {};
    } catch (const Failure &failure) {
        return {failure.status(), failure.what()};
    }
}

} // namespace ds4::test
