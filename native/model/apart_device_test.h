/* For tests: a device whose memory is really apart, with the arithmetic of another backend.
 *
 * Its addresses are of pages that nobody may touch, so that the host reading or writing one without a copy ends the
 * test, and an op that is given a host address fails. It keeps the contract of steps as a GPU does: the first step of a shape runs
 * plainly, the second is recorded, and from then on what was recorded runs instead. Matrices can be arranged: rows are
 * written backwards, and only ops that may see arranged ones read them. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <sys/mman.h>

#include "backend/ops.h"
#include "failure.h"

namespace ds4::test {

class ApartDevice : public backend::Device {
public:
    backend::DeviceInfo info() const override {
        return {backend::DeviceKind::simulated, "a device apart", "test", 1, free_bytes, free_bytes};
    }
    bool reads_host_memory() const override { return false; }

    void copy_in(void *to, const void *from, size_t bytes) override {
        ++copies_in;
        std::memcpy(behind(to), from, bytes);
    }
    void copy_out(void *to, const void *from, size_t bytes) override {
        ++copies_out;
        std::memcpy(to, behind(from), bytes);
    }
    void copy_within(void *to, const void *from, size_t bytes) override { std::memcpy(behind(to), behind(from), bytes); }

    std::unique_ptr<backend::HostMapping> map_host(std::span<const std::byte> range) override {
        return std::make_unique<Mapping>(*this, range);
    }
    std::unique_ptr<backend::UploadRing> upload_ring(size_t slots, size_t slot_bytes) override {
        return std::make_unique<Ring>(*this, slots, slot_bytes);
    }

    std::unique_ptr<backend::PinnedMemory> pin_memory(size_t bytes, std::string_view) override {
        return std::make_unique<Pinned>(*this, bytes);
    }

    backend::Allocation allocate(size_t bytes, std::string_view what) override {
        if (bytes > free_bytes) {
            throw Failure(DS4_E_NO_MEMORY, "no room for " + std::string(what));
        }
        if (bytes == 0) {
            return {};
        }
        void *const memory = ::operator new(bytes, std::align_val_t(256));
        std::memset(memory, 0, bytes);
        free_bytes -= bytes;
        lent_bytes += bytes;
        return {this, open_window(static_cast<std::byte *>(memory), bytes), bytes};
    }

    /* The memory behind a device address. */
    template <typename T> T *behind(T *address) const {
        if (address == nullptr) {
            return nullptr;
        }
        const auto at = reinterpret_cast<uintptr_t>(address);
        auto       window = windows_.upper_bound(at);
        if (window == windows_.begin() || at >= std::prev(window)->first + std::prev(window)->second.bytes) {
            throw Failure(DS4_E_INTERNAL, "the device was given an address that is not its own");
        }
        --window;
        return reinterpret_cast<T *>(window->second.memory + (at - window->first));
    }

    uint64_t free_bytes = uint64_t{1} << 32;
    uint64_t lent_bytes = 0;
    uint64_t pinned_bytes = 0;
    uint64_t copies_in = 0;
    uint64_t copies_out = 0;

