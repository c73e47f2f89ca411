/* The one place that knows which vendor's compiler reads the kernels: names that differ, and lane operations with a
 * portable twin for each instruction that not every card has.
 *
 * Rules for kernels:
 * - Lanes are addressed in groups of 32 (lane(), group()); on cards with 64 lanes per wavefront two groups share one. A
 *   block is one-dimensional and a multiple of 32 threads wide.
 * - Products are added with fmaf where the order of rounding matters; compilers are told not to contract by themselves.
 * - A kernel calls wait_for_inputs() once, in every thread, before it reads or writes anything that another kernel reads
 *   or writes; weights may be read before. Then the next kernel may be started while this one still runs.
 *
 * Included only by files of native/backend/gpu and compiled as CUDA, as HIP, or, for tests, as plain C++ with the lanes
 * emulated (DS4_EMULATED). */
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#if defined(DS4_EMULATED)
#include "emulated/gpu_runtime.h" /* test/emulated: blocks and lanes on the CPU */
#elif defined(__HIP__)
#include <hip/hip_fp16.h>
#include <hip/hip_runtime.h>
#else
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#endif

/* ---- host side --------------------------------------------------------------------------------- */

#if defined(DS4_EMULATED)
/* test/emulated defines every gpu... name itself. */
#elif defined(__HIP__)
#define DS4_GPU_NAME(name) hip##name
#define DS4_GPU_LIBRARY "libamdhip64.so"
#define DS4_GPU_ARCHITECTURE_VARIABLE "ROCM_ARCH"
#define DS4_GPU_BACKEND "rocm"
#else
#define DS4_GPU_NAME(name) cuda##name
#define DS4_GPU_LIBRARY "libcuda.so.1"
#define DS4_GPU_ARCHITECTURE_VARIABLE "CUDA_ARCH"
#define DS4_GPU_BACKEND "cuda"
#endif

/* Of what waits for the card there is nothing here but gpuDeviceSynchronize, for programs that measure: those calls wait for
 * ever, so backends use GpuDevice::wait. */
#if !defined(DS4_EMULATED)
#define gpuSuccess DS4_GPU_NAME(Success)
#define gpuError_t DS4_GPU_NAME(Error_t)
#define gpuErrorMemoryAllocation DS4_GPU_NAME(ErrorMemoryAllocation)
#define gpuErrorNoDevice DS4_GPU_NAME(ErrorNoDevice)
#define gpuErrorInsufficientDriver DS4_GPU_NAME(ErrorInsufficientDriver)
#define gpuErrorNotReady DS4_GPU_NAME(ErrorNotReady)
#define gpuGetLastError DS4_GPU_NAME(GetLastError)
#define gpuGetErrorString DS4_GPU_NAME(GetErrorString)
#define gpuGetErrorName DS4_GPU_NAME(GetErrorName)
#define gpuGetDeviceCount DS4_GPU_NAME(GetDeviceCount)
#define gpuSetDevice DS4_GPU_NAME(SetDevice)
#define gpuDeviceSynchronize DS4_GPU_NAME(DeviceSynchronize)
#define gpuMemGetInfo DS4_GPU_NAME(MemGetInfo)
#define gpuMalloc DS4_GPU_NAME(Malloc)
#define gpuFree DS4_GPU_NAME(Free)
#define gpuMemcpyAsync DS4_GPU_NAME(MemcpyAsync)
#define gpuMemsetAsync DS4_GPU_NAME(MemsetAsync)
#define gpuMemcpyKind DS4_GPU_NAME(MemcpyKind)
#define gpuMemcpyHostToDevice DS4_GPU_NAME(MemcpyHostToDevice)
#define gpuMemcpyDeviceToHost DS4_GPU_NAME(MemcpyDeviceToHost)
#define gpuMemcpyDeviceToDevice DS4_GPU_NAME(MemcpyDeviceToDevice)
#define gpuHostRegister DS4_GPU_NAME(HostRegister)
#define gpuHostUnregister DS4_GPU_NAME(HostUnregister)
#define gpuHostGetDevicePointer DS4_GPU_NAME(HostGetDevicePointer)
#define gpuHostRegisterMapped DS4_GPU_NAME(HostRegisterMapped)
#define gpuStream_t DS4_GPU_NAME(Stream_t)
#define gpuStreamCreateWithFlags DS4_GPU_NAME(StreamCreateWithFlags)
#define gpuStreamNonBlocking DS4_GPU_NAME(StreamNonBlocking)
#define gpuStreamDestroy DS4_GPU_NAME(StreamDestroy)
#define gpuStreamQuery DS4_GPU_NAME(StreamQuery)
#define gpuStreamWaitEvent DS4_GPU_NAME(StreamWaitEvent)
#define gpuStreamBeginCapture DS4_GPU_NAME(StreamBeginCapture)
#define gpuStreamEndCapture DS4_GPU_NAME(StreamEndCapture)
#define gpuStreamCaptureModeThreadLocal DS4_GPU_NAME(StreamCaptureModeThreadLocal)
#define gpuEvent_t DS4_GPU_NAME(Event_t)
#define gpuEventCreateWithFlags DS4_GPU_NAME(EventCreateWithFlags)
#define gpuEventDisableTiming DS4_GPU_NAME(EventDisableTiming)
#define gpuEventDestroy DS4_GPU_NAME(EventDestroy)
#define gpuEventRecord DS4_GPU_NAME(EventRecord)
#define gpuEventQuery DS4_GPU_NAME(EventQuery)
#define gpuGraph_t DS4_GPU_NAME(Graph_t)
#define gpuGraphExec_t DS4_GPU_NAME(GraphExec_t)
#define gpuGraphInstantiateWithFlags DS4_GPU_NAME(GraphInstantiateWithFlags)
#define gpuGraphDestroy DS4_GPU_NAME(GraphDestroy)
#define gpuGraphExecDestroy DS4_GPU_NAME(GraphExecDestroy)
#define gpuGraphLaunch DS4_GPU_NAME(GraphLaunch)
#if defined(__HIP__)
#define gpuDeviceProp hipDeviceProp_t
#define gpuGetDeviceProperties hipGetDeviceProperties
#define gpuHostAlloc hipHostMalloc
#define gpuHostAllocMapped hipHostMallocMapped
#define gpuHostAllocDefault hipHostMallocDefault
#define gpuHostRegisterReadOnly 0u /* not in every version */
#define gpuFreeHost hipHostFree
#else
#define gpuDeviceProp cudaDeviceProp
#define gpuGetDeviceProperties cudaGetDeviceProperties
#define gpuHostAlloc cudaHostAlloc
#define gpuHostAllocMapped cudaHostAllocMapped
#define gpuHostAllocDefault cudaHostAllocDefault
#define gpuHostRegisterReadOnly cudaHostRegisterReadOnly
#define gpuFreeHost cudaFreeHost
#endif
#endif

