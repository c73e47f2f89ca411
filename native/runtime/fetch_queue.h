/* Weights on their way from files to where kernels find them, while ops run: several readers, each with pinned buffers of its
 * own. What is asked for gets a ticket; tickets are numbers that never come again, so nobody can mistake one request for
 * another, in whatever order their reads end. */
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "backend/device.h"
#include "runtime/copy_check.h"
#include "runtime/file_reader.h"
#include "runtime/telemetry.h"

namespace ds4::runtime {

struct Fetch {
    const FileReader *source; /* nullptr: zeros */
    uint64_t          offset;
    uint64_t          bytes;
    std::byte        *to;
    bool              to_host = false; /* `to` is the host's memory, else the device's */
};

enum class Urgency {
    now,
    ahead, /* read when nothing urgent waits */
};

class FetchQueue {
public:
    using Ticket = uint64_t;

    /* `threads` 0: as many as help. No part is read in pieces of more than `most_bytes`.
     * Throws Failure(DS4_E_NO_MEMORY or DS4_E_DEVICE). */
    FetchQueue(backend::Device &device, uint32_t threads, uint64_t most_bytes, Telemetry &telemetry);
    /* Gives up what has not begun and waits for the rest. */
    ~FetchQueue();
    FetchQueue(const FetchQueue &) = delete;
    FetchQueue &operator=(const FetchQueue &) = delete;

    /* What is fetched from now on is compared with its file, byte by byte, before wait() returns. */
    void compare_copies() { check_ = std::make_unique<CopyCheck>(device_, telemetry_); }

    /* What is submitted from now on may overwrite device memory that ops called so far read. */
    void follow_ops() { ring_->follow_ops(); }

    /* Until the ticket was waited for, what lies where it is fetched to is no longer to be read. */
    Ticket submit(std::span<const Fetch> fetches, Urgency urgency = Urgency::now);

    /* Whether wait() would return at once. */
    bool is_done(Ticket ticket);
    /* Ops called after this see what was fetched. The calling thread helps reading.
     * Throws the first failure: Failure(DS4_E_IO, DS4_E_DEVICE, DS4_E_CANCELLED), or the first byte that differs. Then, too, nothing of it is on its way any
     * more. A ticket is waited for once. */
    void wait(Ticket ticket);

private:
    struct Job {
        Ticket ticket;
        Fetch  fetch;
    };
    struct Progress {
        size_t             jobs_left = 0;
        std::exception_ptr failure;
        std::vector<Fetch> fetches; /* that are to be compared */
    };

    size_t slots_of(size_t reader) const { return reader * kSlotsPerReader; }
    void   read_until_stopped(std::stop_token stop, size_t reader);
    bool   take(Job &job, Ticket latest);
    void   carry_out(const Job &job, size_t slot);
    void   perform(const Job &job, size_t slot);
    void   compare(std::span<const Fetch> fetches);

    static constexpr size_t kSlotsPerReader = 2; /* one is read into while the other is on its way */

    backend::Device                     &device_;
    Telemetry                           &telemetry_;
    bool                                 crosses_a_bus_;
    uint64_t                             most_bytes_;
    std::unique_ptr<backend::UploadRing> ring_;
    std::unique_ptr<CopyCheck>           check_; /* nullptr: nothing is compared */
    std::mutex                           mutex_;
    std::condition_variable_any          work_;
    std::condition_variable              done_;
    std::deque<Job>                      urgent_;
    std::deque<Job>                      ahead_;
    std::map<Ticket, Progress>           tickets_;
    Ticket                               next_ticket_ = 1;
    size_t                               turn_ = 0; /* of the waiting thread's own slots */
    std::vector<std::jthread>            readers_; /* reader 0 is whoever waits */
};

} // namespace ds4::runtime