private:
    struct Window {
        std::byte *memory;
        size_t     bytes;
    };

    class Mapping : public backend::HostMapping {
    public:
        Mapping(ApartDevice &device, std::span<const std::byte> range)
            : device_(device), bytes_(range.size()),
              address_(device.open_window(const_cast<std::byte *>(range.data()), range.size())) {
            device_.pinned_bytes += bytes_;
        }
        ~Mapping() override {
            device_.close_window(address_, bytes_);
            device_.pinned_bytes -= bytes_;
        }
        const std::byte *device_address() const override { return static_cast<std::byte *>(address_); }

    private:
        ApartDevice &device_;
        size_t       bytes_;
        void        *address_;
    };

    class Pinned : public backend::PinnedMemory {
    public:
        Pinned(ApartDevice &device, size_t bytes) : memory_(bytes), mapping_(device, memory_) {}
        const std::byte     *device_address() const override { return mapping_.device_address(); }
        std::span<std::byte> bytes() const override { return memory_; }

    private:
        mutable std::vector<std::byte> memory_;
        Mapping                        mapping_;
    };

    class Ring : public backend::UploadRing {
    public:
        Ring(ApartDevice &device, size_t slots, size_t slot_bytes)
            : device_(device), slots_(slots, std::vector<std::byte>(slot_bytes)) {}
        std::span<std::byte> wait(size_t slot) override { return slots_.at(slot); }
        void                 send(size_t slot, void *to, size_t bytes, size_t from) override {
            send_pinned(slot, to, slots_[slot].data() + from, bytes);
        }
        void send_pinned(size_t, void *to, const std::byte *from, size_t bytes) override {
            std::memcpy(device_.behind(to), from, bytes);
        }
        bool arrived(size_t) override { return true; }
        void follow_ops() override {}
        void precede_ops() override {}
        void finish() override {}

    private:
        ApartDevice                        &device_;
        std::vector<std::vector<std::byte>> slots_;
    };

    void *open_window(std::byte *memory, size_t bytes) {
        void *const address = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        windows_[reinterpret_cast<uintptr_t>(address)] = {memory, bytes};
        return address;
    }
    void close_window(void *address, size_t bytes) {
        windows_.erase(reinterpret_cast<uintptr_t>(address));
        ::munmap(address, bytes);
    }
    void release(void *data, size_t bytes) noexcept override {
        ::operator delete(behind(data), std::align_val_t(256));
        close_window(data, bytes);
        free_bytes += bytes;
        lent_bytes -= bytes;
    }

    std::map<uintptr_t, Window> windows_;
};

class ApartOps : public backend::Ops {
public:
    ApartOps(ApartDevice &device, std::unique_ptr<backend::Ops> real) : device_(device), real_(std::move(real)) {}

    void embed(const backend::EmbedArgs &args) override {
        const auto first = args.tokens.data() - step_.tokens.data();
        issue(&Ops::embed, args, [first](backend::EmbedArgs &now, const backend::Step &step) {
            now.tokens = step.tokens.subspan(static_cast<size_t>(first), now.tokens.size());
        });
    }
    void hc_pre(const backend::HcPreArgs &args) override { issue(&Ops::hc_pre, args); }
    void hc_post(const backend::HcPostArgs &args) override { issue(&Ops::hc_post, args); }
    void hc_head(const backend::HcHeadArgs &args) override { issue(&Ops::hc_head, args); }
    void project(const backend::ProjectArgs &args) override {
        /* The list of projections need not outlive the call. */
        using List = std::vector<backend::Projection>;
        const auto owned = std::make_shared<List>(args.projections.begin(), args.projections.end());
        issue(&Ops::project, args, [owned](backend::ProjectArgs &now, const backend::Step &) { now.projections = *owned; });
    }
    void grouped_project(const backend::GroupedProjectArgs &args) override { issue(&Ops::grouped_project, args); }
    void rms_norm(const backend::RmsNormArgs &args) override { issue(&Ops::rms_norm, args); }
    void query(const backend::QueryArgs &args) override { issue(&Ops::query, args); }
    void window(const backend::WindowArgs &args) override { issue(&Ops::window, args); }
    void compress(const backend::CompressArgs &args) override { issue(&Ops::compress, args); }
    void indexer_query(const backend::IndexerQueryArgs &args) override { issue(&Ops::indexer_query, args); }
    void indexer_select(const backend::IndexerSelectArgs &args) override { issue(&Ops::indexer_select, args); }
    void attention(const backend::AttentionArgs &args) override { issue(&Ops::attention, args); }
    void route(const backend::RouteArgs &args) override {
        const auto first = args.token_ids - step_.tokens.data();
        issue(&Ops::route, args, [first](backend::RouteArgs &now, const backend::Step &step) {
            now.token_ids = step.tokens.data() + first;
        });
    }
    void experts(const backend::ExpertsArgs &args) override { issue(&Ops::experts, args); }
    void best(const backend::BestArgs &args) override { issue(&Ops::best, args); }
    bool supports(quant::Type type) const override { return real_->supports(type); }

