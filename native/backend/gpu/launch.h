/* Starting a kernel on a stream. */
#pragma once

#include <cstddef>
#include <string>
#include <tuple>

#include "backend/gpu/gpu.h"
#include "failure.h"

namespace ds4::backend::gpu {

struct Stream {
    gpuStream_t handle = nullptr;
    /* Lets a kernel start while the one before it still runs; every kernel then waits by itself in wait_for_inputs. */
    bool early_start = false;
};

struct Grid {
    unsigned x = 1;
    unsigned y = 1;
    unsigned z = 1;
};

/* Throws Failure(DS4_E_NO_MEMORY) when the device had no memory, else Failure(DS4_E_DEVICE), naming what was tried. */
[[noreturn]] void fail(gpuError_t error, const std::string &what);

inline void check(gpuError_t error, const char *what) {
    if (error != gpuSuccess) {
        fail(error, what);
    }
}

/* Blocks of `threads` lanes with `shared_bytes` of dynamic shared memory each. */
template <typename... Parameters, typename... Arguments>
void launch(const Stream &stream, void (*kernel)(Parameters...), Grid grid, unsigned threads, size_t shared_bytes,
            Arguments... arguments) {
#if defined(DS4_EMULATED)
    check(::ds4::emulated::launch(stream.handle, reinterpret_cast<const void *>(kernel), dim3(grid.x, grid.y, grid.z),
                                  threads, shared_bytes,
                                  [kernel, parameters = std::tuple<Parameters...>(arguments...)] {
                                      std::apply(kernel, parameters);
                                  }),
          "start a kernel");
#elif defined(__HIP__)
    kernel<<<dim3(grid.x, grid.y, grid.z), dim3(threads), shared_bytes, stream.handle>>>(
        static_cast<Parameters>(arguments)...);
    check(gpuGetLastError(), "start a kernel");
#else
    /* Static and dynamic memory together may pass 48 KiB only when the kernel was asked for. */
    if (shared_bytes > 0) {
        check(cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(shared_bytes)),
              "reserve shared memory for a kernel");
    }
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(grid.x, grid.y, grid.z);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream.handle;
    config.attrs = &attribute;
    config.numAttrs = stream.early_start ? 1 : 0;
    check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), "start a kernel");
#endif
}

/* For memory whose bytes mean nothing yet: the emulated card makes them not-a-number, so that reading them shows. */
inline void spoil([[maybe_unused]] const Stream &stream, [[maybe_unused]] void *data, [[maybe_unused]] size_t bytes) {
#if defined(DS4_EMULATED)
    check(gpuMemsetAsync(data, 0xff, bytes, stream.handle), "spoil memory");
#endif
}

} // namespace ds4::backend::gpu
