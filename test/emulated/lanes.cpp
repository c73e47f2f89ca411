#include "emulated/lanes.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <dlfcn.h>
#include <sys/mman.h>

#include "emulated/fiber.h"
#include "failure.h"

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace ds4::emulated {

namespace {

constexpr unsigned kMostThreads = 1024;
constexpr unsigned kGroup = 32;
constexpr size_t   kStackBytes = 256u << 10;
constexpr size_t   kSharedBytes = 256u << 10;
constexpr size_t   kPage = 4096;

struct Lane {
    Context context;
    Meeting at = Meeting::none;
};

/* Between two meetings all lanes of a group run, and then all have stopped: at the same place, or the kernel is wrong. */
struct Group {
    /* Two, because a lane may come to the next meeting before the others have read what this one brought. */
    Words    given[2][kGroup];
    unsigned turn = 0;
    unsigned stopped = 0;
    Meeting  at = Meeting::none; /* where the first one stopped */
    bool     apart = false;      /* another one stopped elsewhere */
    bool     ready = false;
};

struct Block {
    Lane                         lanes[kMostThreads];
    Group                        groups[kMostThreads / kGroup];
    Context                      scheduler;
    unsigned                     running = 0;
    unsigned                     threads = 0;
    const std::function<void()> *body = nullptr;
    const void                  *kernel = nullptr;
    std::byte                   *stacks = nullptr;
    std::byte                   *shared = nullptr; /* where the block's part begins: it ends at a page that faults */
    std::byte                   *shared_end = nullptr;

    /* The wavefront that runs: its lanes, each once, in the order first + (offset + i * stride) mod count. */
    unsigned first = 0, count = 0, offset = 0, stride = 1, next = 0;
};

Block   *block = nullptr;
uint64_t order = 0;

uint64_t next_order() {
    order ^= order << 13;
    order ^= order >> 7;
    order ^= order << 17;
    return order;
}

/* `bytes` of memory with a page behind them that may not be touched. */
std::byte *map_guarded(size_t bytes) {
    void *data = mmap(nullptr, bytes + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) {
        throw Failure(DS4_E_NO_MEMORY, "no memory for the emulated card");
    }
    auto *first = static_cast<std::byte *>(data);
    mprotect(first + bytes, kPage, PROT_NONE);
    return first;
}

void set_up() {
    if (block != nullptr) {
        return;
    }
    block = new Block; /* for as long as the process lives */
    block->stacks = map_guarded(kMostThreads * kStackBytes);
    /* Stacks grow down, so the lowest page of each is its guard. */
    for (unsigned i = 0; i < kMostThreads; ++i) {
        mprotect(block->stacks + i * kStackBytes, kPage, PROT_NONE);
    }
    block->shared_end = map_guarded(kSharedBytes) + kSharedBytes;
    const char *seed = std::getenv("DS4_EMULATED_ORDER");
    set_order(seed != nullptr ? std::strtoull(seed, nullptr, 10) : order);
}

/* Goes on with the wavefront's next lane, or with the scheduler after the last. */
void go_on(Context &from) {
    while (block->next < block->count) {
        const unsigned turn = block->next++;
        const unsigned lane = block->first + ((block->offset + turn * block->stride) & (block->count - 1));
        if (block->groups[lane / kGroup].ready) {
            block->running = lane;
            threadIdx.x = lane;
            change(from, block->lanes[lane].context);
            return;
        }
    }
    change(from, block->scheduler);
}

void stop(Meeting at) {
    Lane  &lane = block->lanes[block->running];
    Group &group = block->groups[block->running / kGroup];
    lane.at = at;
    if (group.stopped++ == 0) {
        group.at = at;
    } else if (group.at != at) {
        group.apart = true;
    }
    go_on(lane.context);
}

[[noreturn]] void run_lane() {
    (*block->body)();
    stop(Meeting::ended);
    std::abort(); /* an ended lane is never resumed */
}

const char *name_of(Meeting at) {
    switch (at) {
    case Meeting::none: return "nothing";
    case Meeting::shuffle: return "a shuffle";
    case Meeting::ballot: return "a ballot";
    case Meeting::group: return "sync_group";
    case Meeting::block: return "sync_block";
    case Meeting::ended: return "its end";
    }
    return "?";
}

std::string name_of_kernel(const void *kernel) {
    Dl_info info{};
    if (dladdr(kernel, &info) == 0) {
        return "kernel";
    }
    if (info.dli_sname != nullptr) {
        return info.dli_sname;
    }
    char text[64];
    std::snprintf(text, sizeof text, "%#zx", static_cast<size_t>(static_cast<const char *>(kernel) - static_cast<const char *>(info.dli_fbase)));
    return "the kernel that `addr2line -Cfe " + std::string(info.dli_fname) + " " + text + "` names";
}

std::string what_of(unsigned lane) {
    const Meeting at = block->lanes[lane].at;
    return "lane " + std::to_string(lane) + (at == Meeting::ended ? " has ended" : std::string(" waits at ") + name_of(at));
}

[[noreturn]] void fail_apart(unsigned lane, unsigned other) {
    throw Failure(DS4_E_INTERNAL, name_of_kernel(block->kernel) + ", block " + std::to_string(blockIdx.x) + "," +
                                      std::to_string(blockIdx.y) + "," + std::to_string(blockIdx.z) + " of " +
                                      std::to_string(block->threads) + " threads: " + what_of(lane) + ", but " +
                                      what_of(other));
}

/* All lanes of the group have stopped. Whether they can go on. */
bool part(unsigned index) {
    Group &group = block->groups[index];
    if (group.apart) {
        const unsigned first = index * kGroup;
        unsigned       other = first;
        while (block->lanes[other].at == block->lanes[first].at) {
            ++other;
        }
        fail_apart(first, other);
    }
    group.stopped = 0;
    group.ready = group.at != Meeting::block && group.at != Meeting::ended;
    group.turn ^= 1u;
    return group.ready;
}

/* Runs the ready lanes of a wavefront until each has stopped. Whether any can go on. */
bool advance(unsigned wave) {
    const unsigned first_group = wave * kWave / kGroup;
    const unsigned end_group = std::min(first_group + kWave / kGroup, block->threads / kGroup);
    unsigned       ready = 0;
    for (unsigned group = first_group; group < end_group; ++group) {
        ready += block->groups[group].ready ? 1 : 0;
    }
    if (ready == 0) {
        return false;
    }
    const uint64_t choice = next_order();
    block->first = first_group * kGroup;
    block->count = (end_group - first_group) * kGroup; /* a power of two */
    block->offset = static_cast<unsigned>(choice);
    block->stride = 2u * (static_cast<unsigned>(choice >> 32) & 15u) + 1u; /* odd: reaches every lane */
    block->next = 0;
    go_on(block->scheduler);
    ready = 0;
    for (unsigned group = first_group; group < end_group; ++group) {
        if (block->groups[group].ready) {
            ready += part(group) ? 1 : 0;
        }
    }
    return ready != 0;
}

void run_block() {
    const unsigned waves = (block->threads + kWave - 1) / kWave;
    const unsigned group_count = block->threads / kGroup;
    for (unsigned i = 0; i < block->threads; ++i) {
        prepare(block->lanes[i].context, block->stacks + i * kStackBytes, kStackBytes, run_lane);
    }
    for (unsigned i = 0; i < group_count; ++i) {
        block->groups[i].stopped = 0;
        block->groups[i].apart = false;
        block->groups[i].ready = true;
    }
    for (;;) {
        /* One wavefront as far as it goes before the next, or in turns: both happen on a card. */
        const uint64_t choice = next_order();
        const bool     deep = (choice >> 16 & 1u) != 0;
        const unsigned start = static_cast<unsigned>(choice % waves);
        const bool     backwards = (choice >> 17 & 1u) != 0;
        bool           ready = true;
        while (ready) {
            ready = false;
            for (unsigned i = 0; i < waves; ++i) {
                const unsigned wave = (start + (backwards ? waves - i : i)) % waves;
                bool           more = advance(wave);
                while (deep && more) {
                    more = advance(wave);
                }
                ready = ready || more;
            }
        }
        for (unsigned i = 1; i < group_count; ++i) {
            if (block->groups[0].at != block->groups[i].at) {
                fail_apart(0, i * kGroup);
            }
        }
        if (block->groups[0].at == Meeting::ended) {
            return;
        }
        for (unsigned i = 0; i < group_count; ++i) {
            block->groups[i].ready = true;
        }
    }
}

} // namespace

const Words *exchange(Meeting kind, const Words &words) {
    Group &group = block->groups[block->running / kGroup];
    Words *given = group.given[group.turn];
    given[block->running % kGroup] = words;
    stop(kind);
    return given;
}

const Words *exchange(Meeting kind, uint64_t value) {
    Group &group = block->groups[block->running / kGroup];
    Words *given = group.given[group.turn];
    given[block->running % kGroup].words[0] = value;
    stop(kind);
    return given;
}

void sync_block() {
    stop(Meeting::block);
}

void *shared_memory() {
    return block->shared;
}

void set_order(uint64_t seed) {
    order = seed * 0x9e3779b97f4a7c15u + 0x2545f4914f6cdd1du;
}

void run(const void *kernel, dim3 grid, unsigned threads, size_t shared_bytes, const std::function<void()> &body) {
    set_up();
    block->kernel = kernel;
    block->threads = threads;
    block->body = &body;
    shared_bytes = (shared_bytes + 15) / 16 * 16;
    block->shared = block->shared_end - shared_bytes;
    gridDim = grid;
    blockDim = dim3(threads);
    threadIdx = dim3(0, 0, 0);
    const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
    const uint64_t start = next_order() % blocks;
    for (uint64_t i = 0; i < blocks; ++i) {
        const uint64_t at = (start + i) % blocks;
        blockIdx = dim3(static_cast<unsigned>(at % grid.x), static_cast<unsigned>(at / grid.x % grid.y),
                        static_cast<unsigned>(at / grid.x / grid.y));
        std::memset(block->shared, 0xff, shared_bytes);
        run_block();
    }
}

} // namespace ds4::emulated
