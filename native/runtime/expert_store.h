/* Where the routed experts are. Each has one entry in a table that kernels follow: its own memory for good, a slot of device
 * memory, pinned host memory, or, only while experts are streamed, nothing.
 *
 * Three ways, which differ only in capacities:
 * - Every expert has an address for good: nothing ever moves.
 * - Every expert has one in host memory, and some have a slot besides. What a step used is learnt after it; hot experts move
 *   into slots behind the next steps, and kernels see them there as soon as they have arrived.
 * - An expert may be absent. Then the choice of the router is read back, what is missing is fetched while the others are
 *   computed, and the layer goes on.
 *
 * Before anybody has chosen anything, places may be seeded with experts that were wanted in earlier runs of the program.
 *
 * Rules that make this safe: the table changes only between steps, or, where the host has read the router's choice back,
 * between layers; a place is overwritten only when every op that reads it has ended or is waited for by the copy; ops that
 * follow an expert's address are called only after all its bytes have arrived, and never when one of them did not. */
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/device.h"
#include "backend/ops.h"
#include "runtime/expert_places.h"
#include "runtime/expert_table.h"
#include "runtime/fetch_queue.h"
#include "runtime/telemetry.h"
#include "runtime/upload.h"

namespace ds4::runtime {

/* One of the three matrices of all experts of a layer, expert after expert. */
struct ExpertMatrix {
    const FileReader *source;
    uint64_t          offset;  /* of the first expert in the file */
    uint64_t          bytes;   /* of one expert */
    const std::byte  *address; /* of the first expert for kernels, where all have one for good; else nullptr */
    const std::byte  *host;    /* the same for the host, when it lies in pinned host memory; else nullptr */
};

/* Gate, up, down. */
using ExpertLayer = std::array<ExpertMatrix, 3>;

struct ExpertPlan {
    uint64_t          slot_bytes = 0;    /* device memory for experts that stay */
    uint64_t          transit_bytes = 0; /* device memory for experts that are used once */
    uint64_t          host_bytes = 0;    /* pinned host memory for experts that have no slot */
    ReplacementPolicy policy = ReplacementPolicy::lru;
};

/* An expert by its layer, counted from the first of the slice, and its number there. */
struct ExpertId {
    uint32_t layer;
    uint32_t expert;
};

/* How much an expert was wanted. */
struct ExpertUse {
    ExpertId id;
    bool     is_kept; /* it has a slot, or a place in pinned host memory */
    uint64_t uses;    /* evaluations that wanted it */
};

class ExpertStore {
public:
    /* `queue` may be nullptr when every expert has an address. `used`: experts of one token.
     * Throws Failure(DS4_E_ARGUMENT) when the memory is less than one token's experts need, DS4_E_NO_MEMORY, DS4_E_DEVICE. */
    ExpertStore(backend::Device &device, FetchQueue *queue, std::span<const ExpertLayer> layers, size_t experts, size_t used,
                const ExpertPlan &plan, Telemetry &telemetry);
    ~ExpertStore();

    /* ---- seeding (expert_seed.cpp) --------------------------------------------------------------------- */

    /* Fills slots with experts of every layer alike, when all have an address: so that the first steps need not teach what
     * cannot be known better. Throws as seed(). */
    void fill_slots(const UploadOptions &options);
    /* Reads experts into free slots, then into free places of host memory, the first of `wanted` first; those for which none
     * is free are left out, and nobody is evicted. The first one will be given up last. Where all have an address, slots that
     * are still free then are filled with experts of every layer alike. Returns how many of `wanted` got a place.
     * Throws Failure(DS4_E_ARGUMENT) for an expert that does not exist; DS4_E_IO, DS4_E_CANCELLED or DS4_E_DEVICE: then what
     * had arrived stays, and nothing else is changed. */
    size_t seed(std::span<const ExpertId> wanted, const UploadOptions &options);
    /* Those that have a place in the order of their value, then the others that were wanted, the most wanted first. */
    std::vector<ExpertUse> uses() const;

    /* Whether experts may be absent: then runs are needed. */
    bool streams() const { return streams_; }
    /* Whether it wants to know what a step chose. */
    bool learns() const { return learns_; }

    /* Entries of a layer, for ops of steps that need no runs. */
    const backend::ExpertAddress *table(size_t layer) const { return table_.layer(layer); }

    /* Around every step. Takes in what has arrived since the last one. */
    void begin_step();
    /* `ids`: [layers][tokens][used], what the step chose. Without runs this is all that is learnt of it. */
    void end_step(std::span<const int32_t> ids, size_t tokens);

    /* ---- foresight (expert_foresight.cpp) ---------------------------------------------------------------- */

    /* After begin_step, when it is known already what a step of few tokens will choose in its first layers: `ids`:
     * [layers][tokens][used]. Starts fetching what is missing, as far as no expert that the last step used would have to go. */
    void foresee(std::span<const std::vector<int32_t>> ids, size_t tokens);
    /* Whether all of them are somewhere or on their way. Then begin_run may be called before the earlier ops have ended. */
    bool has_all(size_t layer, std::span<const int32_t> ids) const;

    /* ---- runs: some tokens of a batch in one layer (expert_runs.cpp) ------------------------------------- */