namespace ds4::backend::gpu {

/* ---- what the vendors say differently -------------------------------------------------------------- */

/* As the compiler names it: sm_90, gfx1100. */
inline std::string architecture_of(const gpuDeviceProp &properties) {
#if defined(__HIP__)
    const std::string name = properties.gcnArchName; /* with features of the card: gfx942:sramecc+:xnack- */
    return name.substr(0, name.find(':'));
#else
    return "sm_" + std::to_string(10 * properties.major + properties.minor);
#endif
}
inline size_t most_shared_bytes(const gpuDeviceProp &properties) {
#if defined(__HIP__)
    return properties.sharedMemPerBlock;
#else
    return properties.sharedMemPerBlockOptin;
#endif
}
inline bool can_start_early([[maybe_unused]] const gpuDeviceProp &properties) {
#if defined(__HIP__)
    return false;
#else
    return properties.major >= 9;
#endif
}

/* ---- lanes ------------------------------------------------------------------------------------- */

constexpr int kLanes = 32;

/* Whether a block has no more than 64 KiB of shared memory. */
#if defined(__HIP__) || (defined(DS4_EMULATED) && DS4_EMULATED_WAVE == 64)
constexpr bool kLittleShared = true;
#else
constexpr bool kLittleShared = false;
#endif

#if defined(DS4_EMULATED)
#define DS4_DEVICE inline
#define DS4_KERNEL inline void
/* Dynamic shared memory of the block, 16-byte aligned. */
#define DS4_SHARED(type, name) type *const name = static_cast<type *>(::ds4::emulated::shared_memory())
#else
#define DS4_DEVICE __device__ __forceinline__
#define DS4_KERNEL __global__ void
#define DS4_SHARED(type, name)                                                                                         \
    extern __shared__ __align__(16) unsigned char ds4_shared_bytes[];                                                  \
    type *const name = reinterpret_cast<type *>(ds4_shared_bytes)
#endif

DS4_DEVICE int lane() { return static_cast<int>(threadIdx.x) % kLanes; }
DS4_DEVICE int group() { return static_cast<int>(threadIdx.x) / kLanes; } /* of 32 lanes, within the block */
DS4_DEVICE int groups() { return static_cast<int>(blockDim.x) / kLanes; }

/* All lanes of a group take part in each of the next six. T: int, uint32_t or float. */
#if defined(DS4_EMULATED)
using ::ds4::emulated::ballot;
using ::ds4::emulated::shuffle;
using ::ds4::emulated::shuffle_xor;
using ::ds4::emulated::sync_group;
#elif defined(__HIP__)
template <typename T> DS4_DEVICE T shuffle(T value, int from) { return __shfl(value, from, kLanes); }
template <typename T> DS4_DEVICE T shuffle_xor(T value, int mask) { return __shfl_xor(value, mask, kLanes); }
DS4_DEVICE uint32_t ballot(bool predicate) {
    const unsigned long long all = __ballot(predicate);
    return static_cast<uint32_t>(all >> (__lane_id() & 32u));
}
/* Lanes of a wavefront run in step; what is left to do is to order memory. */
DS4_DEVICE void sync_group() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
#else
template <typename T> DS4_DEVICE T shuffle(T value, int from) { return __shfl_sync(0xffffffffu, value, from); }
template <typename T> DS4_DEVICE T shuffle_xor(T value, int mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }
DS4_DEVICE uint32_t ballot(bool predicate) { return __ballot_sync(0xffffffffu, predicate); }
DS4_DEVICE void sync_group() { __syncwarp(); }
#endif

DS4_DEVICE float group_sum(float value) { /* the same order of additions in every lane */
    for (int mask = 1; mask < kLanes; mask *= 2) {
        value += shuffle_xor(value, mask);
    }
    return value;
}
DS4_DEVICE float group_max(float value) {
    for (int mask = 1; mask < kLanes; mask *= 2) {
        value = fmaxf(value, shuffle_xor(value, mask));
    }
    return value;
}

DS4_DEVICE void sync_block() { __syncthreads(); }

/* ---- starting early ------------------------------------------------------------------------------ */

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
DS4_DEVICE void wait_for_inputs() { cudaGridDependencySynchronize(); }
DS4_DEVICE void let_next_start() { cudaTriggerProgrammaticLaunchCompletion(); }
#else
DS4_DEVICE void wait_for_inputs() {}
DS4_DEVICE void let_next_start() {}
#endif

/* ---- bits ---------------------------------------------------------------------------------------- */

#if defined(DS4_EMULATED)
using ::ds4::emulated::float_to_half;
using ::ds4::emulated::half_to_float;
template <typename To, typename From> DS4_DEVICE To bits_as(From from) { return std::bit_cast<To>(from); }
#else
DS4_DEVICE float half_to_float(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
DS4_DEVICE uint16_t float_to_half(float value) { return __half_as_ushort(__float2half_rn(value)); }
template <typename To, typename From> DS4_DEVICE To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    __builtin_memcpy(&to, &from, sizeof(to));
    return to;
}
#endif
DS4_DEVICE float bf16_to_float(uint16_t bits) { return bits_as<float>(static_cast<uint32_t>(bits) << 16); }
DS4_DEVICE uint32_t pack_halves(float low, float high) {
    return static_cast<uint32_t>(float_to_half(low)) | static_cast<uint32_t>(float_to_half(high)) << 16;
}

/* c + four products of signed bytes. */
DS4_DEVICE int dot4(int a, int b, int c) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 610
    return __dp4a(a, b, c);
#elif defined(__HIP_DEVICE_COMPILE__) && (defined(__gfx942__) || defined(__gfx90a__) || defined(__gfx908__))
    return __builtin_amdgcn_sdot4(a, b, c, false);
#elif defined(__HIP_DEVICE_COMPILE__) && (defined(__GFX11__) || defined(__GFX12__))
    return __builtin_amdgcn_sudot4(true, a, true, b, c, false);
#else
    for (int i = 0; i < 32; i += 8) {
        c += static_cast<int8_t>(a >> i) * static_cast<int8_t>(b >> i);
    }
    return c;
#endif
}

