/* Routed experts by name: who should have a place, and who has one. */
#include <algorithm>
#include <vector>

#include "abi/guard.h"
#include "abi/handles.h"
#include "abi/sized_struct.h"

ds4_status ds4_seed_experts(ds4_model *model, const ds4_expert *experts, uint32_t count, uint32_t *seeded,
                            ds4_error *error) {
    using namespace ds4;
    return abi::guarded(error, [&] {
        if (model == nullptr || seeded == nullptr) {
            throw Failure(DS4_E_ARGUMENT, "model or seeded is NULL");
        }
        *seeded = 0;
        std::vector<runtime::ExpertId> wanted;
        for (const ds4_expert &expert : abi::read_structs(experts, count, "ds4_expert")) {
            wanted.push_back({expert.layer, expert.expert});
        }
        model->loaded->thread.run(
            [&] { *seeded = static_cast<uint32_t>(model->loaded->model->seed_experts(wanted)); });
    });
}

ds4_status ds4_list_experts(ds4_model *model, ds4_expert *experts, uint32_t capacity, uint32_t *count,
                            ds4_error *error) {
    using namespace ds4;
    return abi::guarded(error, [&] {
        if (model == nullptr || count == nullptr || (experts == nullptr && capacity > 0)) {
            throw Failure(DS4_E_ARGUMENT, "model, experts or count is NULL");
        }
        std::vector<runtime::ExpertUse> uses;
        model->loaded->thread.run([&] { uses = model->loaded->model->expert_uses(); });
        for (size_t i = 0; i < std::min<size_t>(capacity, uses.size()); ++i) {
            ds4_expert filled{};
            filled.layer = uses[i].id.layer;
            filled.expert = uses[i].id.expert;
            filled.is_kept = uses[i].is_kept ? 1 : 0;
            filled.uses = uses[i].uses;
            abi::write_struct(&experts[i], filled, "ds4_expert");
        }
        *count = static_cast<uint32_t>(uses.size());
    });
}
