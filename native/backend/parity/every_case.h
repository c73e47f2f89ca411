/* All shapes of all operations. */
#pragma once

#include "backend/parity/attention.h"
#include "backend/parity/best.h"
#include "backend/parity/compress.h"
#include "backend/parity/embed.h"
#include "backend/parity/experts.h"
#include "backend/parity/hyper_connection.h"
#include "backend/parity/indexer.h"
#include "backend/parity/norms.h"
#include "backend/parity/project.h"
#include "backend/parity/route.h"

namespace ds4::backend::parity {

/* Calls visit(name, run) for each shape of each operation; run(Backend &) is everything that the operation writes for the
 * whole batch. Inputs are made for one case at a time. */
template <typename Visit> void for_each_case(Visit visit) {
    const auto each_type = [&](const auto &shapes, auto run) {
        for (const auto &shape : shapes) {
            for (const quant::Type type : shape.types) {
                run(shape, type);
            }
        }
    };
    const auto visit_batch = [&](const std::string &name, int64_t tokens, const auto &one) {
        visit(name, [&](Backend &backend) { return one.run(backend, tokens); });
    };
    const auto visit_parts = [&](const std::string &name, int64_t tokens, const auto &one) {
        visit(name, [&](Backend &backend) { return one.run(backend, tokens).all(); });
    };

    each_type(kEmbedShapes, [&](const EmbedShape &shape, quant::Type type) {
        visit_batch(shape.name(type), static_cast<int64_t>(shape.tokens.size()), EmbedCase(shape, type));
    });
    each_type(kStreamsShapes, [&](const StreamsShape &shape, quant::Type type) {
        const HcPreCase one(shape, type);
        visit_parts(one.name(), shape.tokens, one);
    });
    for (const StreamsShape &shape : kStreamsShapes) {
        visit_batch(shape.name("hc_post"), shape.tokens, HcPostCase(shape));
    }
    each_type(kStreamsShapes, [&](const StreamsShape &shape, quant::Type type) {
        const HcHeadCase one(shape, type);
        visit_batch(one.name(), shape.tokens, one);
    });
    each_type(kProjectShapes, [&](const ProjectShape &shape, quant::Type type) {
        visit_batch(shape.name(type), shape.tokens, ProjectCase(shape, type));
    });
    for (const ProjectTogetherShape &shape : kProjectTogetherShapes) {
        visit_batch(shape.name(), shape.tokens, ProjectTogetherCase(shape));
    }
    each_type(kGroupedProjectShapes, [&](const GroupedProjectShape &shape, quant::Type type) {
        visit_batch(shape.name(type), shape.tokens, GroupedProjectCase(shape, type));
    });
    for (const RmsNormShape &shape : kRmsNormShapes) {
        visit_batch(shape.name(), shape.rows, RmsNormCase(shape));
    }
    for (const QueryShape &shape : kQueryShapes) {
        visit_batch(shape.name(), shape.tokens, QueryCase(shape));
    }
    for (const WindowShape &shape : kWindowShapes) {
        for (const bool rounded : {false, true}) {
            const WindowCase one(shape, rounded);
            visit_batch(one.name(), shape.tokens, one);
        }
    }
    each_type(kCompressShapes, [&](const CompressShape &shape, quant::Type type) {
        visit_batch(shape.name(type), shape.tokens, CompressCase(shape, type));
    });
    for (const IndexerQueryShape &shape : kIndexerQueryShapes) {
        for (const bool rounded : {false, true}) {
            const IndexerQueryCase one(shape, rounded);
            visit_batch(one.name(), shape.tokens, one);
        }
    }
    for (const IndexerSelectShape &shape : kIndexerSelectShapes) {
        visit_parts(shape.name(), shape.tokens, indexer_select_case(shape));
    }
    for (const AttentionShape &shape : kAttentionShapes) {
        visit_batch(shape.name(), shape.tokens, AttentionCase(shape));
    }
    for (const RouteShape &shape : kRouteShapes) {
        for (const bool normalise : {false, true}) {
            visit_parts(shape.name(), shape.tokens, route_case(shape, normalise));
        }
    }
    for (const ExpertsShape &shape : experts_shapes()) {
        visit_batch(shape.name(), shape.tokens, ExpertsCase(shape));
    }
    for (const ExpertsShape &shape : begin_experts_shapes()) {
        const ExpertsCase one(shape);
        for (const Missing missing : kMissing) {
            visit("begin_" + shape.name() + kMissingNames[static_cast<int>(missing)],
                  [&](Backend &backend) { return PlacedExperts(backend, one, Layout::file).run_split(missing); });
        }
    }
    for (const BestShape &shape : kBestShapes) {
        const BestCase one(shape);
        visit(shape.name(), [&](Backend &backend) { return one.run(backend).all(); });
    }
}

} // namespace ds4::backend::parity
