/* Compares copies of parts of files with the files, byte by byte: for drives, buses and drivers that are not trusted. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "backend/device.h"
#include "runtime/file_reader.h"
#include "runtime/telemetry.h"

namespace ds4::runtime {

/* What is in memory, and from where. */
struct Copy {
    const FileReader *source;
    uint64_t          offset;
    uint64_t          bytes;
    const std::byte  *at;
    bool              in_host; /* in the host's memory, else in the device's */
};

class CopyCheck {
public:
    CopyCheck(backend::Device &device, Telemetry &telemetry) : device_(device), telemetry_(telemetry) {}

    /* The file is read once more for it, through the page cache. Throws Failure(DS4_E_DEVICE) with `what`, the file and the
     * offset of the first byte that differs; DS4_E_IO, DS4_E_CANCELLED. */
    void compare(std::string_view what, const Copy &copy);

private:
    backend::Device       &device_;
    Telemetry             &telemetry_;
    std::vector<std::byte> want_;
    std::vector<std::byte> got_;
};

} // namespace ds4::runtime
