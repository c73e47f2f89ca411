/* Parts of files into device memory: through pinned buffers that several threads fill, or from a mapping of the file. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "backend/device.h"
#include "runtime/file_reader.h"
#include "runtime/telemetry.h"

namespace ds4::runtime {

struct UploadPiece {
    const FileReader *source;
    uint64_t          offset;
    uint64_t          bytes;
    std::byte        *to; /* device memory */
    bool              to_host = false; /* no, the host's */
    std::string_view  name = {}; /* of the tensor, for sentences; outlives the upload */
};

/* How much host memory is pinned, and by how many threads it is filled. When there are fewer buffers than two per thread,
 * they are cut into smaller ones of the same total: one thread reads into a buffer while its other one is on its way. */
struct UploadOptions {
    uint32_t threads = 0;    /* 0: as many as help */
    uint32_t slots = 0;      /* 0: 4 */
    uint64_t slot_bytes = 0; /* 0: 64 MiB */
    bool     forget_pages = false; /* the system need not keep in its page cache what is on the device */
    bool     compare = false;      /* read everything back and compare it with the file, byte by byte */
    bool     from_mapping = false; /* by the calling thread alone, which copies from a mapping; nothing is pinned */
};

/* Pieces in file order are read in file order. Counts bytes and polls for cancellation through `telemetry`; when it returns
 * everything has arrived, and when it throws nothing is on its way any more.
 * Throws Failure(DS4_E_IO, DS4_E_CANCELLED, DS4_E_NO_MEMORY or DS4_E_DEVICE): the first failure of any thread, or the first byte
 * that differs. */
void upload(backend::Device &device, std::span<const UploadPiece> pieces, const UploadOptions &options,
            Telemetry &telemetry);

} // namespace ds4::runtime
