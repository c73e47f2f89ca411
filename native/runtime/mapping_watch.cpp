#include "runtime/mapping_watch.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "failure.h"

namespace ds4::runtime {

namespace {

constexpr size_t   kPlaces = 1024;
constexpr uint64_t kWhole = UINT64_MAX;

/* The handler runs wherever a thread stands, so it takes no lock. It may find a place while another thread fills or empties
 * it, and knows that by the turn: odd meanwhile, and another one afterwards. The mapping that it looks for stays as it is as
 * long as somebody reads it. */
struct Place {
    std::atomic<uint64_t>  turn = 0;
    std::atomic<uintptr_t> first = 0;
    std::atomic<uintptr_t> end = 0; /* 0: the place is free */
    std::atomic<uint64_t>  loss = kWhole;
};

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uintptr_t>::is_always_lock_free);

std::array<Place, kPlaces> places;
std::atomic<size_t>        used_places = 0; /* none beyond was ever taken */
std::mutex                 taking;
struct sigaction           previous; /* written before the handler can run */

void set(Place &place, uintptr_t first, uintptr_t end) {
    place.turn.fetch_add(1, std::memory_order_acq_rel);
    place.first.store(first, std::memory_order_seq_cst);
    place.end.store(end, std::memory_order_seq_cst);
    place.turn.fetch_add(1, std::memory_order_acq_rel);
}

/* Turns the mapping that has the address into zeroes, all of it at once: when one page is lost, most of the others usually
 * are too, and a signal for each would take longer than the step. */
bool give_zeroes(uintptr_t address) {
    const size_t used = used_places.load(std::memory_order_acquire);
    for (size_t i = 0; i < used; ++i) {
        Place          &place = places[i];
        const uint64_t  turn = place.turn.load(std::memory_order_seq_cst);
        const uintptr_t first = place.first.load(std::memory_order_seq_cst);
        const uintptr_t end = place.end.load(std::memory_order_seq_cst);
        if (turn % 2 != 0 || place.turn.load(std::memory_order_seq_cst) != turn || address < first || address >= end) {
            continue;
        }
        uint64_t whole = kWhole;
        place.loss.compare_exchange_strong(whole, address - first);
        /* The bare system call: mmap() is not among the functions that a handler may call. Two threads may both get here,
         * and then the second one's zeroes replace the first one's. */
        constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
        return ::syscall(SYS_mmap, first, end - first, PROT_READ, flags, -1, 0) != -1;
    }
    return false;
}

/* Whether somebody sent it, and no read caused it. */
bool was_sent(const siginfo_t *info) { return info->si_code <= 0; }

void pass_on(int signal, siginfo_t *info, void *context) {
    if ((previous.sa_flags & SA_SIGINFO) != 0) {
        previous.sa_sigaction(signal, info, context);
    } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
        previous.sa_handler(signal);
    } else if (previous.sa_handler == SIG_DFL || !was_sent(info)) {
        /* When we return, the read is repeated, and then ends the process as if we had never been there. */
        struct sigaction ordinary {};
        ordinary.sa_handler = SIG_DFL;
        ::sigaction(signal, &ordinary, nullptr);
        if (was_sent(info)) {
            ::raise(signal);
        }
    }
}

void on_bus_error(int signal, siginfo_t *info, void *context) {
    const int error = errno;
    if (was_sent(info) || !give_zeroes(reinterpret_cast<uintptr_t>(info->si_addr))) {
        pass_on(signal, info, context);
    }
    errno = error;
}

/* For good: a handler that others may have chained to cannot be taken away again. */
void install() {
    static std::once_flag once;
    std::call_once(once, [] {
        struct sigaction ours {};
        ours.sa_sigaction = on_bus_error;
        ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
        sigemptyset(&ours.sa_mask);
        ::sigaction(SIGBUS, nullptr, &previous);
        if (::sigaction(SIGBUS, &ours, nullptr) != 0) {
            throw Failure(DS4_E_INTERNAL, std::string("cannot watch mapped files: ") + std::strerror(errno));
        }
    });
}

} // namespace

MappingWatch::MappingWatch(const std::byte *base, uint64_t bytes) {
    install();
    const std::lock_guard lock(taking);
    for (size_t i = 0; i < kPlaces; ++i) {
        if (places[i].end.load() == 0) {
            const auto first = reinterpret_cast<uintptr_t>(base);
            places[i].loss.store(kWhole);
            set(places[i], first, first + bytes);
            used_places.store(std::max(used_places.load(), i + 1), std::memory_order_release);
            place_ = i;
            return;
        }
    }
    throw Failure(DS4_E_NO_MEMORY, "cannot map another file: " + std::to_string(kPlaces) +
                                       " are mapped already; close other models or choose --no-mmap");
}

MappingWatch::~MappingWatch() {
    if (place_ != kNone) {
        const std::lock_guard lock(taking);
        set(places[place_], 0, 0);
    }
}

MappingWatch::MappingWatch(MappingWatch &&other) noexcept : place_(std::exchange(other.place_, kNone)) {}

MappingWatch &MappingWatch::operator=(MappingWatch &&other) noexcept {
    MappingWatch taken(std::move(other));
    std::swap(place_, taken.place_);
    return *this;
}

std::optional<uint64_t> MappingWatch::loss() const {
    const uint64_t loss = place_ == kNone ? kWhole : places[place_].loss.load();
    return loss == kWhole ? std::nullopt : std::optional(loss);
}

void accept_mapping_signals() {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGBUS);
    pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

} // namespace ds4::runtime