    struct Run {
        size_t tokens;                         /* so many of the first tokens can be computed now */
        const backend::ExpertAddress *present; /* [experts] those that are here already; nullptr: all that are needed */
    };
    /* `ids`: [tokens][used] of the rest of a batch of `batch` tokens. They were read back, so every earlier op but those of
     * earlier runs of this layer has ended; or has_all() says that nobody needs to give way for them. Starts fetching what is
     * missing. Throws as complete_run. After a failure anywhere in the step the next begin_step() puts everything in order. */
    Run  begin_run(size_t layer, std::span<const int32_t> ids, size_t batch);
    /* Waits for it; then table(layer) has all of them. Throws the failure of a read or of the device; what was fetched is
     * forgotten then, everything else stays. */
    void complete_run();
    /* After the ops of the run were called. */
    void end_run();

private:
    /* Only the last tokens of a batch say something about the next ones. */
    static constexpr size_t kTellingTokens = 8;

    enum class Where : uint8_t { absent, own, slot, host, transit };

    struct Unit {
        Where    where = Where::absent;
        uint32_t place = 0;
        bool     arriving = false;
        bool     promoting = false; /* on its way into a slot; kernels find it where it was */
        uint64_t token = 0; /* of the last use, from 1; 0: none */
        uint64_t uses = 0;  /* evaluations that wanted it */
    };

    /* Layers whose experts have the same size. */
    struct SizeClass {
        ExpertLayout layout;
        size_t       layers;
        ExpertPlaces slots;
    };

    struct Seed {
        size_t unit;
        Where  where;
    };

    /* Experts on their way. */
    struct Pending {
        FetchQueue::Ticket  ticket = 0; /* 0: none are */
        std::vector<size_t> units;
    };

    struct Promotion {
        size_t unit;
        size_t slot;
        size_t lane; /* of the ring */
    };

    size_t       unit_of(size_t layer, int32_t expert) const { return layer * experts_ + static_cast<size_t>(expert); }
    size_t       layer_of(size_t unit) const { return unit / experts_; }
    SizeClass   &class_of(size_t layer) { return classes_[class_of_layer_[layer]]; }
    ExpertPlaces &places_of(Where where, size_t layer);
    const std::byte *bytes_of(size_t unit, size_t part);

    void sort_into_classes(uint64_t slot_bytes, ReplacementPolicy policy);
    void show(size_t unit);
    void use(size_t unit, bool may_promote);
    void count_places();

    void   place_missing(size_t unit, bool may_evict);
    void   expect(size_t unit);
    bool   place_foreseen(size_t unit, bool may_evict);
    bool   evict_old_for(size_t unit, ExpertPlaces &places, Where where);
    void   foresee_layer(size_t layer, std::span<const int32_t> ids, bool may_evict);
    bool   evict_for(size_t unit, ExpertPlaces &places, Where where);
    void   put(size_t unit, Where where, size_t place);
    void   forget(size_t unit);
    void   fetch(size_t unit, std::vector<Fetch> &fetches);
    size_t tokens_that_fit(size_t layer, std::span<const int32_t> ids, bool may_evict);
    void   give_up_transit();
    void   fetch_next_layer(size_t layer);
    void   keep_telling();
    void   show_arrived(size_t unit);
    void   land(Pending &pending);
    void   settle() noexcept;

    uint64_t          unit_bytes(size_t unit) const;
    std::vector<Seed> choose_seeds(std::span<const ExpertId> wanted) const;
    void              take_places(std::span<const Seed> seeds);
    void              keep_in_order(std::span<const Seed> seeds);
    void              read_seeds(std::span<const Seed> seeds);
    void              upload_seeds(std::span<const Seed> seeds, const UploadOptions &options);

    void promote(size_t unit);
    void finish_promotions();

    backend::Device         &device_;
    FetchQueue              *queue_;
    std::vector<ExpertLayer> layers_;
    size_t                   experts_;
    size_t                   used_;
    Telemetry               &telemetry_;
    bool                     streams_ = false;
    bool                     learns_ = false;

    ExpertTable            table_;
    std::vector<SizeClass> classes_;
    std::vector<size_t>    class_of_layer_;
    std::vector<Unit>      units_; /* [layers][experts] */
    ExpertPlaces           host_;
    ExpertPlaces           transit_[2]; /* even and odd layers; one only when there is no room for two */
    bool                   reads_ahead_ = false;

    uint64_t token_ = 1;      /* tokens evaluated so far */
    uint64_t last_token_ = 1; /* what that was for the last step */
    uint64_t run_ = 1;

    /* The present run. */
    size_t                    run_layer_ = 0;
    bool                      run_is_last_ = false; /* of its layer */
    std::vector<size_t>       transit_units_;       /* of the present layer, since its first run */
    std::vector<size_t>       run_telling_;         /* of those, chosen by the last tokens of a batch */
    Pending                   missing_;
    bool                      waits_for_ahead_ = false;
    bool                      reads_next_ = false; /* the next layer, once this one is complete */

    Pending              ahead_;    /* the layer that is read ahead */
    std::vector<Pending> foreseen_; /* of the present step, by layer */

    std::unique_ptr<backend::UploadRing> lanes_; /* of promotions */
    std::vector<Promotion>               promotions_;
    std::vector<size_t>                  free_lanes_;
};

} // namespace ds4::runtime