/* ---- memory ------------------------------------------------------------------------------------- */

/* A read of weights, which nobody reads again soon. */
template <typename T> DS4_DEVICE T load_once(const T *from) {
#if defined(__CUDA_ARCH__)
    return __ldcs(from);
#else
    return *from;
#endif
}

/* 16 bytes from device to shared memory without passing registers, where the card can; visible after copies_wait and a
 * block or group barrier. `to` and `from` are 16-byte aligned. */
DS4_DEVICE void copy_async(void *to, const void *from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    const uint32_t shared = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from) : "memory");
#else
    *static_cast<uint4 *>(to) = *static_cast<const uint4 *>(from);
#endif
}
DS4_DEVICE void copies_commit() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
/* Waits until at most `pending` of this thread's committed groups are unfinished. */
template <int pending> DS4_DEVICE void copies_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
#endif
}

/* ---- small matrix products, by a group of 32 lanes ---------------------------------------------- */

/* Fragments, with row = lane / 4 and pair = lane % 4:
 *   c[0], c[1]: C[row][2 pair + 0, 1];  c[2], c[3]: C[row + 8][2 pair + 0, 1]
 * 8 bits, C[16][8] += A[16][32] B[32][8]:
 *   a[0]: A[row][4 pair ..+3];  a[1]: A[row + 8][4 pair ..];  a[2]: A[row][16 + 4 pair ..];  a[3]: A[row + 8][16 + 4 pair ..]
 *   b[0]: B[4 pair ..+3][row];  b[1]: B[16 + 4 pair ..][row]
 * f16, C[16][8] += A[16][16] B[16][8]: the same with two halves, where there are four bytes, and 8 for 16.
 * The sum of bytes is exact; the order of the sum of halves is the card's own, but the same for every element. */
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ < 800
/* What other lanes of the group hold, for cards whose own instruction for this is not used. */
class Fragments {
public:
#if defined(DS4_EMULATED)
    Fragments(const uint32_t (&a)[4], const uint32_t (&b)[2])
        : given_(::ds4::emulated::exchange(::ds4::emulated::Meeting::shuffle, ::ds4::emulated::pack(a, b))) {}
    uint32_t a(int i, int from) const { return static_cast<uint32_t>(given_[from].words[i / 2] >> (32 * (i % 2))); }
    uint32_t b(int i, int from) const { return static_cast<uint32_t>(given_[from].words[2] >> (32 * i)); }

private:
    const ::ds4::emulated::Words *given_;
#else
    DS4_DEVICE Fragments(const uint32_t (&a)[4], const uint32_t (&b)[2]) : a_(a), b_(b) {}
    DS4_DEVICE uint32_t a(int i, int from) const { return shuffle(a_[i], from); }
    DS4_DEVICE uint32_t b(int i, int from) const { return shuffle(b_[i], from); }

private:
    const uint32_t (&a_)[4];
    const uint32_t (&b_)[2];
#endif
};
#endif

