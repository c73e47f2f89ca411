#include "backend/gpu/launch.h"

namespace ds4::backend::gpu {

void fail(gpuError_t error, const std::string &what) {
    static_cast<void>(gpuGetLastError()); /* or the next check would report it again */
    const std::string reason = std::string(gpuGetErrorString(error)) + " (" + gpuGetErrorName(error) + ")";
    if (error == gpuErrorMemoryAllocation) {
        throw Failure(DS4_E_NO_MEMORY, "the GPU has no memory left to " + what + ": " + reason);
    }
    throw Failure(DS4_E_DEVICE, "the GPU failed to " + what + ": " + reason);
}

} // namespace ds4::backend::gpu
