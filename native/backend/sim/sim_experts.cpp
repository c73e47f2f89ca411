/* The experts of a batch: where each of them is stands in a table in device memory, whose entries are device addresses. */
#include <string>

#include "backend/sim/sim_ops.h"

namespace ds4::backend::sim {

namespace {

int64_t matrix_bytes(quant::Type type, int64_t rows, int64_t columns) {
    const quant::BlockLayout layout = quant::block_layout(type);
    return rows * (columns / layout.values * layout.bytes);
}

std::string name_of(int64_t expert) {
    return "expert " + std::to_string(expert);
}

} // namespace

void SimOps::translate_experts(Translation &to, ExpertsArgs &args) {
    const int64_t routed = args.tokens * args.used;
    to.reads("x", args.x, args.tokens * args.width);
    to.reads("ids", args.ids, routed);
    to.reads("weights", args.weights, routed);
    /* What was begun has been counted then. */
    const auto shared = [&](const char *name, const Matrix *&matrix) {
        if (matrix != nullptr) {
            to.matrix(name, matrix, begun_ ? 0 : matrix->rows);
        }
    };
    shared("shared_gate", args.shared_gate);
    shared("shared_up", args.shared_up);
    shared("shared_down", args.shared_down);
    to.writes("out", args.out, args.tokens * args.width);
    chosen_.assign(static_cast<size_t>(args.experts), false);
    for (int64_t i = 0; i < routed; ++i) {
        if (args.ids[i] < 0 || args.ids[i] >= args.experts) {
            to.fail("ids", "names " + name_of(args.ids[i]) + " of " + std::to_string(args.experts));
        }
        chosen_[static_cast<size_t>(args.ids[i])] = true;
    }
}

void SimOps::translate_table(Translation &to, const char *name, const ExpertsArgs &args, const ExpertAddress *&table,
                             std::vector<ExpertAddress> &copy, Missing missing) {
    const auto gate_up = matrix_bytes(args.gate_up_type, args.expert_width, args.width);
    const auto down = matrix_bytes(args.down_type, args.width, args.expert_width);
    to.reads(name, table, args.experts);
    copy.assign(static_cast<size_t>(args.experts), {});
    for (int64_t expert = 0; expert < args.experts; ++expert) {
        if (!chosen_[static_cast<size_t>(expert)]) {
            continue;
        }
        ExpertAddress &address = copy[static_cast<size_t>(expert)] = table[expert];
        const bool     none = address.gate == nullptr && address.up == nullptr && address.down == nullptr;
        if (none && missing == Missing::stays_null) {
            continue;
        }
        if (address.gate == nullptr || address.up == nullptr || address.down == nullptr) {
            to.fail(name, "has no address for " + name_of(expert) + (none ? ", which was chosen" : "'s matrices, only for some"));
        }
        const bool counts = !begun_ || !begun_->present[static_cast<size_t>(expert)];
        to.bytes(("gate of " + name_of(expert)).c_str(), address.gate, gate_up, counts ? gate_up : 0);
        to.bytes(("up of " + name_of(expert)).c_str(), address.up, gate_up, counts ? gate_up : 0);
        to.bytes(("down of " + name_of(expert)).c_str(), address.down, down, counts ? down : 0);
    }
    table = copy.data();
}

/* That what was begun is what is being ended. */
void SimOps::check_begun(Translation &to, const ExpertsArgs &args) const {
    const ExpertsArgs &before = begun_->args;
    if (args.begun != before.table) {
        to.fail("begun", "is not the table that begin_experts was given");
    }
    if (args.tokens != before.tokens || args.x != before.x || args.ids != before.ids || args.weights != before.weights ||
        args.out != before.out) {
        to.fail("begun", "belongs to a batch with other arguments");
    }
}

bool SimOps::begin_experts(const ExpertsArgs &given) {
    Translation to = start("begin_experts");
    ExpertsArgs args = given;
    translate_experts(to, args);
    translate_table(to, "table", args, args.table, table_, Missing::stays_null);
    if (!real_->begin_experts(args)) {
        return false;
    }
    to.enter();
    begun_ = {given, {}};
    for (const ExpertAddress &address : table_) {
        begun_->present.push_back(address.gate != nullptr);
    }
    return true;
}

void SimOps::experts(const ExpertsArgs &given) {
    Translation to(device_, "experts");
    ExpertsArgs args = given;
    if (begun_) {
        check_begun(to, args);
    } else if (args.begun != nullptr) {
        to.fail("begun", "is given, but begin_experts was not called before");
    }
    translate_experts(to, args);
    translate_table(to, "table", args, args.table, table_, Missing::fails);
    if (begun_) {
        to.reads("begun", args.begun, args.experts);
        begun_table_.assign(args.begun, args.begun + args.experts);
        for (size_t expert = 0; expert < begun_table_.size(); ++expert) {
            if (chosen_[expert] && (begun_table_[expert].gate != nullptr) != begun_->present[expert]) {
                to.fail("begun", "has changed since begin_experts, for " + name_of(static_cast<int64_t>(expert)));
            }
        }
        args.begun = begun_table_.data();
    }
    begun_.reset();
    to.enter();
    real_->experts(args);
}

} // namespace ds4::backend::sim
