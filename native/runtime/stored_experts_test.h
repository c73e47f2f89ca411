/* For tests: experts of a few layers and two sizes in a file in memory, and a store of them that is driven as a model would. */
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "check.h"
#include "runtime/expert_store.h"
#include "runtime/fickle_source_test.h"
#include "runtime/host_device_test.h"

namespace ds4::test {

using namespace ds4::runtime;

inline constexpr size_t kLayers = 4;
inline constexpr size_t kExperts = 12;
inline constexpr size_t kUsed = 3;
/* Gate, up, down of an expert; the layers have two sizes. */
inline constexpr uint64_t kSmall[3] = {700, 700, 900};
inline constexpr uint64_t kLarge[3] = {1400, 1400, 1900};
inline constexpr uint64_t kUnit = 1536 + 1536 + 2048; /* of the larger, as it lies in a place */

enum class Start { in_file, in_host_memory };

struct Stored {
    FickleSource             source{scrambled_bytes(kLayers * kExperts * 4800 + 1000)};
    Telemetry                telemetry;
    FileReader               reader{source, nullptr, 1, telemetry};
    HostDevice               device;
    FetchQueue               queue{device, 3, 4096, telemetry};
    std::vector<ExpertLayer> layers;
    ExpertStore              store;
    Random                   random{42};
    size_t                   known_layers = 0; /* the first ones, whose choice is known before a step */

    explicit Stored(const ExpertPlan &plan, Start start = Start::in_file)
        : layers(make_layers(start)), store(device, &queue, layers, kExperts, kUsed, plan, telemetry) {
        device.delivers_late = true;
    }

    std::vector<ExpertLayer> make_layers(Start start) {
        std::vector<ExpertLayer> made;
        uint64_t                 offset = 17;
        for (size_t layer = 0; layer < kLayers; ++layer) {
            ExpertLayer &matrices = made.emplace_back();
            for (size_t part = 0; part < 3; ++part) {
                const uint64_t         bytes = layer == 1 ? kLarge[part] : kSmall[part];
                const std::byte *const here = start == Start::in_file ? nullptr : source.bytes.data() + offset;
                matrices[part] = {&reader, offset, bytes, here, here};
                offset += kExperts * bytes + 3;
            }
        }
        return made;
    }

    bool is_right(const backend::ExpertAddress &address, size_t layer, int32_t expert) const {
        const std::byte *const parts[3] = {address.gate, address.up, address.down};
        bool                   right = true;
        for (size_t part = 0; part < 3; ++part) {
            const ExpertMatrix &matrix = layers[layer][part];
            const uint64_t      offset = matrix.offset + static_cast<uint64_t>(expert) * matrix.bytes;
            right = right && parts[part] != nullptr &&
                    std::memcmp(parts[part], source.bytes.data() + offset, matrix.bytes) == 0;
        }
        return right;
    }

    /* Distinct experts, some of them more often than others. */
    std::vector<int32_t> choose(size_t tokens) {
        std::vector<int32_t> ids;
        for (size_t token = 0; token < tokens; ++token) {
            std::vector<int32_t> chosen;
            while (chosen.size() < kUsed) {
                const auto expert = static_cast<int32_t>(random.below(2) == 0 ? random.below(4) : random.below(kExperts));
                if (std::ranges::find(chosen, expert) == chosen.end()) {
                    chosen.push_back(expert);
                }
            }
            ids.insert(ids.end(), chosen.begin(), chosen.end());
        }
        return ids;
    }

    /* One evaluation; returns whether every run found right bytes for all that it needed. */
    bool evaluate(size_t tokens) {
        bool                              right = true;
        std::vector<int32_t>              all;
        std::vector<std::vector<int32_t>> chosen;
        for (size_t layer = 0; layer < kLayers; ++layer) {
            chosen.push_back(choose(tokens));
        }
        store.begin_step();
        store.foresee(std::span(chosen).first(known_layers), tokens);
        for (size_t layer = 0; layer < kLayers; ++layer) {
            const std::vector<int32_t> &ids = chosen[layer];
            all.insert(all.end(), ids.begin(), ids.end());
            for (size_t first = 0; first < tokens && store.streams();) {
                const auto rest = std::span(ids).subspan(first * kUsed);
                const auto run = store.begin_run(layer, rest, tokens);
                for (const int32_t expert : rest.first(run.tokens * kUsed)) {
                    const backend::ExpertAddress *here = run.present == nullptr ? nullptr : run.present + expert;
                    right = right && (here == nullptr || here->gate == nullptr || is_right(*here, layer, expert));
                }
                store.complete_run();
                for (const int32_t expert : rest.first(run.tokens * kUsed)) {
                    right = right && is_right(store.table(layer)[expert], layer, expert);
                }
                store.end_run();
                first += run.tokens;
            }
            for (const int32_t expert : ids) {
                right = right && (store.streams() || is_right(store.table(layer)[expert], layer, expert));
            }
        }
        store.end_step(all, tokens);
        return right;
    }

    /* Whether kernels would find the right bytes of an expert of this layer now. */
    bool finds(const ExpertId &id) const {
        return is_right(store.table(id.layer)[id.expert], id.layer, static_cast<int32_t>(id.expert));
    }

    uint64_t count(size_t word) const { return telemetry.get(word); }
    bool     adds_up() const {
        return count(DS4_WORD_EXPERT_LOOKUPS) == count(DS4_WORD_EXPERT_DEVICE_HITS) + count(DS4_WORD_EXPERT_HOST_HITS) +
                                                     count(DS4_WORD_EXPERT_IN_FLIGHT_HITS) + count(DS4_WORD_EXPERT_MISSES);
    }
};

inline constexpr uint64_t kEnough = 1000 * kUnit;

} // namespace ds4::test
