#include "backend/cpu/ops_test.h"

#include "backend/parity/experts.h"

namespace ds4::backend::cpu::test {

TEST("experts that are begun before all are there give the bits of one call") {
    for (const parity::ExpertsShape &shape : parity::begin_experts_shapes()) {
        if (!tried_on_cpu(shape.slow)) {
            continue;
        }
        const parity::ExpertsCase in(shape);
        for (const uint32_t set : instruction_sets()) {
            for (const bool exact : {false, true}) {
                Backend                  backend = open(2, exact, set);
                parity::PlacedExperts    placed(backend, in, parity::Layout::file);
                const std::string        name =
                    "begin_" + shape.name() + " " + instruction_set_name(set) + (exact ? " exact" : "");
                const std::vector<float> want = placed.run(shape.tokens);
                for (const parity::Missing missing : parity::kMissing) {
                    CHECK_SAME_BITS(name + parity::kMissingNames[static_cast<int>(missing)], placed.run_split(missing), want);
                }
            }
        }
    }
}

TEST("only what was begun can be finished, and once") {
    using quant::Type;
    const parity::ExpertsCase   in({Type::q8_0, Type::q8_0, Type::q8_0, Type::q8_0, 3, 64, 32, 4, 2, true});
    Backend                     backend = open(1, false, DS4_ISA_PLAIN);
    const parity::PlacedExperts placed(backend, in, parity::Layout::file);
    const std::vector<int32_t>  same_ids = in.ids;
    std::vector<float>          out(in.x.size());
    const ExpertsArgs           args = placed.args(out.data());
    ExpertsArgs                 rest = args;
    rest.begun = args.table;

    CHECK_FAILS(DS4_E_INTERNAL, backend.ops->experts(rest));

    ExpertsArgs other = rest;
    other.ids = same_ids.data();
    CHECK(backend.ops->begin_experts(args));
    CHECK_FAILS(DS4_E_INTERNAL, backend.ops->experts(other));

    other = rest;
    other.tokens = 2;
    CHECK(backend.ops->begin_experts(args));
    CHECK_FAILS(DS4_E_INTERNAL, backend.ops->experts(other));

    CHECK(backend.ops->begin_experts(args));
    backend.ops->experts(args);
    CHECK_FAILS(DS4_E_INTERNAL, backend.ops->experts(rest));

    CHECK(backend.ops->begin_experts(args));
    backend.ops->experts(rest);
    CHECK_FAILS(DS4_E_INTERNAL, backend.ops->experts(rest));
}

} // namespace ds4::backend::cpu::test
