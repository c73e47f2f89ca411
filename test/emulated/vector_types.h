/* The vector types and intrinsics that CUDA and HIP share, for kernels compiled as plain C++. Only what kernels here use:
 * a name that is missing shows when the kernel is compiled. */
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "quant/half.h"

#define DS4_VECTOR_TYPES(base, type, two, four)                                                                        \
    struct alignas(two) base##2 {                                                                                      \
        type x, y;                                                                                                     \
    };                                                                                                                 \
    struct base##3 {                                                                                                   \
        type x, y, z;                                                                                                  \
    };                                                                                                                 \
    struct alignas(four) base##4 {                                                                                     \
        type x, y, z, w;                                                                                               \
    };                                                                                                                 \
    inline base##2 make_##base##2(type x, type y) { return {x, y}; }                                                   \
    inline base##3 make_##base##3(type x, type y, type z) { return {x, y, z}; }                                        \
    inline base##4 make_##base##4(type x, type y, type z, type w) { return {x, y, z, w}; }

DS4_VECTOR_TYPES(char, signed char, 2, 4)
DS4_VECTOR_TYPES(uchar, unsigned char, 2, 4)
DS4_VECTOR_TYPES(short, short, 4, 8)
DS4_VECTOR_TYPES(ushort, unsigned short, 4, 8)
DS4_VECTOR_TYPES(int, int, 8, 16)
DS4_VECTOR_TYPES(uint, unsigned int, 8, 16)
DS4_VECTOR_TYPES(float, float, 8, 16)
#undef DS4_VECTOR_TYPES

struct alignas(16) longlong2 {
    long long x, y;
};
struct alignas(16) ulonglong2 {
    unsigned long long x, y;
};
struct alignas(16) double2 {
    double x, y;
};
inline longlong2  make_longlong2(long long x, long long y) { return {x, y}; }
inline ulonglong2 make_ulonglong2(unsigned long long x, unsigned long long y) { return {x, y}; }
inline double2    make_double2(double x, double y) { return {x, y}; }

/* ---- arithmetic ---------------------------------------------------------------------------------- */

#define DS4_MIN_MAX(type)                                                                                              \
    inline type min(type a, type b) { return b < a ? b : a; }                                                          \
    inline type max(type a, type b) { return a < b ? b : a; }
DS4_MIN_MAX(int)
DS4_MIN_MAX(unsigned int)
DS4_MIN_MAX(long)
DS4_MIN_MAX(unsigned long)
DS4_MIN_MAX(long long)
DS4_MIN_MAX(unsigned long long)
#undef DS4_MIN_MAX
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }

inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
inline int   __float2int_rn(float x) { return static_cast<int>(nearbyintf(x)); }
inline int   __float2int_rz(float x) { return static_cast<int>(x); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }

/* ---- bits ---------------------------------------------------------------------------------------- */

inline unsigned int __float_as_uint(float x) { return std::bit_cast<unsigned int>(x); }
inline int          __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float        __uint_as_float(unsigned int x) { return std::bit_cast<float>(x); }
inline float        __int_as_float(int x) { return std::bit_cast<float>(x); }
inline int          __popc(unsigned int x) { return std::popcount(x); }
inline int          __popcll(unsigned long long x) { return std::popcount(x); }
inline int          __clz(int x) { return std::countl_zero(static_cast<unsigned int>(x)); }
inline int          __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline int          __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned int>(x)) + 1; }
inline int          __ffsll(long long x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned long long>(x)) + 1; }
inline unsigned int __brev(unsigned int x) {
    unsigned int turned = 0;
    for (int i = 0; i < 32; ++i) {
        turned |= (x >> i & 1u) << (31 - i);
    }
    return turned;
}
inline unsigned int __byte_perm(unsigned int x, unsigned int y, unsigned int selector) {
    const uint64_t bytes = x | static_cast<uint64_t>(y) << 32;
    unsigned int   chosen = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned int which = selector >> (4 * i);
        unsigned int       byte = static_cast<unsigned int>(bytes >> (8 * (which & 7u))) & 0xffu;
        if ((which & 8u) != 0) {
            byte = (byte & 0x80u) != 0 ? 0xffu : 0u;
        }
        chosen |= byte << (8 * i);
    }
    return chosen;
}
template <typename T> inline T __ldg(const T *from) { return *from; }

namespace ds4::emulated {

inline float half_to_float(uint16_t bits) {
    return quant::f16_to_f32(bits);
}

/* To the nearest, even among equals. */
inline uint16_t float_to_half(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return static_cast<uint16_t>(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    }
    if (magnitude >= 0x477ff000u) { /* 65520 and more */
        return static_cast<uint16_t>(sign | 0x7c00u);
    }
    if (magnitude < 0x38800000u) { /* subnormal: the addition puts the last bit where the rounding is to happen */
        const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
        return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
    }
    return static_cast<uint16_t>(sign | (magnitude + 0xfffu + (magnitude >> 13 & 1u) - 0x38000000u) >> 13);
}

} // namespace ds4::emulated

/* ---- atomics: lanes take turns on one thread ------------------------------------------------------- */

template <typename T> struct ds4_same {
    using type = T;
};
template <typename T> using ds4_plain = typename ds4_same<T>::type; /* keeps an argument out of deduction */

template <typename T> inline T atomicAdd(T *at, ds4_plain<T> value) {
    const T old = *at;
    *at = static_cast<T>(old + value);
    return old;
}
template <typename T> inline T atomicSub(T *at, ds4_plain<T> value) {
    const T old = *at;
    *at = static_cast<T>(old - value);
    return old;
}
template <typename T> inline T atomicMax(T *at, ds4_plain<T> value) {
    const T old = *at;
    *at = old < value ? value : old;
    return old;
}
template <typename T> inline T atomicMin(T *at, ds4_plain<T> value) {
    const T old = *at;
    *at = value < old ? value : old;
    return old;
}
template <typename T> inline T atomicOr(T *at, ds4_plain<T> value) {
    const T old = *at;
    *at = old | value;
    return old;
}
template <typename T> inline T atomicAnd(T *at, ds4_plain<T> value) {
    const T old = *at;
    *at = old & value;
    return old;
}
template <typename T> inline T atomicExch(T *at, ds4_plain<T> value) {
    const T old = *at;
    *at = value;
    return old;
}
template <typename T> inline T atomicCAS(T *at, ds4_plain<T> expected, ds4_plain<T> value) {
    const T old = *at;
    if (old == expected) {
        *at = value;
    }
    return old;
}
inline unsigned int atomicInc(unsigned int *at, unsigned int last) {
    const unsigned int old = *at;
    *at = old >= last ? 0 : old + 1;
    return old;
}

inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