    bool begin_step(const backend::Step &step) override {
        step_ = step;
        in_step_ = true;
        recording_ = nullptr;
        if (step.shape == 0) {
            return false;
        }
        auto [known, is_new] = recorded_.try_emplace(step.shape);
        if (!known->second.empty()) {
            ++replays;
            for (const Job &job : known->second) {
                job(step_);
            }
            return true;
        }
        recording_ = is_new ? nullptr : &known->second;
        return false;
    }
    void end_step() override {
        in_step_ = false;
        recording_ = nullptr;
    }
    void abandon_step() noexcept override {
        if (recording_ != nullptr) {
            recording_->clear();
        }
        in_step_ = false;
        recording_ = nullptr;
    }
    void prepare(const backend::OpsLimits &limits) override { prepared = limits; }
    uint64_t scratch_bytes(const backend::OpsLimits &limits) const override {
        return static_cast<uint64_t>(limits.row_capacity) * 100;
    }

    backend::Matrix arrange(const backend::Matrix &matrix) override {
        backend::Matrix  arranged = matrix;
        std::byte *const rows = device_.behind(const_cast<std::byte *>(matrix.data));
        if (matrix.layout == backend::RowLayout::arranged) {
            throw Failure(DS4_E_INTERNAL, "a matrix was arranged twice");
        }
        for (int64_t row = 0; row < matrix.rows; ++row) {
            std::reverse(rows + row * matrix.row_bytes, rows + (row + 1) * matrix.row_bytes);
        }
        arranged.layout = backend::RowLayout::arranged;
        ++matrices_arranged;
        return arranged;
    }

    uint64_t           replays = 0;
    uint64_t           matrices_arranged = 0;
    backend::OpsLimits prepared;

private:
    using Job = std::function<void(const backend::Step &)>;

    template <typename Args> static void keep(Args &, const backend::Step &) {}

    /* Runs an op now and, when the step is recorded, again in later steps; `renew` puts in what is the step's own. */
    template <typename Args, typename Renew = void (*)(Args &, const backend::Step &)>
    void issue(void (Ops::*op)(const Args &), const Args &args, Renew renew = &keep<Args>) {
        if (!in_step_) {
            throw Failure(DS4_E_INTERNAL, "an op outside a step");
        }
        uint64_t offset = 0;
        if constexpr (requires { args.position; }) {
            offset = args.position - step_.position;
        }
        const Job job = [this, op, args, renew, offset](const backend::Step &step) {
            Args now = args;
            if constexpr (requires { now.position; }) {
                now.position = step.position + offset;
            }
            renew(now, step);
            matrices_.clear();
            restored_.clear();
            translate(now);
            (real_.get()->*op)(now);
        };
        job(step_);
        if (recording_ != nullptr) {
            recording_->push_back(job);
        }
    }

    template <typename... Pointers> void behind(Pointers *&...pointers) { ((pointers = device_.behind(pointers)), ...); }

    enum class MayBe { file_only, arranged };

    /* A matrix as the real ops know it, alive until the next op. */
    void behind(const backend::Matrix *&matrix, MayBe may_be) {
        if (matrix == nullptr) {
            return;
        }
        backend::Matrix &copy = matrices_.emplace_back(*matrix);
        copy.data = device_.behind(copy.data);
        if (copy.layout == backend::RowLayout::arranged) {
            if (may_be == MayBe::file_only) {
                throw Failure(DS4_E_INTERNAL, "an arranged matrix where only the file's order is known");
            }
            std::vector<std::byte> &rows = restored_.emplace_back(copy.data, copy.data + copy.rows * copy.row_bytes);
            for (auto row = rows.begin(); row != rows.end(); row += copy.row_bytes) {
                std::reverse(row, row + copy.row_bytes);
            }
            copy.data = rows.data();
            copy.layout = backend::RowLayout::file;
        }
        matrix = &copy;
    }

