#include "runtime/kv_cache.h"

#include <limits>

#include "check.h"
#include "runtime/checkpoints.h"
#include "runtime/failure_test.h"
#include "runtime/host_device_test.h"

using namespace ds4;
using namespace ds4::runtime;

namespace {

constexpr uint64_t kWidth = 4;

KvShape shape_of(uint64_t context, uint64_t chunk) {
    KvShape shape;
    shape.context = context;
    shape.prefill_chunk = chunk;
    shape.layers.push_back({.row_width = kWidth, .window = 8, .ratio = 0, .halves = 1, .indexer_width = 0});
    shape.layers.push_back({.row_width = kWidth, .window = 8, .ratio = 4, .halves = 2, .indexer_width = 2});
    shape.layers.push_back({.row_width = kWidth, .window = 8, .ratio = 32, .halves = 1, .indexer_width = 0});
    return shape;
}

/* What a layer would put at a position on a timeline. */
float mark(uint64_t position, uint64_t timeline) { return static_cast<float>(position + 10000 * timeline); }

/* Plays kernels: writes marks into every ring for positions [first, end). */
void write_marks(const KvCache &cache, uint64_t first, uint64_t end, uint64_t timeline) {
    cache.for_each_tail(0, [&](const Ring &ring, uint64_t, uint64_t, uint64_t) {
        for (uint64_t position = first; position < end; ++position) {
            std::fill_n(ring.row(position), ring.width, mark(position, timeline));
        }
    });
}

void evaluate(KvCache &cache, uint64_t tokens, uint64_t timeline) {
    cache.begin_write(tokens);
    write_marks(cache, cache.position(), cache.position() + tokens, timeline);
    cache.advance(tokens);
}

/* Whether every row that the present position needs is there. */
bool intact(const KvCache &cache, uint64_t timeline) {
    bool good = true;
    cache.for_each_tail(cache.position(), [&](const Ring &ring, uint64_t history, uint64_t first, uint64_t end) {
        good = good && end - first <= history;
        for (uint64_t position = first; position < end; ++position) {
            for (uint64_t i = 0; i < ring.width; ++i) {
                good = good && ring.row(position)[i] == mark(position, timeline);
            }
        }
    });
    return good;
}

} // namespace

TEST(a_failed_batch_and_then_going_back_a_whole_chunk_finds_every_row) {
    test::HostDevice device;
    for (const uint64_t chunk : {1, 3, 16, 40}) {
        KvCache cache(device, shape_of(1000, chunk));
        while (cache.position() + chunk <= 400) {
            evaluate(cache, chunk, 0);
        }
        const uint64_t stood = cache.position();
        cache.begin_write(chunk);
        write_marks(cache, stood, stood + chunk, 1); /* fails after all layers have written */

        CHECK(intact(cache, 0));
        CHECK(cache.reaches(stood - chunk));
        cache.go_back(stood - chunk);
        CHECK(intact(cache, 0));
    }
}

TEST(reach_is_never_claimed_for_overwritten_rows) {
    test::HostDevice device;
    KvCache          cache(device, shape_of(1000, 16));
    for (const uint64_t tokens : {16, 1, 5, 16, 16, 3, 16, 16, 16, 16, 16, 2}) {
        evaluate(cache, tokens, 0);
    }
    const uint64_t end = cache.position();
    uint64_t       reached = 0;
    for (uint64_t position = 0; position <= end; ++position) {
        if (position == 0 || !cache.reaches(position)) {
            continue;
        }
        cache.go_back(position);
        CHECK(intact(cache, 0));
        cache.go_back(end);
        ++reached;
    }

    CHECK(reached >= 17); /* the chunk before the present position, and that itself */
    CHECK(reached < end);
}

TEST(a_cache_as_long_as_its_context_reaches_everything) {
    test::HostDevice device;
    KvCache          cache(device, shape_of(60, 60));
    evaluate(cache, 60, 0);

    for (uint64_t position = 0; position <= 60; ++position) {
        CHECK(cache.reaches(position));
    }
    CHECK(!cache.reaches(61));
}

TEST(a_checkpoint_brings_back_rows_that_were_overwritten) {
    test::HostDevice device;
    for (const uint64_t saved : {1, 7, 33, 38, 64, 100}) {
        KvCache     cache(device, shape_of(1000, 16));
        Checkpoints checkpoints(device, cache, 2);
        while (cache.position() < saved) {
            evaluate(cache, 1, 0);
        }
        checkpoints.save(cache);
        while (cache.position() < 400) {
            evaluate(cache, 16, 0);
        }

        CHECK(!cache.reaches(saved));
        CHECK(checkpoints.latest_at(400) == saved);
        CHECK(checkpoints.latest_at(saved) == saved);
        CHECK(!checkpoints.latest_at(saved - 1).has_value());
        checkpoints.restore(cache, saved);
        CHECK(cache.position() == saved);
        CHECK(intact(cache, 0));
        CHECK(cache.reaches(saved));
        CHECK(saved == 1 || !cache.reaches(saved - 1));
    }
}

TEST(the_oldest_checkpoint_makes_room_and_the_same_position_takes_none) {
    test::HostDevice device;
    KvCache          cache(device, shape_of(1000, 16));
    Checkpoints      checkpoints(device, cache, 2);
    for (int i = 0; i < 3; ++i) {
        evaluate(cache, 10, 0);
        checkpoints.save(cache);
        checkpoints.save(cache);
    }

    CHECK(!checkpoints.latest_at(19).has_value());
    CHECK(checkpoints.latest_at(25) == 20);
    CHECK(checkpoints.latest_at(99) == 30);
    checkpoints.forget_after(20);
    CHECK(checkpoints.latest_at(99) == 20);
}

TEST(the_largest_context_that_fits_is_exact) {
    const KvShape  wanted = shape_of(1u << 30, 16);
    const uint64_t bytes = 1u << 20;

    const uint64_t fits = KvCache::largest_context(wanted, bytes);

    CHECK(KvCache::bytes_for(shape_of(fits, 16)) <= bytes);
    CHECK(KvCache::bytes_for(shape_of(fits + 1, 16)) > bytes);
    CHECK(KvCache::largest_context(wanted, 10) == 0);
}

TEST(a_size_beyond_64_bits_is_a_failure_and_not_a_small_number) {
    KvShape shape = shape_of(std::numeric_limits<uint64_t>::max() / 2, 16);
    shape.layers.assign(64, shape.layers[1]);

    CHECK(test::outcome_of([&] { KvCache::bytes_for(shape); }).status == DS4_E_NO_MEMORY);
    CHECK(KvCache::largest_context(shape, 1u << 20) > 0);
}

TEST(a_cache_gives_back_what_it_took) {
    test::HostDevice device;
    {
        const KvCache     cache(device, shape_of(1000, 16));
        const Checkpoints checkpoints(device, cache, 3);
        CHECK(cache.bytes() == KvCache::bytes_for(cache.shape()));
        CHECK(device.lent_bytes >= cache.bytes() + 3 * Checkpoints::bytes_of_one(cache));
    }
    CHECK(device.lent_bytes == 0);
}
