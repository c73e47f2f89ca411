#include <string>
#include <vector>

#include "abi/usable_devices.h"
#include "check.h"
#include "runtime/failure_test.h"

using namespace ds4;

namespace {

uint32_t all_but_the_first(uint32_t index) {
    if (index == 0) {
        throw Failure(DS4_E_DEVICE, "the display card is too old");
    }
    return index;
}

uint32_t none(uint32_t index) { throw Failure(DS4_E_DEVICE, "card " + std::to_string(index) + " is busy"); }

} // namespace

TEST("a card that cannot be used does not take the others with it") {
    CHECK((abi::usable_devices(3, all_but_the_first) == std::vector<uint32_t>{1, 2}));
}

TEST("when no card can be used the first one says why") {
    std::string why;
    try {
        static_cast<void>(abi::usable_devices(2, none));
    } catch (const Failure &failure) {
        why = failure.what();
    }
    CHECK(why == "card 0 is busy");
    CHECK(abi::usable_devices(0, none).empty());
}
