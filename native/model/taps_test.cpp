#include "model/taps.h"

#include <cstring>
#include <map>
#include <vector>

#include "check.h"
#include "model/tiny_model_test.h"

using namespace ds4;
using test::same_bits;
using test::TinyModel;
using test::tiny_tokens;

namespace {

struct Record {
    ds4_tap_record     head;
    std::vector<float> values;
};

std::vector<Record> parse(std::span<const std::byte> bytes) {
    std::vector<Record> records;
    while (bytes.size() >= sizeof(ds4_tap_record)) {
        Record record{};
        std::memcpy(&record.head, bytes.data(), sizeof(record.head));
        if (record.head.kind == 0) {
            break;
        }
        record.values.resize(record.head.value_count);
        const size_t used = sizeof(record.head) + record.values.size() * sizeof(float);
        if (used > bytes.size()) {
            break;
        }
        if (!record.values.empty()) { /* memcpy takes no null pointer, not even for nothing */
            std::memcpy(record.values.data(), bytes.data() + sizeof(record.head), record.values.size() * sizeof(float));
        }
        records.push_back(record);
        bytes = bytes.subspan((used + 7) / 8 * 8);
    }
    return records;
}

struct Tapped {
    std::vector<Record> records;
    std::vector<float>  logits;
    uint64_t            bytes;
};

Tapped evaluate(uint32_t mask, size_t room) {
    TinyModel                  tiny;
    model::Session             session(tiny.open(), {.context = 100, .prefill_chunk = 50, .checkpoint_count = 0});
    const std::vector<int32_t> tokens = tiny_tokens(50);
    std::vector<std::byte>     buffer(room, std::byte{0xab});
    Tapped                     tapped;
    tapped.logits.resize(test::kTinyVocab);
    model::EvalRequest request{};
    request.tokens = tokens;
    request.logits = tapped.logits.data();
    request.logits_rows = 1;
    request.tap_mask = mask;
    request.tap = buffer;
    tapped.bytes = session.eval(request);
    tapped.records = parse(std::span(buffer).first(std::min<size_t>(room, tapped.bytes)));
    return tapped;
}

constexpr uint32_t kAll = 127;
constexpr size_t   kRoom = 4 << 20;

} // namespace

TEST(watching_changes_nothing) { CHECK(same_bits(evaluate(kAll, kRoom).logits, evaluate(0, 0).logits)); }

TEST(records_are_complete_and_in_the_order_that_is_promised) {
    const Tapped                     tapped = evaluate(kAll, kRoom);
    std::map<uint32_t, size_t>       counts;
    std::map<uint32_t, size_t>       widths;
    std::pair<uint32_t, uint32_t>    before{0, 0};
    const std::map<uint32_t, uint32_t> rank = {
        {DS4_TAP_COMPRESSED_ROW, 0}, {DS4_TAP_INDEXER_SCORES, 1}, {DS4_TAP_INDEXER_ROWS, 1}, {DS4_TAP_ATTN_OUT, 2},
        {DS4_TAP_EXPERTS, 3},        {DS4_TAP_FFN_OUT, 4},        {DS4_TAP_HIDDEN, 5}};
    for (const Record &record : tapped.records) {
        const std::pair now{record.head.layer, rank.at(record.head.kind)};
        CHECK(now >= before);
        before = now;
        ++counts[record.head.kind];
        widths[record.head.kind] = std::max<size_t>(widths[record.head.kind], record.values.size());
    }

    CHECK(counts[DS4_TAP_HIDDEN] == 5 * 50 && widths[DS4_TAP_HIDDEN] == 4 * 32);
    CHECK(counts[DS4_TAP_ATTN_OUT] == 5 * 50 && widths[DS4_TAP_ATTN_OUT] == 32);
    CHECK(counts[DS4_TAP_FFN_OUT] == 5 * 50 && widths[DS4_TAP_FFN_OUT] == 32);
    CHECK(counts[DS4_TAP_EXPERTS] == 5 * 50 && widths[DS4_TAP_EXPERTS] == 4);
    CHECK(counts[DS4_TAP_COMPRESSED_ROW] == 12 + 8 + 12 + 1 && widths[DS4_TAP_COMPRESSED_ROW] == 32);
    CHECK(counts[DS4_TAP_INDEXER_SCORES] == 2 * 50 && widths[DS4_TAP_INDEXER_SCORES] == 12);
    CHECK(counts[DS4_TAP_INDEXER_ROWS] == 2 * 50 && widths[DS4_TAP_INDEXER_ROWS] == 5);
}

TEST(the_rows_the_indexer_chose_are_the_best_scores) {
    const Tapped  tapped = evaluate(DS4_TAP_INDEXER_SCORES | DS4_TAP_INDEXER_ROWS, kRoom);
    size_t        compared = 0;
    const Record *scores = nullptr;
    for (const Record &record : tapped.records) {
        if (record.head.kind == DS4_TAP_INDEXER_SCORES) {
            scores = &record;
            continue;
        }
        CHECK(scores != nullptr && scores->head.position == record.head.position);
        std::vector<std::pair<float, size_t>> order;
        for (size_t row = 0; row < scores->values.size(); ++row) {
            order.emplace_back(-scores->values[row], row);
        }
        std::sort(order.begin(), order.end());
        order.resize(std::min<size_t>(order.size(), 5));
        std::vector<float> want;
        for (const auto &entry : order) {
            want.push_back(static_cast<float>(entry.second));
        }
        std::sort(want.begin(), want.end());
        CHECK(want == record.values);
        ++compared;
    }
    CHECK(compared == 100);
}

TEST(a_buffer_that_is_too_small_holds_the_first_records_whole_and_the_need_is_told) {
    const Tapped all = evaluate(kAll, kRoom);
    for (const size_t room : {size_t{0}, size_t{8}, size_t{1000}, size_t{1504}, all.bytes - 8}) {
        const Tapped some = evaluate(kAll, room);

        CHECK(some.bytes == all.bytes);
        CHECK(some.records.size() < all.records.size());
        for (size_t i = 0; i < some.records.size(); ++i) {
            CHECK(some.records[i].head.kind == all.records[i].head.kind);
            CHECK(same_bits(some.records[i].values, all.records[i].values));
        }
    }
}
