/* A group of 32 lanes multiplies a few rows of weights with one row of inputs. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "backend/gpu/experts.h"

namespace ds4::backend::gpu {

/* Chain sums of lanes to row sums, in every lane. `room`: [kRows][32] of the group, for 32 chains. */
template <int kChains, int kRows> DS4_DEVICE void sum_chains(const float (&chain)[kRows], float *room, float (&sum)[kRows]) {
    if constexpr (kChains == 4) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            sum[r] = 0.0f;
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                sum[r] += shuffle(chain[r], 8 * c);
            }
        }
    } else {
        sync_group();
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            room[r * (kLanes + 1) + lane()] = chain[r];
        }
        sync_group();
        float own = 0.0f;
        if (lane() < kRows) {
            for (int c = 0; c < kLanes; ++c) {
                own += room[lane() * (kLanes + 1) + c];
            }
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            sum[r] = shuffle(own, r);
        }
    }
}
constexpr int kMostRows = 2;
constexpr int kRoom = kMostRows * (kLanes + 1);

/* One row of inputs, in the memory of the card or of the block. */
struct InputRow {
    int64_t         number; /* no other row has it */
    const uint32_t *words;
    const float    *d; /* of unit u: d[u * d_stride] */
    int64_t         d_stride;
    const uint32_t *sums;
    const float    *floats;
};

DS4_DEVICE InputRow row_of(const ProductInputs &x, int64_t row, int64_t columns) {
    return {row,
            reinterpret_cast<const uint32_t *>(x.bytes.q + row * columns),
            x.bytes.d + row,
            x.bytes.d_stride,
            reinterpret_cast<const uint32_t *>(x.bytes.sums + row * (columns / 16)),
            x.floats + row * columns};
}

/* Rows in 8 bits in shared memory: bytes, then scales, then sums. */
DS4_BOTH int scales_bytes(Inputs inputs, int columns) { return (columns / unit_values(inputs) * 4 + 15) / 16 * 16; }
DS4_BOTH int rounded_row_bytes(Inputs inputs, int columns) {
    return inputs == Inputs::floats
               ? 0
               : columns + scales_bytes(inputs, columns) + (inputs == Inputs::bytes_256 ? columns / 8 : 0);
}
template <Inputs inputs> DS4_DEVICE InputRow rounded_row(std::byte *rows, const FeedForward &job, int token) {
    if constexpr (inputs == Inputs::floats) {
        return {token, nullptr, nullptr, 0, nullptr, job.x_values + static_cast<int64_t>(token) * job.width};
    } else {
        std::byte *own = rows + token * rounded_row_bytes(inputs, job.width);
        return {token,
                reinterpret_cast<const uint32_t *>(own),
                reinterpret_cast<const float *>(own + job.width),
                1,
                reinterpret_cast<const uint32_t *>(own + job.width + scales_bytes(inputs, job.width)),
                nullptr};
    }
}
/* By all threads of a block. x: [count, columns] */
template <Inputs inputs> DS4_DEVICE void round_rows(const float *x, int count, int columns, std::byte *rows) {
    if constexpr (inputs != Inputs::floats) {
        for (int row = 0; row < count; ++row) {
            std::byte *own = rows + row * rounded_row_bytes(inputs, columns);
            auto      *words = reinterpret_cast<uint32_t *>(own);
            auto      *d = reinterpret_cast<float *>(own + columns);
            if constexpr (inputs == Inputs::bytes_32) {
                quantise_row_32(x + static_cast<int64_t>(row) * columns, columns, words, d);
            } else {
                quantise_row_256(x + static_cast<int64_t>(row) * columns, columns, words, d,
                                 reinterpret_cast<int16_t *>(own + columns + scales_bytes(inputs, columns)));
            }
        }
    }
}

/* The sums of four values over eight neighbouring lanes: a lane ends with that of value lane % 4. */
DS4_DEVICE int sums_of_eight(const int (&value)[4]) {
    const bool odd = (lane() & 1) != 0, upper = (lane() & 2) != 0;
    const int  low = (odd ? value[1] : value[0]) + shuffle_xor(odd ? value[0] : value[1], 1);
    const int  high = (odd ? value[3] : value[2]) + shuffle_xor(odd ? value[2] : value[3], 1);
    const int  sum = (upper ? high : low) + shuffle_xor(upper ? low : high, 2);
    return sum + shuffle_xor(sum, 4);
}

