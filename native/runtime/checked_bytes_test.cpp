#include "runtime/checked_bytes.h"

#include <limits>

#include "check.h"
#include "runtime/carver.h"
#include "runtime/failure_test.h"

using namespace ds4;
using namespace ds4::runtime;

TEST(sums_and_products_that_wrap_are_failures) {
    const uint64_t top = std::numeric_limits<uint64_t>::max();

    CHECK(checked_add(top - 1, 1) == top);
    CHECK(checked_multiply(1u << 31, 1u << 31) == uint64_t{1} << 62);
    CHECK(test::outcome_of([&] { checked_add(top, 1); }).status == DS4_E_NO_MEMORY);
    CHECK(test::outcome_of([&] { checked_multiply(top / 2, 3); }).status == DS4_E_NO_MEMORY);
    CHECK(test::outcome_of([&] { Carver().take<float>(top / 2); }).status == DS4_E_NO_MEMORY);
}

TEST(bytes_are_described_in_the_unit_a_person_would_choose) {
    CHECK(describe_bytes(0) == "0 bytes");
    CHECK(describe_bytes(1023) == "1023 bytes");
    CHECK(describe_bytes(1536) == "1.50 KiB");
    CHECK(describe_bytes(uint64_t{5} << 40) == "5.00 TiB");
}
