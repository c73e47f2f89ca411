/* How fast the operations are at the sizes of a real model (Flash): prints one table. Not part of the library.
 * Usage: ops_bench [threads [instruction set 1..3 [name part]]] */
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "backend/ops.h"
#include "include/ds4.h"

namespace {

using namespace ds4;
using namespace ds4::backend;

uint32_t threads = 1;
uint32_t instruction_set = 0;
const char *only = "";

uint32_t next_random() {
    static uint64_t state = 88172645463325252u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return static_cast<uint32_t>(state >> 32);
}

std::vector<float> random_floats(int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float &value : values) {
        value = static_cast<float>(next_random() >> 8) * 0x1p-23f - 1.0f;
    }
    return values;
}

/* Bytes that decode to ordinary numbers in every format: no subnormal ones, which are slow. */
std::vector<std::byte> random_weights(int64_t bytes) {
    std::vector<std::byte> weights(static_cast<size_t>(bytes));
    for (std::byte &byte : weights) {
        byte = static_cast<std::byte>(0x30u | (next_random() & 0x0fu));
    }
    return weights;
}

/* Seconds of the fastest call: what the code can do when nobody disturbs it. */
template <typename Call> double seconds(Call call) {
    double best = 1e9;
    double total = 0.0;
    call();
    for (int i = 0; i < 5 || total < 0.4; ++i) {
        const auto start = std::chrono::steady_clock::now();
        call();
        const double taken = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        best = std::min(best, taken);
        total += taken;
    }
    return best;
}

bool wanted(const char *name) {
    return std::strstr(name, only) != nullptr;
}

void bench_project(Ops &ops, quant::Type type, int64_t rows, int64_t columns) {
    if (!wanted(quant::type_name(type))) {
        return;
    }
    const quant::BlockLayout layout = quant::block_layout(type);
    const int64_t            row_bytes = columns / layout.values * layout.bytes;
    const auto               weights = random_weights(rows * row_bytes);
    const Matrix             matrix = {type, RowLayout::file, rows, columns, row_bytes, weights.data()};
    for (const int64_t tokens : {1, 4, 256}) {
        const auto         x = random_floats(tokens * columns);
        std::vector<float> out(static_cast<size_t>(tokens * rows));
        const Projection   projection = {&matrix, out.data()};
        const double       s = seconds([&] { ops.project({tokens, x.data(), {&projection, 1}}); });
        std::printf("project %-8s %4ld x %ld x %ld: %9.1f us  %6.1f GB/s of weights  %6.1f G multiplications/s\n",
                    quant::type_name(type), static_cast<long>(tokens), static_cast<long>(rows), static_cast<long>(columns),
                    s * 1e6, static_cast<double>(rows * row_bytes) / s * 1e-9,
                    static_cast<double>(rows * columns * tokens) / s * 1e-9);
    }
}

void bench_attention(Ops &ops) {
    constexpr int64_t heads = 64, dim = 512, dims = 64, top_k = 512;
    const auto        frequency = random_floats(dims / 2);
    for (const int64_t tokens : {1, 64}) {
        const auto           q = random_floats(tokens * heads * dim);
        const auto           ring = random_floats((128 + tokens) * dim);
        const auto           rows = random_floats(2048 * dim);
        const auto           sinks = random_floats(heads);
        std::vector<int32_t> selected;
        std::vector<int32_t> count(static_cast<size_t>(tokens), top_k);
        for (int64_t t = 0; t < tokens; ++t) {
            for (int32_t i = 0; i < top_k; ++i) {
                selected.push_back(4 * i);
            }
        }
        std::vector<float> out(q.size());
        const double       s = seconds([&] {
            ops.attention({tokens, heads, dim, 8192, {frequency.data(), dims}, q.data(), 128, 128 + tokens, ring.data(), 4,
                           rows.data(), 2048, selected.data(), count.data(), top_k, sinks.data(), out.data()});
        });
        std::printf("attention %ld x 64 heads x 512, 640 rows: %9.1f us  %6.1f G multiplications/s\n",
                    static_cast<long>(tokens), s * 1e6, static_cast<double>(tokens * heads * dim * 640 * 2) / s * 1e-9);
    }
}

void bench_indexer(Ops &ops) {
    constexpr int64_t heads = 64, dim = 128, top_k = 512;
    const auto        frequency = random_floats(32);
    for (const int64_t tokens : {1, 64}) {
        auto                 q = random_floats(tokens * heads * dim);
        const auto           weights = random_floats(tokens * heads);
        const auto           rows = random_floats(8192 * dim);
        std::vector<int32_t> selected(static_cast<size_t>(tokens * top_k));
        std::vector<int32_t> count(static_cast<size_t>(tokens));
        const double         s = seconds([&] {
            ops.indexer_select({tokens, heads, dim, 4, top_k, 32768 - 64, q.data(), weights.data(), rows.data(), 32768 / 4,
                                selected.data(), count.data(), nullptr, 0});
        });
        std::printf("indexer_select %ld x 64 heads x 128, 8176 rows: %9.1f us  %6.1f G multiplications/s\n",
                    static_cast<long>(tokens), s * 1e6, static_cast<double>(tokens * heads * dim * 8176) / s * 1e-9);
        const double s2 = seconds([&] {
            ops.indexer_query({tokens, heads, dim, 32768, {frequency.data(), 64}, true, q.data()});
        });
        std::printf("indexer_query %ld x 64 heads x 128: %9.1f us\n", static_cast<long>(tokens), s2 * 1e6);
    }
}

