/* Structs that begin with the size their owner knows.
 *
 * A caller built against an older header hands in a shorter struct: what it does not know counts as zero. One built
 * against a newer header hands in a longer one: that is fine as long as what we do not know is zero, else it asks for
 * something that would silently not happen. */
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "failure.h"

namespace ds4::abi {

/* Bytes of each struct in the first version of the header: no caller can know less. */
template <typename Struct> inline constexpr uint32_t kFirstSize = 0;
template <> inline constexpr uint32_t kFirstSize<ds4_device_info> = 224;
template <> inline constexpr uint32_t kFirstSize<ds4_simulation> = 72;
template <> inline constexpr uint32_t kFirstSize<ds4_tensor> = 72;
template <> inline constexpr uint32_t kFirstSize<ds4_shape> = 160;
template <> inline constexpr uint32_t kFirstSize<ds4_load_plan> = 48;
template <> inline constexpr uint32_t kFirstSize<ds4_model_args> = 64;
template <> inline constexpr uint32_t kFirstSize<ds4_model_info> = 32;
template <> inline constexpr uint32_t kFirstSize<ds4_expert> = 24;
template <> inline constexpr uint32_t kFirstSize<ds4_session_args> = 24;
template <> inline constexpr uint32_t kFirstSize<ds4_session_sizes> = 32;
template <> inline constexpr uint32_t kFirstSize<ds4_eval_args> = 96;
template <> inline constexpr uint32_t kFirstSize<ds4_eval_result> = 24;

/* A size beyond this is no newer header but a wild pointer. */
inline constexpr uint32_t kMostStructBytes = 4096;

inline uint32_t read_size(const void *given) {
    uint32_t size = 0;
    std::memcpy(&size, given, sizeof(size));
    return size;
}

template <typename Struct> void check_size(const Struct *given, const char *name) {
    static_assert(kFirstSize<Struct> != 0);
    if (given == nullptr) {
        throw Failure(DS4_E_ARGUMENT, std::string(name) + " is NULL");
    }
    const uint32_t size = read_size(given);
    if (size < kFirstSize<Struct> || size > kMostStructBytes) {
        throw Failure(DS4_E_ARGUMENT, std::string(name) + " has size " + std::to_string(size) + "; this library knows " +
                                          std::to_string(kFirstSize<Struct>) + " to " + std::to_string(sizeof(Struct)));
    }
}

/* A copy of a caller's struct, as this library knows it. */
template <typename Struct> Struct read_struct(const Struct *given, const char *name) {
    check_size(given, name);
    const uint32_t size = read_size(given);
    Struct         known{};
    std::memcpy(&known, given, std::min<size_t>(size, sizeof(Struct)));
    const auto *bytes = reinterpret_cast<const unsigned char *>(given);
    if (std::any_of(bytes + std::min<size_t>(size, sizeof(Struct)), bytes + size, [](unsigned char b) { return b != 0; })) {
        throw Failure(DS4_E_ARGUMENT, std::string(name) + " sets fields that this library is too old to know");
    }
    known.size = sizeof(Struct);
    return known;
}

/* An array of such structs: each element is as far from the next as its owner's size says. */
template <typename Struct> std::vector<Struct> read_structs(const Struct *given, uint32_t count, const char *name) {
    std::vector<Struct> known;
    if (count == 0) {
        return known;
    }
    check_size(given, name);
    const uint32_t stride = read_size(given);
    const auto    *at = reinterpret_cast<const unsigned char *>(given);
    known.reserve(count);
    for (uint32_t i = 0; i < count; ++i, at += stride) {
        if (read_size(at) != stride) {
            throw Failure(DS4_E_ARGUMENT, std::string(name) + " have different sizes");
        }
        known.push_back(read_struct(reinterpret_cast<const Struct *>(at), name));
    }
    return known;
}

/* Fills a caller's struct as far as the caller knows it; its size field stays. */
template <typename Struct> void write_struct(Struct *to, Struct filled, const char *name) {
    check_size(to, name);
    filled.size = read_size(to);
    std::memcpy(to, &filled, std::min<size_t>(filled.size, sizeof(Struct)));
}

} // namespace ds4::abi
