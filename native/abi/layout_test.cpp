#include <array>
#include <vector>

#include "check.h"
#include "include/ds4.h"

namespace {

std::vector<uint32_t> layout_of(const char *name) {
    std::array<uint32_t, 64> values{};
    const uint32_t           count = ds4_abi_layout(name, values.data(), values.size());
    return {values.begin(), values.begin() + count};
}

} // namespace

TEST(the_layout_table_agrees_with_the_compiler) {
    CHECK(layout_of("ds4_error") == std::vector<uint32_t>({16, 0, 4, 8}));
    CHECK(layout_of("ds4_session_args") == std::vector<uint32_t>({24, 0, 4, 8, 16, 20}));
    CHECK(layout_of("ds4_tap_record") == std::vector<uint32_t>({24, 0, 4, 8, 16, 20}));
    CHECK(layout_of("ds4_shape").size() == 37 && layout_of("ds4_shape")[0] == sizeof(ds4_shape));
    CHECK(layout_of("ds4_eval_args").back() == offsetof(ds4_eval_args, tap_bytes));
    for (const char *name : {"ds4_device_info", "ds4_tensor", "ds4_load_plan", "ds4_model_args", "ds4_model_info",
                             "ds4_session_sizes", "ds4_eval_result"}) {
        CHECK(layout_of(name).size() > 4);
        CHECK(layout_of(name)[1] == 0);
    }
}

TEST(a_layout_is_written_as_far_as_there_is_room_and_counted_in_full) {
    std::array<uint32_t, 3> values = {9, 9, 9};

    CHECK(ds4_abi_layout("ds4_error", values.data(), 2) == 4);
    CHECK(values[0] == 16 && values[1] == 0 && values[2] == 9);
    CHECK(ds4_abi_layout("ds4_error", nullptr, 0) == 4);
    CHECK(ds4_abi_layout("ds4_nothing", values.data(), 3) == 0);
    CHECK(ds4_abi_layout(nullptr, values.data(), 3) == 0);
    CHECK(ds4_abi_version() == DS4_ABI_VERSION);
}