void bench_streams(Ops &ops) {
    constexpr int64_t hc = 4, width = 4096, mix = 24;
    const auto        weights = random_weights(mix * hc * width * 2);
    const Matrix      fn = {quant::Type::f16, RowLayout::file, mix, hc * width, hc * width * 2, weights.data()};
    const auto        base = random_floats(mix);
    const auto        scale = random_floats(3);
    const auto        norm = random_floats(width);
    for (const int64_t tokens : {1, 64}) {
        auto               streams = random_floats(tokens * hc * width);
        const auto         y = random_floats(tokens * width);
        std::vector<float> x(static_cast<size_t>(tokens * width)), post(static_cast<size_t>(tokens * hc)),
            comb(static_cast<size_t>(tokens * hc * hc));
        const double pre = seconds([&] {
            ops.hc_pre({tokens, hc, width, streams.data(), &fn, base.data(), scale.data(), 20, 1e-6f, norm.data(), 1e-6f,
                        x.data(), post.data(), comb.data()});
        });
        std::fill(post.begin(), post.end(), 0.0f);
        std::fill(comb.begin(), comb.end(), 0.25f);
        const double after = seconds([&] { ops.hc_post({tokens, hc, width, streams.data(), y.data(), post.data(), comb.data(), 0, nullptr}); });
        std::printf("hc_pre %ld x 4 x 4096: %9.1f us, hc_post %9.1f us\n", static_cast<long>(tokens), pre * 1e6, after * 1e6);
    }
    const auto           logits = random_floats(129280);
    std::vector<float>   best(1024);
    int32_t              finite = 0;
    std::vector<int32_t> ids(1024);
    const double         s = seconds([&] { ops.best({129280, 1024, logits.data(), best.data(), ids.data(), &finite}); });
    std::printf("best 1024 of 129280: %9.1f us\n", s * 1e6);
    const auto         router = random_floats(256);
    std::vector<float> chosen(6);
    const double       r = seconds([&] {
        ops.route({1, 256, 6, router.data(), router.data(), nullptr, nullptr, true, 1.5f, ids.data(), chosen.data()});
    });
    std::printf("route 6 of 256: %9.2f us\n", r * 1e6);
}

void bench_experts(Ops &ops, quant::Type gate_up, quant::Type down) {
    constexpr int64_t width = 4096, inner = 2048, experts = 16, used = 6;
    const auto        bytes = [](quant::Type type, int64_t values) {
        const quant::BlockLayout layout = quant::block_layout(type);
        return values / layout.values * layout.bytes;
    };
    const int64_t gate_bytes = bytes(gate_up, width * inner);
    const int64_t down_bytes = bytes(down, width * inner);
    const auto    weights = random_weights(experts * (2 * gate_bytes + down_bytes));
    std::vector<ExpertAddress> table;
    for (int64_t e = 0; e < experts; ++e) {
        const std::byte *start = weights.data() + e * (2 * gate_bytes + down_bytes);
        table.push_back({start, start + gate_bytes, start + 2 * gate_bytes});
    }
    for (const int64_t tokens : {1, 64}) {
        const auto           x = random_floats(tokens * width);
        std::vector<int32_t> ids;
        for (int64_t i = 0; i < tokens * used; ++i) {
            ids.push_back(static_cast<int32_t>(i * 7 % experts));
        }
        const auto         weight = random_floats(tokens * used);
        std::vector<float> out(x.size());
        const double       s = seconds([&] {
            ops.experts({tokens, width, inner, experts, used, x.data(), ids.data(), weight.data(), table.data(), gate_up, down,
                         10.0f, nullptr, nullptr, nullptr, 10.0f, out.data()});
        });
        std::printf("experts %s/%s %ld x 6 of 16: %9.1f us  %6.1f GB/s  %6.1f G multiplications/s\n", quant::type_name(gate_up),
                    quant::type_name(down), static_cast<long>(tokens), s * 1e6,
                    static_cast<double>(std::min(experts, tokens * used) * (2 * gate_bytes + down_bytes)) / s * 1e-9,
                    static_cast<double>(tokens * used * width * inner * 3) / s * 1e-9);
    }
}

} // namespace

int main(int argument_count, char **arguments) {
    if (argument_count > 1) {
        threads = static_cast<uint32_t>(std::atoi(arguments[1]));
    }
    if (argument_count > 2) {
        instruction_set = static_cast<uint32_t>(std::atoi(arguments[2]));
    }
    if (argument_count > 3) {
        only = arguments[3];
    }
    Backend backend = open_backend({.threads = threads, .instruction_set = instruction_set});
    Ops    &ops = *backend.ops;
    for (const quant::Type type : {quant::Type::f32, quant::Type::f16, quant::Type::bf16, quant::Type::q8_0, quant::Type::mxfp4,
                                   quant::Type::q2_k, quant::Type::q4_k, quant::Type::q5_k, quant::Type::q6_k,
                                   quant::Type::iq2_xxs}) {
        bench_project(ops, type, 2048, 4096);
    }
    if (wanted("experts")) {
        bench_experts(ops, quant::Type::iq2_xxs, quant::Type::q2_k);
        bench_experts(ops, quant::Type::q4_k, quant::Type::q4_k);
    }
    if (wanted("attention")) {
        bench_attention(ops);
    }
    if (wanted("indexer")) {
        bench_indexer(ops);
    }
    if (wanted("streams")) {
        bench_streams(ops);
    }
    return 0;
}
