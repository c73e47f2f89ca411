/* What the tests of the GPU's operations share. They see the backend through ops.h and device.h only, so that the same test
 * runs on the emulated card and on a real one. */
#pragma once

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

#include "backend/ops.h"
#include "backend/parity/guarded_host.h"
#include "backend/parity/matrices.h"
#include "check.h"

namespace ds4::backend::gpu::test {

using ds4::test::Random;
using parity::frequencies;
using parity::kWeightTypes;
using parity::Layout;
using parity::OwnedMatrix;
using parity::pieces;
using parity::place;
using parity::place_matrix;
using parity::Placed;
using parity::PlacedMatrix;
using parity::random_matrix;
using parity::reference;
using parity::room;
using parity::tried_on_card;
using parity::tried_with;

/* This library's device 0. */
inline Backend gpu(bool exact) {
    return open_backend({.device = 0, .exact = exact});
}

/* run(backend, piece) over a batch of `tokens`: on the card as on the CPU, and in the same bits cut into pieces. Returns what
 * the card made of the whole batch. */
template <typename Run>
std::vector<float> check_parity(const std::string &name, int64_t tokens, bool exact, double tolerance, Run run,
                                std::initializer_list<int64_t> cuts = {1, 7}) {
    Backend                  card = gpu(exact);
    Backend                  cpu = reference(exact);
    const std::vector<float> got = run(card, tokens);
    CHECK_NMSE(name, got, run(cpu, tokens), tolerance);
    for (const int64_t cut : cuts) {
        if (cut < tokens) {
            CHECK_SAME_BITS(name + " in pieces of " + std::to_string(cut), run(card, cut), got);
        }
    }
    return got;
}

} // namespace ds4::backend::gpu::test
