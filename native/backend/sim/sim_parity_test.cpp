/* Every shape of every operation on the simulated device: what is checked and translated on the way changes no bit, and every
 * array is as long as the op says that it reads and writes. */
#include <string>
#include <string_view>

#include "backend/parity/every_case.h"
#include "backend/parity/guarded_host.h"
#include "backend/sim/simulated_machine_test.h"

using namespace ds4;
using namespace ds4::backend;
using namespace ds4::backend::sim::test;

namespace {

ds4_simulation large_machine() {
    ds4_simulation machine = small_machine();
    machine.vram_bytes = uint64_t{1} << 32;
    return machine;
}

/* Counts the calls of each op of another backend. With an op that is new in ops.h this does not compile until it is here,
 * too. */
class Tally final : public Ops {
public:
    static constexpr size_t kOps = 17;

    explicit Tally(std::unique_ptr<Ops> inner) : inner_(std::move(inner)) {}

    void embed(const EmbedArgs &args) override { count(0).embed(args); }
    void hc_pre(const HcPreArgs &args) override { count(1).hc_pre(args); }
    void hc_post(const HcPostArgs &args) override { count(2).hc_post(args); }
    void hc_head(const HcHeadArgs &args) override { count(3).hc_head(args); }
    void project(const ProjectArgs &args) override { count(4).project(args); }
    void grouped_project(const GroupedProjectArgs &args) override { count(5).grouped_project(args); }
    void rms_norm(const RmsNormArgs &args) override { count(6).rms_norm(args); }
    void query(const QueryArgs &args) override { count(7).query(args); }
    void window(const WindowArgs &args) override { count(8).window(args); }
    void compress(const CompressArgs &args) override { count(9).compress(args); }
    void indexer_query(const IndexerQueryArgs &args) override { count(10).indexer_query(args); }
    void indexer_select(const IndexerSelectArgs &args) override { count(11).indexer_select(args); }
    void attention(const AttentionArgs &args) override { count(12).attention(args); }
    void route(const RouteArgs &args) override { count(13).route(args); }
    void experts(const ExpertsArgs &args) override { count(14).experts(args); }
    bool begin_experts(const ExpertsArgs &args) override { return count(15).begin_experts(args); }
    void best(const BestArgs &args) override { count(16).best(args); }
    bool supports(quant::Type type) const override { return inner_->supports(type); }

    const std::array<int64_t, kOps> &calls() const { return calls_; }

private:
    Ops &count(size_t op) {
        ++calls_.at(op);
        return *inner_;
    }

    std::unique_ptr<Ops>      inner_;
    std::array<int64_t, kOps> calls_{};
};

constexpr std::array<std::string_view, Tally::kOps> kOpNames = {
    "embed", "hc_pre",   "hc_post",       "hc_head",        "project",   "grouped_project", "rms_norm", "query",
    "window", "compress", "indexer_query", "indexer_select", "attention", "route",           "experts",  "begin_experts",
    "best"};

} // namespace

TEST("every op of ops.h has a table of shapes, and for each the simulated device has the bits of the processor") {
    const Simulated machine(large_machine());
    Backend         device = open_backend({.threads = 1});
    Backend         cpu = parity::reference(false, device.instruction_set);
    auto            tally = std::make_unique<Tally>(std::move(device.ops));
    const Tally    &tallied = *tally;
    device.ops = std::move(tally);

    parity::for_each_case([&](const std::string &name, auto run) {
        std::vector<float> got;
        try {
            got = run(device);
        } catch (const Failure &failure) {
            ds4::test::report(false, __FILE__, __LINE__, name + ": " + failure.what());
            return;
        }
        CHECK_SAME_BITS(name, got, run(cpu));
    });

    for (size_t op = 0; op < Tally::kOps; ++op) {
        ds4::test::report(tallied.calls()[op] != 0, __FILE__, __LINE__, "no shape of parity/ tries " + std::string(kOpNames[op]));
    }
}
