#include "runtime/fetch_queue.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <system_error>
#include <utility>

#include "runtime/checked_bytes.h"
#include "runtime/counted_ring.h"

namespace ds4::runtime {

namespace {

/* A drive reaches its full rate only when it is asked for several parts at a time. */
constexpr uint32_t kOrdinaryReaders = 16;
constexpr uint64_t kSlackBytes = 2 * 4096; /* of reads in whole blocks, on every drive seen so far; pieces shrink for others */
constexpr uint64_t kLeastBytes = 64u << 10;

} // namespace

FetchQueue::FetchQueue(backend::Device &device, uint32_t threads, uint64_t most_bytes, Telemetry &telemetry)
    : device_(device), telemetry_(telemetry), crosses_a_bus_(!device.reads_host_memory()),
      most_bytes_(std::max(most_bytes, kLeastBytes) + kSlackBytes) {
    const size_t readers = (threads == 0 ? kOrdinaryReaders : threads) + 1;
    ring_ = device.upload_ring(readers * kSlotsPerReader, most_bytes_);
    try {
        while (readers_.size() + 1 < readers) {
            const size_t reader = readers_.size() + 1;
            readers_.emplace_back([this, reader](std::stop_token stop) { read_until_stopped(std::move(stop), reader); });
        }
    } catch (const std::system_error &) {
        /* Those that were started suffice; without any, whoever waits reads. */
    }
}

FetchQueue::~FetchQueue() {
    {
        const std::lock_guard lock(mutex_);
        urgent_.clear();
        ahead_.clear();
    }
    for (std::jthread &reader : readers_) {
        reader.request_stop();
    }
    readers_.clear(); /* joins */
}

FetchQueue::Ticket FetchQueue::submit(std::span<const Fetch> fetches, Urgency urgency) {
    std::vector<Job> jobs;
    for (const Fetch &fetch : fetches) {
        device_.spoil(fetch.to, fetch.bytes);
        const uint64_t most = fetch.source == nullptr ? most_bytes_ : fetch.source->room_in(most_bytes_);
        for (uint64_t done = 0; done < fetch.bytes; done += most) {
            const uint64_t bytes = std::min(most, fetch.bytes - done);
            jobs.push_back({0, {fetch.source, fetch.offset + done, bytes, fetch.to + done, fetch.to_host}});
        }
    }
    const std::lock_guard lock(mutex_);
    const Ticket          ticket = next_ticket_++;
    tickets_[ticket].jobs_left = jobs.size();
    if (check_ != nullptr) {
        tickets_[ticket].fetches.assign(fetches.begin(), fetches.end());
    }
    for (Job &job : jobs) {
        job.ticket = ticket;
        (urgency == Urgency::now ? urgent_ : ahead_).push_back(job);
    }
    work_.notify_all();
    return ticket;
}

bool FetchQueue::is_done(Ticket ticket) {
    const std::lock_guard lock(mutex_);
    const auto            progress = tickets_.find(ticket);
    return progress == tickets_.end() || progress->second.jobs_left == 0;
}

/* The first job of a ticket up to `latest`; the mutex is held. */
bool FetchQueue::take(Job &job, Ticket latest) {
    for (std::deque<Job> *const queue : {&urgent_, &ahead_}) {
        const auto first = std::find_if(queue->begin(), queue->end(), [&](const Job &waiting) { return waiting.ticket <= latest; });
        if (first != queue->end()) {
            job = *first;
            queue->erase(first);
            return true;
        }
    }
    return false;
}

void FetchQueue::read_until_stopped(std::stop_token stop, size_t reader) {
    for (size_t turn = 0;; ++turn) {
        Job job{};
        {
            std::unique_lock lock(mutex_);
            const bool found = work_.wait(lock, stop, [&] { return !urgent_.empty() || !ahead_.empty(); });
            if (!found || stop.stop_requested()) {
                return;
            }
            take(job, std::numeric_limits<Ticket>::max());
        }
        carry_out(job, slots_of(reader) + turn % kSlotsPerReader);
    }
}

/* After a failure the other parts of the ticket are not worth reading, but count as done. */
void FetchQueue::carry_out(const Job &job, size_t slot) {
    bool failed = false;
    {
        const std::lock_guard lock(mutex_);
        failed = tickets_[job.ticket].failure != nullptr;
    }
    std::exception_ptr failure;
    if (!failed) {
        try {
            perform(job, slot);
        } catch (...) {
            failure = std::current_exception();
        }
    }
    const std::lock_guard lock(mutex_);
    Progress             &progress = tickets_[job.ticket];
    progress.failure = progress.failure ? progress.failure : failure;
    if (--progress.jobs_left == 0) {
        done_.notify_all();
    }
}

void FetchQueue::perform(const Job &job, size_t slot) {
    telemetry_.poll_cancel("reading weights");
    const Fetch               &fetch = job.fetch;
    const std::span<std::byte> buffer = free_slot(*ring_, slot, telemetry_);
    std::span<std::byte>       read = buffer.first(fetch.bytes);
    if (fetch.source == nullptr) {
        std::ranges::fill(read, std::byte{0});
    } else {
        read = fetch.source->read(buffer, fetch.offset, fetch.bytes);
    }
    if (fetch.to_host) {
        std::memcpy(fetch.to, read.data(), read.size());
        return;
    }
    ring_->send(slot, fetch.to, fetch.bytes, static_cast<size_t>(read.data() - buffer.data()));
    count_upload(telemetry_, crosses_a_bus_ ? fetch.bytes : 0);
}

void FetchQueue::compare(std::span<const Fetch> fetches) {
    ring_->finish();
    for (const Fetch &fetch : fetches) {
        if (fetch.source != nullptr) {
            check_->compare("a copy of weights", {fetch.source, fetch.offset, fetch.bytes, fetch.to, fetch.to_host});
        }
    }
}

void FetchQueue::wait(Ticket ticket) {
    const auto start = std::chrono::steady_clock::now();
    Progress   ended;
    {
        std::unique_lock lock(mutex_);
        while (tickets_[ticket].jobs_left > 0) {
            Job job{};
            if (take(job, ticket)) {
                lock.unlock();
                carry_out(job, slots_of(0) + turn_++ % kSlotsPerReader);
                lock.lock();
            } else {
                done_.wait(lock, [&] { return tickets_[ticket].jobs_left == 0; });
            }
        }
        ended = tickets_[ticket];
        tickets_.erase(ticket);
    }
    if (ended.failure) {
        ring_->finish();
        std::rethrow_exception(ended.failure);
    }
    if (check_ != nullptr) {
        compare(ended.fetches);
    }
    ring_->precede_ops();
    const auto waited = std::chrono::steady_clock::now() - start;
    telemetry_.add(DS4_WORD_UPLOAD_WAIT_NS,
                   static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(waited).count()));
}

} // namespace ds4::runtime
