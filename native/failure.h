/* The one exception type of the native code: a status of ds4.h and a sentence for the user. */
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "include/ds4.h"

namespace ds4 {

class Failure : public std::exception {
public:
    Failure(ds4_status status, std::string sentence) : status_(status), sentence_(std::move(sentence)) {}

    ds4_status  status() const noexcept { return status_; }
    const char *what() const noexcept override { return sentence_.c_str(); }

private:
    ds4_status  status_;
    std::string sentence_;
};

} // namespace ds4
