#include "abi/guard.h"
#include "abi/sized_struct.h"
#include "backend/ops.h"

ds4_status ds4_simulate(const ds4_simulation *machine, ds4_error *error) {
    using namespace ds4;
    return abi::guarded(error, [&] { backend::simulate(abi::read_struct(machine, "ds4_simulation")); });
}
