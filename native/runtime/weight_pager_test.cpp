#include "runtime/weight_pager.h"

#include <cstring>
#include <vector>

#include "check.h"
#include "runtime/failure_test.h"
#include "runtime/fickle_source_test.h"
#include "runtime/host_device_test.h"

using namespace ds4;
using namespace ds4::runtime;

namespace {

constexpr size_t kPages = 9;

/* Pages of two parts each, no two of the same size. */
struct Paged {
    test::FickleSource                 source{test::scrambled_bytes(400000)};
    Telemetry                          telemetry;
    FileReader                         reader{source, nullptr, 1, telemetry};
    test::HostDevice                   device;
    FetchQueue                         queue;
    std::vector<std::vector<PagePart>> pages;
    WeightPager                        pager;

    explicit Paged(size_t slots, uint32_t threads = 3)
        : queue(device, threads, 4096, telemetry), pages(make_pages()),
          pager(device, queue, pages, slots, telemetry) {}

    std::vector<std::vector<PagePart>> make_pages() {
        std::vector<std::vector<PagePart>> made;
        uint64_t                           offset = 13;
        for (size_t page = 0; page < kPages; ++page) {
            const uint64_t first = 20000 - page % 4 * 3000 + page;
            const uint64_t second = 5000 + page % 3 * 777;
            made.push_back({{&reader, offset, first}, {&reader, offset + first + 5, second}});
            offset += first + second + 9;
        }
        return made;
    }
    /* Every byte of the page, and zeros behind each part. */
    bool holds(size_t page) const {
        bool right = true;
        for (size_t part = 0; part < pages[page].size(); ++part) {
            const PagePart        &want = pages[page][part];
            const std::byte *const got = pager.address(page, part);
            right = right && std::memcmp(got, source.bytes.data() + want.offset, want.bytes) == 0;
            for (uint64_t at = want.bytes; at % 256 != 0; ++at) {
                right = right && got[at] == std::byte{0};
            }
        }
        return right;
    }
    void visit_all() {
        for (size_t page = 0; page < kPages; ++page) {
            pager.enter(page);
            CHECK(holds(page));
            pager.leave(page);
        }
    }
    uint64_t count(size_t word) const { return telemetry.get(word); }
};

} // namespace

TEST(every_page_is_there_when_it_is_entered_whatever_the_number_of_slots) {
    for (const size_t slots : {1u, 2u, 3u, 8u, 9u, 50u}) {
        Paged paged(slots);
        for (int round = 0; round < 3; ++round) {
            paged.visit_all();
        }
    }
}

TEST(addresses_never_change) {
    Paged                           paged(4);
    std::vector<const std::byte *> before;
    for (size_t page = 0; page < kPages; ++page) {
        before.push_back(paged.pager.address(page, 1));
    }
    paged.visit_all();
    for (size_t page = 0; page < kPages; ++page) {
        CHECK(paged.pager.address(page, 1) == before[page]);
    }
}

TEST(the_first_pages_stay_and_only_the_others_are_read_again) {
    Paged paged(5); /* three stay, six share two slots */
    paged.visit_all();
    const uint64_t first = paged.count(DS4_WORD_PAGE_LOADS);
    paged.visit_all();
    paged.visit_all();

    CHECK(paged.count(DS4_WORD_PAGE_LOADS) - first == 2 * 6);
    CHECK(paged.count(DS4_WORD_PAGE_PREFETCHED) >= 2 * 6);
}

TEST(with_a_slot_for_each_page_nothing_is_read_twice) {
    Paged paged(kPages);
    paged.visit_all();
    paged.visit_all();
    CHECK(paged.count(DS4_WORD_PAGE_LOADS) == kPages);
}

TEST(pages_may_be_entered_in_any_order) {
    Paged paged(3);
    for (const size_t page : {4u, 4u, 0u, 8u, 2u, 7u, 1u, 1u, 6u, 0u}) {
        paged.pager.enter(page);
        CHECK(paged.holds(page));
        if (page % 2 == 0) {
            paged.pager.leave(page);
        }
    }
}

TEST(a_page_that_cannot_be_read_fails_when_it_is_entered_and_later_ones_work) {
    Paged paged(2, 1);
    paged.pager.enter(0);
    paged.source.fails_at = paged.source.reads + 1;

    CHECK(test::outcome_of([&] { paged.pager.enter(3); }).status == DS4_E_IO);

    paged.source.fails_at = ~uint64_t{0};
    paged.pager.enter(3);
    CHECK(paged.holds(3));
    paged.visit_all();
}

TEST(a_read_ahead_that_failed_is_tried_once_more_when_the_page_is_needed) {
    Paged paged(2, 1);
    paged.pager.enter(0);
    paged.source.fails_at = paged.source.reads + 1;
    paged.source.fails_until = paged.source.fails_at + 3; /* an interruption may be among them */
    paged.pager.leave(0); /* page 2 is read ahead, in vain */
    paged.pager.enter(2);
    CHECK(paged.holds(2));
    CHECK(paged.count(DS4_WORD_FILE_RETRIES) > 0);
}
