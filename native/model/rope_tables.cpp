#include "model/rope_tables.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace ds4::model {

namespace {

/* base^(-2i/R). All of this is float64, rounded once at the end: positions multiply the error. */
double frequency(double base, int64_t pair, double dims) {
    return std::pow(base, -2.0 * static_cast<double>(pair) / dims);
}

/* The pair, as a real number, whose wave turns `turns` times within the original context. */
double pair_of_turns(const Shape &shape, double turns) {
    const double context = static_cast<double>(shape.yarn_original_context);
    const double dims = static_cast<double>(shape.rope_dims);
    return dims * std::log(context / (turns * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(static_cast<double>(shape.compress_rope_base)));
}

} // namespace

RopeTables::RopeTables(const Shape &shape) {
    const double dims = static_cast<double>(shape.rope_dims);

    for (int64_t pair = 0; pair < shape.rope_dims / 2; ++pair) {
        plain_.push_back(static_cast<float>(frequency(shape.rope_base, pair, dims)));
    }
    if (std::ranges::all_of(shape.compress_ratio, [](int64_t ratio) { return ratio == 0; })) {
        return; /* the values below need not make sense then */
    }

    /* Pairs that turn often keep their frequency, those that turn less than once are slowed down by the whole factor, and
     * in between the two are mixed. YaRN's magnitude factor is not part of this model. */
    const double low = std::max(0.0, std::floor(pair_of_turns(shape, shape.yarn_beta_fast)));
    const double high = std::min(dims - 1.0, std::ceil(pair_of_turns(shape, shape.yarn_beta_slow)));
    const double width = std::max(high - low, 1e-3); /* as a step when both bounds fall together */
    for (int64_t pair = 0; pair < shape.rope_dims / 2; ++pair) {
        const double full = frequency(shape.compress_rope_base, pair, dims);
        const double slowed = full / static_cast<double>(shape.yarn_factor);
        const double ramp = std::clamp((static_cast<double>(pair) - low) / width, 0.0, 1.0);
        compressed_.push_back(static_cast<float>(full * (1.0 - ramp) + slowed * ramp));
    }
}

} // namespace ds4::model
