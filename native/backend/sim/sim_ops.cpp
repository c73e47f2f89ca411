#include "backend/sim/sim_ops.h"

#include <algorithm>
#include <set>
#include <string>

#include "failure.h"

namespace ds4::backend::sim {

namespace {

/* Rows that are complete at the end of a batch. */
int64_t rows_at_end(uint64_t position, int64_t tokens, int64_t ratio) {
    return static_cast<int64_t>((position + static_cast<uint64_t>(tokens)) / static_cast<uint64_t>(ratio));
}

void check_capacity(const Translation &to, int64_t visible, int64_t capacity) {
    if (visible > capacity) {
        to.fail("rows", "has room for " + std::to_string(capacity) + " rows and is to hold " + std::to_string(visible));
    }
}

} // namespace

Translation SimOps::start(const char *op) const {
    if (begun_) {
        throw Failure(DS4_E_DEVICE, std::string("the simulated GPU cannot run ") + op +
                                        ": begin_experts came before, and experts must come next");
    }
    return {device_, op};
}

void SimOps::embed(const EmbedArgs &given) {
    Translation  to = start("embed");
    EmbedArgs    args = given;
    const auto   tokens = static_cast<int64_t>(args.tokens.size());
    to.host("tokens", args.tokens.data());
    const std::set<int32_t> rows(args.tokens.begin(), args.tokens.end());
    if (!rows.empty() && (*rows.begin() < 0 || *rows.rbegin() >= args.embedding->rows)) {
        to.fail("tokens", "has ids beyond the rows of the embedding");
    }
    to.writes("streams", args.streams, tokens * args.hc * args.embedding->columns);
    to.matrix("embedding", args.embedding, static_cast<int64_t>(rows.size()));
    to.enter();
    real_->embed(args);
}

void SimOps::hc_pre(const HcPreArgs &given) {
    Translation   to = start("hc_pre");
    HcPreArgs     args = given;
    const int64_t mixes = 2 * args.hc + args.hc * args.hc;
    to.reads("streams", args.streams, args.tokens * args.hc * args.width);
    to.whole_matrix("fn", args.fn);
    to.reads("base", args.base, mixes);
    to.reads("scale", args.scale, 3);
    to.reads("norm", args.norm, args.width);
    to.writes("x", args.x, args.tokens * args.width);
    to.writes("post", args.post, args.tokens * args.hc);
    to.writes("comb", args.comb, args.tokens * args.hc * args.hc);
    to.enter();
    real_->hc_pre(args);
}

void SimOps::hc_post(const HcPostArgs &given) {
    Translation to = start("hc_post");
    HcPostArgs  args = given;
    to.writes("streams", args.streams, args.tokens * args.hc * args.width);
    to.reads("y", args.y, args.tokens * args.width);
    to.reads("post", args.post, args.tokens * args.hc);
    to.reads("comb", args.comb, args.tokens * args.hc * args.hc);
    to.may_write("bad_layer", args.bad_layer, 1);
    to.enter();
    real_->hc_post(args);
}

void SimOps::hc_head(const HcHeadArgs &given) {
    Translation to = start("hc_head");
    HcHeadArgs  args = given;
    to.reads("streams", args.streams, args.tokens * args.hc * args.width);
    to.whole_matrix("fn", args.fn);
    to.reads("base", args.base, args.hc);
    to.reads("scale", args.scale, 1);
    to.reads("norm", args.norm, args.width);
    to.writes("x", args.x, args.tokens * args.width);
    to.enter();
    real_->hc_head(args);
}

void SimOps::project(const ProjectArgs &given) {
    Translation to = start("project");
    ProjectArgs args = given;
    int64_t     columns = 0;
    projections_.assign(args.projections.begin(), args.projections.end());
    for (Projection &projection : projections_) {
        columns = std::max(columns, projection.matrix->columns);
        to.writes("out", projection.out, args.tokens * projection.matrix->rows);
        to.whole_matrix("matrix", projection.matrix);
    }
    args.projections = projections_;
    to.reads("x", args.x, args.tokens * columns);
    to.enter();
    real_->project(args);
}

void SimOps::grouped_project(const GroupedProjectArgs &given) {
    Translation        to = start("grouped_project");
    GroupedProjectArgs args = given;
    to.reads("x", args.x, args.tokens * args.groups * args.matrix->columns);
    to.writes("out", args.out, args.tokens * args.matrix->rows);
    to.whole_matrix("matrix", args.matrix);
    to.enter();
    real_->grouped_project(args);
}

void SimOps::rms_norm(const RmsNormArgs &given) {
    Translation to = start("rms_norm");
    RmsNormArgs args = given;
    to.reads("x", args.x, args.rows * args.width);
    to.reads("weight", args.weight, args.width);
    to.writes("out", args.out, args.rows * args.width);
    to.enter();
    real_->rms_norm(args);
}

void SimOps::query(const QueryArgs &given) {
    Translation to = start("query");
    QueryArgs   args = given;
    to.host("rope", args.rope.frequency);
    to.writes("q", args.q, args.tokens * args.heads * args.dim);
    to.enter();
    real_->query(args);
}

void SimOps::window(const WindowArgs &given) {
    Translation to = start("window");
    WindowArgs  args = given;
    to.host("rope", args.rope.frequency);
    to.reads("kv", args.kv, args.tokens * args.dim);
    to.reads("norm", args.norm, args.dim);
    to.writes("ring", args.ring, args.ring_rows * args.dim);
    to.enter();
    real_->window(args);
}

void SimOps::compress(const CompressArgs &given) {
    Translation   to = start("compress");
    CompressArgs  args = given;
    const int64_t width = args.halves * args.dim;
    const int64_t first = rows_at_end(args.position, 0, args.ratio);
    const int64_t end = rows_at_end(args.position, args.tokens, args.ratio);
    to.host("rope", args.rope.frequency);
    to.reads("keys", args.keys, args.tokens * width);
    to.reads("gates", args.gates, args.tokens * width);
    to.matrix("ape", args.ape, std::min(args.tokens, args.ratio));
    to.writes("key_ring", args.key_ring, args.ring_rows * width);
    to.writes("gate_ring", args.gate_ring, args.ring_rows * width);
    to.reads("norm", args.norm, args.dim);
    to.writes("rows", args.rows, first < end ? end * args.dim : 0);
    to.enter();
    real_->compress(args);
}

void SimOps::indexer_query(const IndexerQueryArgs &given) {
    Translation      to = start("indexer_query");
    IndexerQueryArgs args = given;
    to.host("rope", args.rope.frequency);
    to.writes("q", args.q, args.tokens * args.heads * args.dim);
    to.enter();
    real_->indexer_query(args);
}

void SimOps::indexer_select(const IndexerSelectArgs &given) {
    Translation       to = start("indexer_select");
    IndexerSelectArgs args = given;
    const int64_t     visible = rows_at_end(args.position, args.tokens, args.ratio);
    check_capacity(to, visible, args.row_capacity);
    to.reads("q", args.q, args.tokens * args.heads * args.dim);
    to.reads("weights", args.weights, args.tokens * args.heads);
    to.reads("rows", args.rows, visible * args.dim);
    to.writes("selected", args.selected, args.tokens * args.top_k);
    to.writes("count", args.count, args.tokens);
    to.may_write("scores", args.scores, (args.tokens - 1) * args.scores_stride + visible);
    to.enter();
    real_->indexer_select(args);
}

void SimOps::attention(const AttentionArgs &given) {
    Translation   to = start("attention");
    AttentionArgs args = given;
    const int64_t visible = args.ratio == 0 ? 0 : rows_at_end(args.position, args.tokens, args.ratio);
    check_capacity(to, visible, args.ratio == 0 ? 0 : args.row_capacity);
    to.host("rope", args.rope.frequency);
    to.reads("q", args.q, args.tokens * args.heads * args.dim);
    to.reads("ring", args.ring, args.ring_rows * args.dim);
    to.reads("rows", args.rows, visible * args.dim);
    to.reads("sinks", args.sinks, args.heads);
    to.writes("out", args.out, args.tokens * args.heads * args.dim);
    if (args.selected != nullptr) {
        to.reads("selected", args.selected, args.tokens * args.top_k);
        to.reads("count", args.count, args.tokens);
        for (int64_t t = 0; t < args.tokens; ++t) {
            const int32_t *const first = args.selected + t * args.top_k;
            if (args.count[t] < 0 || args.count[t] > args.top_k ||
                std::any_of(first, first + args.count[t], [&](int32_t row) { return row < 0 || row >= visible; })) {
                to.fail("selected", "names rows that the query of token " + std::to_string(t) + " cannot see");
            }
        }
    }
    to.enter();
    real_->attention(args);
}

void SimOps::route(const RouteArgs &given) {
    Translation to = start("route");
    RouteArgs   args = given;
    to.host("token_ids", args.token_ids);
    to.reads("logits", args.logits, args.tokens * args.experts);
    if (args.hash != nullptr) {
        const int32_t last = *std::max_element(args.token_ids, args.token_ids + args.tokens);
        to.reads("hash", args.hash, (int64_t{last} + 1) * args.used);
    }
    to.may_read("bias", args.bias, args.experts);
    to.writes("ids", args.ids, args.tokens * args.used);
    to.writes("weights", args.weights, args.tokens * args.used);
    to.enter();
    real_->route(args);
}

void SimOps::best(const BestArgs &given) {
    Translation to = start("best");
    BestArgs    args = given;
    to.reads("logits", args.logits, args.vocab);
    to.writes("logit", args.logit, args.count);
    to.writes("id", args.id, args.count);
    to.writes("finite", args.finite, 1);
    to.enter();
    real_->best(args);
}

Matrix SimOps::arrange(const Matrix &given) {
    Translation   to = start("arrange");
    const Matrix *matrix = &given;
    to.whole_matrix("matrix", matrix);
    device_.own_memory(given.data, static_cast<size_t>(given.rows * given.row_bytes), "arrange a matrix");
    return given;
}

bool SimOps::begin_step(const Step &) {
    begun_.reset();
    return false;
}

void SimOps::end_step() {
    begun_.reset();
    real_->end_step();
}

void SimOps::abandon_step() noexcept {
    begun_.reset();
    real_->abandon_step();
}

void SimOps::pace() {
    device_.check(DS4_SIM_CALL_WAIT, "wait for the device");
    real_->pace();
}

} // namespace ds4::backend::sim
