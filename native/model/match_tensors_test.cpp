#include <string>

#include "check.h"
#include "model/catalogue.h"
#include "model/tiny_model_test.h"
#include "runtime/failure_test.h"

using namespace ds4;
using test::TinyModel;

namespace {

template <typename Change> test::Outcome outcome_after(Change &&change) {
    TinyModel tiny;
    change(tiny);
    return test::outcome_of([&] { tiny.open(); });
}

} // namespace

TEST(a_good_table_opens) { CHECK(outcome_after([](TinyModel &) {}).status == DS4_OK); }

TEST(every_missing_tensor_is_listed) {
    const test::Outcome outcome = outcome_after([](TinyModel &tiny) {
        std::erase_if(tiny.tensors, [](const ds4_tensor &tensor) {
            return tensor.role == DS4_ROLE_ATTN_KV || tensor.role == DS4_ROLE_OUTPUT_NORM;
        });
    });

    CHECK(outcome.status == DS4_E_ARGUMENT);
    for (const char *name : {"blk.0.attn_kv.weight", "blk.4.attn_kv.weight", "output_norm.weight", "missing"}) {
        CHECK(outcome.says(name));
    }
}

TEST(a_tensor_given_twice_is_refused) {
    const test::Outcome outcome =
        outcome_after([](TinyModel &tiny) { tiny.tensors.push_back(tiny.tensor(DS4_ROLE_FFN_NORM, 2)); });

    CHECK(outcome.status == DS4_E_ARGUMENT);
    CHECK(outcome.says("blk.2.ffn_norm.weight is in the table twice"));
}

TEST(wrong_dimensions_are_told_with_the_right_ones) {
    const test::Outcome outcome = outcome_after([](TinyModel &tiny) {
        tiny.tensor(DS4_ROLE_ATTN_Q_B, 1).dims[1] = 127;
        tiny.tensor(DS4_ROLE_EXPERT_DOWN, 2).dims[2] = 5;
        tiny.tensor(DS4_ROLE_ATTN_NORM, 0).dim_count = 0;
    });

    CHECK(outcome.status == DS4_E_ARGUMENT);
    CHECK(outcome.says("blk.1.attn_q_b.weight has dimensions [32, 127], needs [32, 128]"));
    CHECK(outcome.says("blk.2.ffn_down_exps.weight has dimensions [32, 32, 5], needs [32, 32, 6]"));
    CHECK(outcome.says("blk.0.attn_norm.weight"));
}

TEST(a_tensor_of_more_or_fewer_bytes_than_its_type_needs_is_refused) {
    for (const int64_t change : {-1, 1}) {
        const test::Outcome outcome = outcome_after(
            [&](TinyModel &tiny) { tiny.tensor(DS4_ROLE_EXPERT_GATE, 3).bytes += static_cast<uint64_t>(change); });

        CHECK(outcome.status == DS4_E_ARGUMENT);
        CHECK(outcome.says("blk.3.ffn_gate_exps.weight has "));
    }
}

TEST(offsets_outside_the_file_are_refused_also_when_they_wrap) {
    for (const uint64_t offset : {uint64_t{1} << 40, ~uint64_t{0} - 31}) {
        const test::Outcome outcome =
            outcome_after([&](TinyModel &tiny) { tiny.tensor(DS4_ROLE_ATTN_KV, 3).offset = offset; });

        CHECK(outcome.status == DS4_E_ARGUMENT);
        CHECK(outcome.says("blk.3.attn_kv.weight lies outside its file"));
    }
    CHECK(outcome_after([](TinyModel &tiny) { tiny.tensor(DS4_ROLE_ATTN_KV, 3).file = 1; }).status == DS4_E_ARGUMENT);
}

TEST(all_tensors_without_code_are_listed_with_their_types) {
    const test::Outcome outcome = outcome_after([](TinyModel &tiny) {
        tiny.tensor(DS4_ROLE_EXPERT_DOWN, 1).type = 11;
        tiny.tensor(DS4_ROLE_EXPERT_DOWN, 2).type = 11;
        tiny.tensor(DS4_ROLE_ATTN_NORM, 0).type = 8;
        tiny.tensor(DS4_ROLE_ROUTER_HASH, 0).type = 0;
        tiny.tensor(DS4_ROLE_ROUTER, 4).type = 0xffffffffu;
    });

    CHECK(outcome.status == DS4_E_UNSUPPORTED);
    CHECK(outcome.says("blk.1.ffn_down_exps.weight, blk.2.ffn_down_exps.weight has type unknown (11)"));
    CHECK(outcome.says("blk.0.attn_norm.weight has type Q8_0 (8)"));
    CHECK(outcome.says("blk.0.ffn_gate_tid2eid.weight has type F32 (0)"));
    CHECK(outcome.says("blk.4.ffn_gate_inp.weight has type unknown (4294967295)"));
}

TEST(rows_that_are_no_whole_number_of_blocks_are_refused) {
    const test::Outcome outcome = outcome_after([](TinyModel &tiny) {
        tiny.tensor(DS4_ROLE_SHARED_DOWN, 1).type = static_cast<uint32_t>(quant::Type::q4_k);
    });

    CHECK(outcome.status == DS4_E_ARGUMENT);
    CHECK(outcome.says("blk.1.ffn_down_shexp.weight has rows of 32 values, no multiple of the 256"));
}

TEST(gate_and_up_experts_must_share_a_type) {
    const test::Outcome outcome = outcome_after([](TinyModel &tiny) {
        ds4_tensor &up = tiny.tensor(DS4_ROLE_EXPERT_UP, 1);
        up.type = static_cast<uint32_t>(quant::Type::mxfp4);
        up.bytes = up.bytes / 2;
    });

    CHECK(outcome.status == DS4_E_UNSUPPORTED);
    CHECK(outcome.says("blk.1.ffn_up_exps.weight has another type than the gate"));
}

TEST(a_hash_table_with_an_impossible_expert_names_the_token) {
    for (const int32_t id : {-1, 6, 2147483647}) {
        const test::Outcome outcome = outcome_after(
            [&](TinyModel &tiny) { std::memcpy(tiny.data(DS4_ROLE_ROUTER_HASH, 0) + 17 * 8 + 4, &id, sizeof(id)); });

        CHECK(outcome.status == DS4_E_ARGUMENT);
        CHECK(outcome.says("blk.0.ffn_gate_tid2eid.weight routes token 17 to expert " + std::to_string(id) + " of 6"));
    }
}

TEST(a_hash_table_may_name_an_expert_twice) {
    const test::Outcome outcome = outcome_after([](TinyModel &tiny) {
        std::byte *const row = tiny.data(DS4_ROLE_ROUTER_HASH, 0) + 63 * 8;
        std::memcpy(row + 4, row, 4);
    });

    CHECK(outcome.status == DS4_OK);
}

TEST(a_slice_needs_its_own_tensors_only) {
    TinyModel tiny;
    std::erase_if(tiny.tensors, [](const ds4_tensor &tensor) { return tensor.layer != 1 && tensor.layer != 2; });

    const auto loaded = tiny.open({.first = 1, .last = 2});

    CHECK(loaded->store().weight_bytes() > 0);
    CHECK(test::outcome_of([&] { tiny.open({.first = 0, .last = 2}); }).says("token_embd.weight"));
}
