#include "backend/cpu/experts_test.h"

namespace ds4::backend::cpu::test {

namespace {

/* Gate and up of nothing but zeros, large enough for any expert. */
std::vector<std::byte> zeros(const ExpertsModel &model) {
    return std::vector<std::byte>(model.gates[0].bytes.size());
}

} // namespace

TEST("experts that are begun before all are there give the bits of one call") {
    for (const ExpertsShape &shape : split_shapes()) {
        for (const uint32_t set : instruction_sets()) {
            for (const bool exact : {false, true}) {
                Random                           random(97);
                const ExpertsModel               model(shape, Routing::spread, random);
                const std::vector<ExpertAddress> whole = model.table();
                const std::vector<std::byte>     wrong = zeros(model);
                Backend                          backend = open(2, exact, set);
                const std::string name = shape.name() + " " + instruction_set_name(set) + (exact ? " exact" : "");
                ExpertsArgs        args = model.host_args();
                std::vector<float> want(model.x.size()), got(model.x.size());
                args.table = whole.data();
                args.out = want.data();
                backend.ops->experts(args);
                for (const Missing missing : kMissing) {
                    const SplitTables tables = split_tables(model, whole, missing, wrong.data());
                    std::fill(got.begin(), got.end(), NAN);
                    args.out = got.data();
                    args.table = tables.first.data();
                    args.begun = nullptr;
                    CHECK(backend.ops->begin_experts(args));
                    args.table = tables.rest.data();
                    args.begun = tables.first.data();
                    backend.ops->experts(args);
                    CHECK_SAME_BITS(name + kMissingNames[static_cast<int>(missing)], got, want);
                }
            }
        }
    }
}

TEST("only what was begun can be finished, and once") {
    using quant::Type;
    Random             random(98);
    const ExpertsModel model({Type::q8_0, Type::q8_0, Type::q8_0, Type::q8_0, 3, 64, 32, 4, 2, true}, Routing::spread, random);
    const std::vector<ExpertAddress> table = model.table();
    const std::vector<int32_t>       same_ids = model.ids;
    std::vector<float>               out(model.x.size());
    Backend                          backend = open(1, false, DS4_ISA_PLAIN);
    ExpertsArgs                      args = model.host_args();
    args.table = table.data();
    args.out = out.data();
    ExpertsArgs rest = args;
    rest.begun = table.data();

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