DS4_DEVICE void multiply_bytes(int (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    const Fragments all(a, b);
    const int       row = lane() / 4, pair = lane() % 4;
    for (int k = 0; k < 4; ++k) {
        uint32_t from_a[4], from_b[2][2];
        for (int i = 0; i < 4; ++i) {
            from_a[i] = all.a(i, 4 * row + k);
        }
        for (int i = 0; i < 2; ++i) {
            from_b[0][i] = all.b(i, 4 * (2 * pair) + k);
            from_b[1][i] = all.b(i, 4 * (2 * pair + 1) + k);
        }
        for (int i = 0; i < 4; ++i) {
            const uint32_t *column = from_b[i % 2];
            c[i] = dot4(static_cast<int>(from_a[i / 2]), static_cast<int>(column[0]), c[i]);
            c[i] = dot4(static_cast<int>(from_a[i / 2 + 2]), static_cast<int>(column[1]), c[i]);
        }
    }
#endif
}

/* Whether multiply_halves is faster than the same work with fmaf: its twin is there for tests. */
#if defined(__HIP__) && !defined(DS4_EMULATED)
constexpr bool kMultipliesHalves = false;
#else
constexpr bool kMultipliesHalves = true;
#endif

DS4_DEVICE void multiply_halves(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    const Fragments all(a, b);
    const int       row = lane() / 4, pair = lane() % 4;
    for (int k = 0; k < 4; ++k) {
        uint32_t from_a[4], from_b[2][2];
        for (int i = 0; i < 4; ++i) {
            from_a[i] = all.a(i, 4 * row + k);
        }
        for (int i = 0; i < 2; ++i) {
            from_b[0][i] = all.b(i, 4 * (2 * pair) + k);
            from_b[1][i] = all.b(i, 4 * (2 * pair + 1) + k);
        }
        for (int i = 0; i < 4; ++i) {
            for (int half = 0; half < 2; ++half) {
                const uint32_t left = from_a[i / 2 + 2 * half];
                const uint32_t right = from_b[i % 2][half];
                c[i] = fmaf(half_to_float(static_cast<uint16_t>(left)), half_to_float(static_cast<uint16_t>(right)), c[i]);
                c[i] = fmaf(half_to_float(static_cast<uint16_t>(left >> 16)),
                            half_to_float(static_cast<uint16_t>(right >> 16)), c[i]);
            }
        }
    }
#endif
}

} // namespace ds4::backend::gpu