/* Weights in bytes. A lane holds its activations of up to kSteps units, for all the rows that meet them. */
template <Format format, int kSteps> class ByteRows {
    using Unit = Bytes<format>;
    static constexpr int kPerStep = kLanes / Unit::kShares; /* units: one of each chain */
    static constexpr int kAhead = sizeof(typename Unit::Raw) > 40 ? 1 : sizeof(typename Unit::Raw) > 12 ? 2 : 4;
    static constexpr int kTogether = kAhead < kSteps ? kAhead : kSteps;
    static constexpr bool kLoadsEveryFourth = format == Format::iq2_xxs;
    static_assert(!kLoadsEveryFourth || kPerStep == 4);

    uint32_t x_[kSteps][8];
    float    d_[kSteps];
    uint32_t sums_[kSteps];
    int64_t  held_ = -1;

    DS4_DEVICE static int share() { return lane() % Unit::kShares; }

    DS4_DEVICE void take(const InputRow &x, int64_t first, int64_t units) {
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
            const int64_t unit = first + s * kPerStep + lane() / Unit::kShares;
            if (unit < units) {
                share_inputs<Unit>(x.words + unit * (8 * Unit::kShares), share(), x_[s]);
                d_[s] = x.d[unit * x.d_stride];
                if constexpr (Unit::kMinima) {
                    sums_[s] = x.sums[8 * unit + share()];
                }
            } else {
#pragma unroll
                for (int k = 0; k < 8; ++k) {
                    x_[s][k] = 0;
                }
                d_[s] = 0.0f;
                sums_[s] = 0;
            }
        }
    }

public:
    /* Enough copies that lanes which read at random seldom wait for each other. */
    using Tables = std::conditional_t<format == Format::iq2_xxs, Iq2TablesOf<16>, typename Unit::Tables>;
    [[maybe_unused]] static constexpr Inputs kInputs = inputs_of(format, false);

    template <int kRows>
    DS4_DEVICE void multiply(Format, const std::byte *const (&rows)[kRows], int64_t columns, const InputRow &x,
                             const Tables &tables, float *room, float (&sum)[kRows]) {
        const int64_t units = columns / (32 * Unit::kShares);
        float         chain[kRows] = {};
        for (int64_t first = 0; first < units; first += kSteps * kPerStep) {
            if (held_ != x.number || units > kSteps * kPerStep) {
                take(x, first, units);
                held_ = x.number;
            }
#pragma unroll
            for (int begin = 0; begin < kSteps; begin += kTogether) {
                typename Unit::Raw raw[kTogether][kRows];
                load(rows, columns, first + begin * kPerStep, raw);
#pragma unroll
                for (int s = 0; s < kTogether; ++s) {
#pragma unroll
                    for (int r = 0; r < kRows; ++r) {
                        add(raw[s][r], begin + s, tables, chain[r]);
                    }
                }
            }
        }
        sum_chains<kPerStep>(chain, room, sum);
    }

    /* Whether four rows are better taken at once: their sums over lanes then share instructions, which is what the time of
     * formats with little to read per weight goes into. */
    static constexpr bool kTakesFour = Unit::kShares == 8 && sizeof(typename Unit::Raw) <= 20;

    /* The sum of row lane() % 4. */
    DS4_DEVICE float multiply_four(const std::byte *const (&rows)[4], int64_t columns, const InputRow &x, const Tables &tables) {
        static_assert(kTakesFour);
        const int64_t    units = columns / (32 * Unit::kShares);
        const std::byte *own_row[1] = {(lane() & 2) == 0 ? (lane() & 1) == 0 ? rows[0] : rows[1]
                                                         : (lane() & 1) == 0 ? rows[2] : rows[3]};
        float            chain = 0.0f;
        for (int64_t first = 0; first < units; first += kSteps * kPerStep) {
            if (held_ != x.number || units > kSteps * kPerStep) {
                take(x, first, units);
                held_ = x.number;
            }
#pragma unroll
            for (int begin = 0; begin < kSteps; begin += kTogether) {
                typename Unit::Raw raw[kTogether][4]; /* without scales, which are read of one row only */
                typename Unit::Raw own[kTogether][1];
                load(rows, columns, first + begin * kPerStep, raw);
                load(own_row, columns, first + begin * kPerStep, own);
#pragma unroll
                for (int s = 0; s < kTogether; ++s) {
                    int total[4], minima[4] = {};
#pragma unroll
                    for (int r = 0; r < 4; ++r) {
                        uint32_t words[8];
                        int      scale[2];
                        Unit::expand(raw[s][r], share(), tables, words, scale);
                        total[r] = share_dot<Unit>(words, scale, x_[begin + s]);
                        if constexpr (Unit::kMinima) {
                            minima[r] = add_minima(Unit::piece_minima(raw[s][r], share()), sums_[begin + s], 0);
                        }
                    }
                    const int sum = sums_of_eight(total);
                    const int sum_of_minima = Unit::kMinima ? sums_of_eight(minima) : 0;
                    chain = accumulate<Unit::kMinima>(chain, Unit::scale(own[s][0]), d_[begin + s], static_cast<float>(sum),
                                                      static_cast<float>(sum_of_minima));
                }
            }
        }
        float sum = 0.0f;
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            sum += shuffle(chain, 8 * c + lane() % 4);
        }
        return sum;
    }

