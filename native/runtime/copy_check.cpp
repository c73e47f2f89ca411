#include "runtime/copy_check.h"

#include <algorithm>
#include <span>
#include <string>

#include "failure.h"

namespace ds4::runtime {

namespace {

constexpr uint64_t kPieceBytes = 4u << 20;

} // namespace

void CopyCheck::compare(std::string_view what, const Copy &copy) {
    for (uint64_t done = 0; done < copy.bytes; done += kPieceBytes) {
        telemetry_.poll_cancel("comparing weights with their file");
        const uint64_t bytes = std::min(kPieceBytes, copy.bytes - done);
        want_.resize(std::max<size_t>(want_.size(), bytes));
        const std::span<std::byte> want = std::span(want_).first(bytes);
        std::span<const std::byte> got(copy.at + done, bytes);
        copy.source->read_once_more(want, copy.offset + done);
        if (!copy.in_host) {
            got_.resize(want_.size());
            device_.copy_out(got_.data(), copy.at + done, bytes);
            got = std::span(got_).first(bytes);
        }
        const auto [wrong, _] = std::ranges::mismatch(got, want);
        if (wrong != got.end()) {
            throw Failure(DS4_E_DEVICE, std::string(what) + " differs in memory for " + device_.info().name + " from " +
                                            copy.source->path() + " at byte " +
                                            std::to_string(copy.offset + done + static_cast<uint64_t>(wrong - got.begin())) +
                                            " of the file");
        }
    }
}

} // namespace ds4::runtime
