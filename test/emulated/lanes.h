/* Blocks of lanes on one thread of the CPU: each lane is a fiber that runs until it meets others. */
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <type_traits>

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
    constexpr dim3() = default;
    constexpr dim3(unsigned x_, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

/* Of the lane that runs now. */
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __constant__ static
#define __shared__ static /* one block at a time */
#define __align__(bytes) alignas(bytes)
#define __launch_bounds__(...)

/* Lanes per wavefront. With 64 two groups share one and go in step, as on some AMD cards. */
#if !defined(DS4_EMULATED_WAVE)
#define DS4_EMULATED_WAVE 32
#endif

namespace ds4::emulated {

constexpr int kWave = DS4_EMULATED_WAVE;
static_assert(kWave == 32 || kWave == 64);

enum class Meeting : uint8_t { none, shuffle, ballot, group, block, ended };

/* What a lane gives to the others of its group at once. */
struct Words {
    uint64_t words[3];
};

/* Gives to the others of the group and returns, when all have come, what all 32 gave, until they meet again. */
const Words *exchange(Meeting kind, const Words &words);
const Words *exchange(Meeting kind, uint64_t value);
void         sync_block();

template <typename T> uint64_t as_word(T value) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(uint64_t));
    uint64_t word = 0;
    __builtin_memcpy(&word, &value, sizeof(T));
    return word;
}
template <typename T> T from_word(uint64_t word) {
    T value;
    __builtin_memcpy(&value, &word, sizeof(T));
    return value;
}

template <typename T> T shuffle(T value, int from) {
    const Words *given = exchange(Meeting::shuffle, as_word(value));
    return from_word<T>(given[static_cast<unsigned>(from) % 32u].words[0]);
}
template <typename T> T shuffle_xor(T value, int mask) {
    const unsigned lane = threadIdx.x % 32u;
    const Words   *given = exchange(Meeting::shuffle, as_word(value));
    return from_word<T>(given[(lane ^ static_cast<unsigned>(mask)) % 32u].words[0]);
}
inline uint32_t ballot(bool predicate) {
    const Words *given = exchange(Meeting::ballot, uint64_t{predicate ? 1u : 0u});
    uint32_t     bits = 0;
    for (int i = 0; i < 32; ++i) {
        bits |= static_cast<uint32_t>(given[i].words[0]) << i;
    }
    return bits;
}
inline void sync_group() { exchange(Meeting::group, uint64_t{0}); }

/* The fragments of a small matrix product. */
inline Words pack(const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    return {{a[0] | static_cast<uint64_t>(a[1]) << 32, a[2] | static_cast<uint64_t>(a[3]) << 32,
             b[0] | static_cast<uint64_t>(b[1]) << 32}};
}

/* Dynamic shared memory of the block that runs. */
void *shared_memory();

/* Runs every block of the grid. Throws Failure(DS4_E_INTERNAL) naming kernel, block and lane when lanes miss each other. */
void run(const void *kernel, dim3 grid, unsigned threads, size_t shared_bytes, const std::function<void()> &body);

/* Changes the order in which blocks, groups and lanes run. */
void set_order(uint64_t seed);

} // namespace ds4::emulated

inline void __syncthreads() { ds4::emulated::sync_block(); }
