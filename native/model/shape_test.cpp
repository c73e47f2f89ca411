#include "model/shape.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include "check.h"
#include "model/rope_tables.h"
#include "model/tiny_model_test.h"
#include "runtime/failure_test.h"

using namespace ds4;
using test::TinyModel;

namespace {

template <typename Change> test::Outcome outcome_after(Change &&change) {
    TinyModel tiny;
    change(tiny.shape);
    return test::outcome_of([&] { model::Shape::checked(tiny.shape); });
}

} // namespace

TEST(every_hyper_parameter_of_zero_or_a_huge_value_is_refused_by_name) {
    struct Field {
        const char *name;
        uint32_t ds4_shape::*member;
    };
    for (const Field field : {Field{"layer_count", &ds4_shape::layer_count}, Field{"embedding", &ds4_shape::embedding},
                              Field{"vocab", &ds4_shape::vocab}, Field{"head_count", &ds4_shape::head_count},
                              Field{"head_dim", &ds4_shape::head_dim}, Field{"rope_dims", &ds4_shape::rope_dims},
                              Field{"q_rank", &ds4_shape::q_rank}, Field{"output_groups", &ds4_shape::output_groups},
                              Field{"output_rank", &ds4_shape::output_rank}, Field{"window", &ds4_shape::window},
                              Field{"indexer_heads", &ds4_shape::indexer_heads},
                              Field{"indexer_dim", &ds4_shape::indexer_dim},
                              Field{"indexer_top_k", &ds4_shape::indexer_top_k},
                              Field{"expert_count", &ds4_shape::expert_count},
                              Field{"expert_used", &ds4_shape::expert_used},
                              Field{"expert_width", &ds4_shape::expert_width}, Field{"hc_count", &ds4_shape::hc_count},
                              Field{"sinkhorn_iterations", &ds4_shape::sinkhorn_iterations}}) {
        for (const uint32_t value : {0u, 0xffffffffu}) {
            const test::Outcome outcome = outcome_after([&](ds4_shape &shape) { shape.*field.member = value; });

            CHECK(outcome.status == DS4_E_ARGUMENT);
            CHECK(outcome.says(field.name));
        }
    }
}

TEST(hyper_parameters_that_do_not_go_together_are_refused) {
    CHECK(outcome_after([](ds4_shape &s) { s.rope_dims = 15; }).says("rope_dims is odd"));
    CHECK(outcome_after([](ds4_shape &s) { s.rope_dims = 34; }).says("rope_dims exceeds head_dim"));
    CHECK(outcome_after([](ds4_shape &s) { s.indexer_dim = 8; }).says("rope_dims exceeds indexer_dim"));
    CHECK(outcome_after([](ds4_shape &s) { s.indexer_dim = 48; }).says("power of two"));
    CHECK(outcome_after([](ds4_shape &s) {
              s.indexer_dim = 48;
              s.round_trips = 0;
          }).status == DS4_OK);
    CHECK(outcome_after([](ds4_shape &s) { s.output_groups = 3; }).says("no multiple of output_groups"));
    CHECK(outcome_after([](ds4_shape &s) { s.expert_used = 7; }).says("expert_used exceeds expert_count"));
    CHECK(outcome_after([](ds4_shape &s) { s.hash_layers = 6; }).says("hash_layers"));
    CHECK(outcome_after([](ds4_shape &s) { s.round_trips = 2; }).says("round_trips"));
    CHECK(outcome_after([](ds4_shape &s) { s.compress_ratio = nullptr; }).says("compress_ratio is missing"));
}

TEST(hyper_parameters_that_are_no_numbers_are_refused) {
    for (const float bad : {0.0f, -1.0f, std::nanf(""), INFINITY}) {
        for (float ds4_shape::*member : {&ds4_shape::rms_epsilon, &ds4_shape::hc_epsilon, &ds4_shape::rope_base,
                                         &ds4_shape::compress_rope_base, &ds4_shape::yarn_factor,
                                         &ds4_shape::yarn_beta_fast, &ds4_shape::yarn_beta_slow,
                                         &ds4_shape::expert_scale}) {
            CHECK(outcome_after([&](ds4_shape &shape) { shape.*member = bad; }).status == DS4_E_ARGUMENT);
        }
    }
    const float clamps[] = {1.0f, 1.0f, std::nanf(""), INFINITY, 0.0f};
    const auto  clamped = outcome_after([&](ds4_shape &shape) { shape.clamp_routed = clamps; });
    CHECK(clamped.says("clamp_routed of layer 2") && clamped.says("clamp_routed of layer 4"));
    CHECK(!clamped.says("layer 3")); /* no limit */
}

TEST(a_slice_must_be_within_the_model_and_match_its_ends) {
    TinyModel          tiny;
    const model::Shape shape = model::Shape::checked(tiny.shape);
    const auto         outcome = [&](uint32_t first, uint32_t last, uint32_t embedding, uint32_t head) {
        ds4_load_plan plan{};
        plan.layer_first = first;
        plan.layer_last = last;
        plan.has_embedding = embedding;
        plan.has_head = head;
        return test::outcome_of([&] { model::Slice::checked(plan, shape); }).status;
    };

    CHECK(outcome(0, 4, 1, 1) == DS4_OK);
    CHECK(outcome(2, 2, 0, 0) == DS4_OK);
    CHECK(outcome(3, 2, 0, 0) == DS4_E_ARGUMENT);
    CHECK(outcome(0, 5, 1, 0) == DS4_E_ARGUMENT);
    CHECK(outcome(1, 4, 1, 1) == DS4_E_ARGUMENT);
    CHECK(outcome(0, 3, 1, 1) == DS4_E_ARGUMENT);
    CHECK(outcome(0, 4, 2, 1) == DS4_E_ARGUMENT);
}

TEST(rope_frequencies_are_plain_or_scaled_where_waves_are_long) {
    TinyModel tiny;
    tiny.shape.head_dim = 128;
    tiny.shape.indexer_dim = 128;
    tiny.shape.rope_dims = 64; /* as in the released models: the ramp runs from pair 15 to pair 25 */
    const model::RopeTables tables(model::Shape::checked(tiny.shape));

    const backend::Rope plain = tables.for_ratio(0);
    const backend::Rope scaled = tables.for_ratio(4);

    CHECK(plain.dims == 64 && scaled.dims == 64);
    CHECK(tables.for_ratio(128).frequency == scaled.frequency);
    for (int pair = 0; pair < 32; ++pair) {
        const double full = std::pow(160000.0, -pair / 32.0);
        const double ramp = pair <= 15 ? 0.0 : pair >= 25 ? 1.0 : (pair - 15) / 10.0;
        CHECK(plain.frequency[pair] == static_cast<float>(std::pow(10000.0, -pair / 32.0)));
        CHECK(std::fabs(scaled.frequency[pair] / (full * (1.0 - ramp) + full / 16.0 * ramp) - 1.0) < 1e-7);
    }
}