    void translate(backend::EmbedArgs &a) {
        behind(a.embedding, MayBe::file_only);
        behind(a.streams);
    }
    void translate(backend::HcPreArgs &a) {
        behind(a.fn, MayBe::file_only);
        behind(a.streams, a.base, a.scale, a.norm, a.x, a.post, a.comb);
    }
    void translate(backend::HcPostArgs &a) { behind(a.streams, a.y, a.post, a.comb, a.bad_layer); }
    void translate(backend::HcHeadArgs &a) {
        behind(a.fn, MayBe::file_only);
        behind(a.streams, a.base, a.scale, a.norm, a.x);
    }
    void translate(backend::ProjectArgs &a) {
        projections_.assign(a.projections.begin(), a.projections.end());
        for (backend::Projection &projection : projections_) {
            behind(projection.matrix, MayBe::arranged);
            behind(projection.out);
        }
        a.projections = projections_;
        behind(a.x);
    }
    void translate(backend::GroupedProjectArgs &a) {
        behind(a.matrix, MayBe::arranged);
        behind(a.x, a.out);
    }
    void translate(backend::RmsNormArgs &a) { behind(a.x, a.weight, a.out); }
    void translate(backend::QueryArgs &a) { behind(a.q); }
    void translate(backend::WindowArgs &a) { behind(a.kv, a.norm, a.ring); }
    void translate(backend::CompressArgs &a) {
        behind(a.ape, MayBe::file_only);
        behind(a.keys, a.gates, a.key_ring, a.gate_ring, a.norm, a.rows);
    }
    void translate(backend::IndexerQueryArgs &a) { behind(a.q); }
    void translate(backend::IndexerSelectArgs &a) {
        check_rows(a.row_capacity, a.position, a.tokens, a.ratio);
        behind(a.q, a.weights, a.rows, a.selected, a.count, a.scores);
    }
    void translate(backend::AttentionArgs &a) {
        check_rows(a.row_capacity, a.position, a.tokens, a.ratio);
        behind(a.q, a.ring, a.rows, a.selected, a.count, a.sinks, a.out);
    }
    void translate(backend::RouteArgs &a) { behind(a.logits, a.bias, a.hash, a.ids, a.weights); }
    void translate(backend::ExpertsArgs &a) {
        behind(a.x, a.ids, a.weights, a.table, a.out);
        table_.assign(a.table, a.table + a.experts);
        for (backend::ExpertAddress &expert : table_) {
            behind(expert.gate, expert.up, expert.down);
        }
        a.table = table_.data();
        behind(a.shared_gate, MayBe::arranged);
        behind(a.shared_up, MayBe::arranged);
        behind(a.shared_down, MayBe::arranged);
    }
    void translate(backend::BestArgs &a) { behind(a.logits, a.logit, a.id, a.finite); }

    static void check_rows(int64_t capacity, uint64_t position, int64_t tokens, int64_t ratio) {
        const uint64_t end = position + static_cast<uint64_t>(tokens);
        if (ratio != 0 && static_cast<uint64_t>(capacity) < end / static_cast<uint64_t>(ratio)) {
            throw Failure(DS4_E_INTERNAL, "more compressed rows than there is room for");
        }
    }

    ApartDevice                         &device_;
    std::unique_ptr<backend::Ops>        real_;
    backend::Step                        step_{};
    bool                                 in_step_ = false;
    std::map<uint64_t, std::vector<Job>> recorded_;
    std::vector<Job>                    *recording_ = nullptr;

    /* of the present op */
    std::list<backend::Matrix>          matrices_;
    std::list<std::vector<std::byte>>   restored_;
    std::vector<backend::Projection>    projections_;
    std::vector<backend::ExpertAddress> table_;
};

} // namespace ds4::test
