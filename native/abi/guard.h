/* The edge of the library: nothing thrown behind it gets past it. */
#pragma once

#include <exception>
#include <new>

#include "failure.h"

namespace ds4::abi {

/* Writes the sentence into the caller's buffer, cut at the end of a character when it is too long. Returns `status`. */
ds4_status report(ds4_error *error, ds4_status status, const char *sentence) noexcept;

/* Turns C++ failure into C status. Everything behind it may throw; nothing in front of it ever sees an exception. */
template <typename Body> ds4_status guarded(ds4_error *error, Body &&body) noexcept {
    try {
        body();
        return DS4_OK;
    } catch (const Failure &failure) {
        return report(error, failure.status(), failure.what());
    } catch (const std::bad_alloc &) {
        return report(error, DS4_E_NO_MEMORY, "out of host memory");
    } catch (const std::exception &unexpected) {
        return report(error, DS4_E_INTERNAL, unexpected.what());
    } catch (...) {
        return report(error, DS4_E_INTERNAL, "unknown exception");
    }
}

} // namespace ds4::abi