private:
    template <int kRows>
    static DS4_DEVICE void load(const std::byte *const (&rows)[kRows], int64_t columns, int64_t first,
                                typename Unit::Raw (&raw)[kTogether][kRows]) {
        const int64_t units = columns / (32 * Unit::kShares);
        if constexpr (kLoadsEveryFourth) {
            if (first + kTogether * kPerStep <= units) {
#pragma unroll
                for (int r = 0; r < kRows; ++r) {
                    Unit::template load_every_fourth<kTogether>(
                        rows[r], first + lane() / Unit::kShares, share(),
                        [&](int s, const typename Unit::Raw &one) { raw[s][r] = one; });
                }
                return;
            }
        }
#pragma unroll
        for (int s = 0; s < kTogether; ++s) {
            const int64_t unit = first + s * kPerStep + lane() / Unit::kShares;
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                raw[s][r] = unit < units ? Unit::load(rows[r], columns, unit, share()) : typename Unit::Raw{};
            }
        }
    }

    /* A unit beyond the row's end has zeros everywhere and adds nothing. */
    DS4_DEVICE void add(const typename Unit::Raw &raw, int step, const Tables &tables, float &chain) const {
        uint32_t words[8];
        int      scale[2];
        Unit::expand(raw, share(), tables, words, scale);
        int total = share_dot<Unit>(words, scale, x_[step]);
        int minima = 0;
        if constexpr (Unit::kMinima) {
            minima = add_minima(Unit::piece_minima(raw, share()), sums_[step], 0);
        }
        if constexpr (Unit::kShares == 8) {
            total = sum_of_eight(total);
            if constexpr (Unit::kMinima) {
                minima = sum_of_eight(minima);
            }
        }
        chain = accumulate<Unit::kMinima>(chain, Unit::scale(raw), d_[step], static_cast<float>(total),
                                          static_cast<float>(minima));
    }
};

DS4_DEVICE void any_floats(Format format, const std::byte *row, int64_t columns, int64_t piece, float (&out)[32]) {
    switch (format) {
    case Format::f32: floats<Format::f32>(row, columns, piece, out); return;
    case Format::f16: floats<Format::f16>(row, columns, piece, out); return;
    case Format::bf16: floats<Format::bf16>(row, columns, piece, out); return;
    case Format::q8_0: floats<Format::q8_0>(row, columns, piece, out); return;
    case Format::q8_0_arranged: floats<Format::q8_0_arranged>(row, columns, piece, out); return;
    case Format::mxfp4: floats<Format::mxfp4>(row, columns, piece, out); return;
    case Format::q2_k: floats<Format::q2_k>(row, columns, piece, out); return;
    case Format::q4_k: floats<Format::q4_k>(row, columns, piece, out); return;
    case Format::q5_k: floats<Format::q5_k>(row, columns, piece, out); return;
    case Format::q6_k: floats<Format::q6_k>(row, columns, piece, out); return;
    case Format::iq2_xxs: floats<Format::iq2_xxs>(row, columns, piece, out); return;
    }
}

/* Weights expanded to float32, of any format. */
class FloatRows {
public:
    using Tables = NoTables;
    [[maybe_unused]] static constexpr Inputs kInputs = Inputs::floats;

    static constexpr bool kTakesFour = false;

    template <int kRows>
    DS4_DEVICE void multiply(Format format, const std::byte *const (&rows)[kRows], int64_t columns, const InputRow &x,
                             const Tables &, float *room, float (&sum)[kRows]) {
        float chain[kRows] = {};
        for (int64_t unit = lane(); 32 * unit < columns; unit += kLanes) {
            const int count = static_cast<int>(columns - 32 * unit < 32 ? columns - 32 * unit : 32);
            for (int r = 0; r < kRows; ++r) {
                float weights[32];
                any_floats(format, rows[r], columns, unit, weights);
#pragma unroll
                for (int i = 0; i < 32; ++i) {
                    if (i < count) {
                        chain[r] = fmaf(weights[i], x.floats[32 * unit + i], chain[r]);
                    }
                }
            }
        }
        sum_chains<kLanes>(chain, room, sum);
    }
};

} // namespace ds4::backend::gpu
