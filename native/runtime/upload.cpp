#include "runtime/upload.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/checked_bytes.h"
#include "runtime/copy_check.h"
#include "runtime/counted_ring.h"

namespace ds4::runtime {

namespace {

constexpr uint32_t kMostHelpful = 16; /* so many threads copy from the page cache as fast as a bus takes it */
constexpr uint32_t kLeastHelpful = 4; /* a drive answers several readers faster, also when processors are few */
constexpr uint64_t kWorthAThread = 16u << 20;
constexpr uint32_t kOrdinarySlots = 4;
constexpr uint64_t kOrdinarySlotBytes = 64u << 20;
constexpr uint64_t kLeastSlotBytes = 64u << 10;
constexpr uint64_t kSlotsPerThread = 2;
/* What is mapped at a time: enough that mapping costs nothing, so little that a process does not grow by the file it loads. */
constexpr uint64_t kWindowBytes = 32u << 20;

/* What is read at once. */
struct Chunk {
    const FileReader *source;
    uint64_t          offset;
    size_t            bytes;
    std::byte        *to;
    bool              to_host;
};

struct RingShape {
    size_t threads;
    size_t slots; /* a multiple of threads */
    size_t slot_bytes;
};

RingShape choose_ring(std::span<const UploadPiece> pieces, const UploadOptions &options) {
    uint64_t total = 0;
    uint64_t largest = 0;
    for (const UploadPiece &piece : pieces) {
        total = checked_add(total, piece.bytes);
        largest = std::max(largest, piece.source->buffer_bytes(piece.bytes));
    }
    const uint64_t helpful = std::clamp(std::thread::hardware_concurrency(), kLeastHelpful, kMostHelpful);
    const uint64_t threads =
        options.threads != 0 ? options.threads : std::clamp<uint64_t>(total / kWorthAThread, 1, helpful);

    const uint64_t slots = options.slots != 0 ? options.slots : kOrdinarySlots;
    const uint64_t slot_bytes = options.slot_bytes != 0 ? options.slot_bytes : kOrdinarySlotBytes;
    const uint64_t pinned = checked_multiply(slots, slot_bytes);
    const uint64_t per_thread = std::max(kSlotsPerThread, slots / threads);
    const uint64_t cut = pinned / (threads * per_thread) / kLeastSlotBytes * kLeastSlotBytes;
    const uint64_t needed = std::max(kLeastSlotBytes, largest);
    return {threads, threads * per_thread, std::clamp(std::min(cut, slot_bytes), kLeastSlotBytes, needed)};
}

std::vector<Chunk> cut_up(std::span<const UploadPiece> pieces, size_t slot_bytes) {
    std::vector<Chunk> chunks;
    for (const UploadPiece &piece : pieces) {
        const uint64_t most = piece.source->room_in(slot_bytes);
        for (uint64_t done = 0; done < piece.bytes; done += most) {
            const size_t bytes = std::min<size_t>(most, piece.bytes - done);
            chunks.push_back({piece.source, piece.offset + done, bytes, piece.to + done, piece.to_host});
        }
    }
    return chunks;
}

/* The threads of one upload take chunks in turn, each with buffers of its own: nothing is locked while bytes move. */
class Upload {
public:
    Upload(backend::UploadRing &ring, const RingShape &shape, std::vector<Chunk> chunks, bool forget_pages,
           bool crosses_a_bus, Telemetry &telemetry)
        : ring_(ring), shape_(shape), chunks_(std::move(chunks)), forget_pages_(forget_pages),
          crosses_a_bus_(crosses_a_bus), telemetry_(telemetry) {}

    /* Also uses the calling thread; so it works, if slower, where no thread can be started. */
    void run() {
        std::vector<std::jthread> helpers;
        try {
            while (helpers.size() + 1 < shape_.threads) {
                const size_t number = helpers.size() + 1;
                helpers.emplace_back([this, number] { work(number); });
            }
        } catch (const std::system_error &) {
            /* Those that were started suffice. */
        }
        work(0);
        helpers.clear(); /* joins */
        if (failure_) {
            std::rethrow_exception(failure_);
        }
        ring_.finish();
    }

private:
    void work(size_t thread) {
        try {
            const size_t own = shape_.slots / shape_.threads;
            for (size_t turn = 0; !stop_.load(std::memory_order_relaxed); ++turn) {
                const size_t index = next_.fetch_add(1, std::memory_order_relaxed);
                if (index >= chunks_.size()) {
                    return;
                }
                move(chunks_[index], thread * own + turn % own);
            }
        } catch (...) {
            const std::lock_guard lock(mutex_);
            failure_ = failure_ ? failure_ : std::current_exception();
            stop_.store(true, std::memory_order_relaxed);
        }
    }

    void move(const Chunk &chunk, size_t slot) {
        telemetry_.poll_cancel("loading the model");
        const std::span<std::byte> buffer = free_slot(ring_, slot, telemetry_);
        const std::span<std::byte> read = chunk.source->read(buffer, chunk.offset, chunk.bytes);
        if (chunk.to_host) {
            std::ranges::copy(read, chunk.to);
        } else {
            ring_.send(slot, chunk.to, chunk.bytes, static_cast<size_t>(read.data() - buffer.data()));
            count_upload(telemetry_, crosses_a_bus_ ? chunk.bytes : 0);
        }
        if (forget_pages_) {
            chunk.source->forget(chunk.offset, chunk.bytes);
        }
        telemetry_.add(DS4_WORD_BYTES_DONE, chunk.bytes);
    }

    backend::UploadRing     &ring_;
    RingShape                shape_;
    const std::vector<Chunk> chunks_;
    bool                     forget_pages_;
    bool                     crosses_a_bus_;
    Telemetry               &telemetry_;
    std::atomic<size_t>      next_ = 0;
    std::atomic<bool>        stop_ = false;
    std::mutex               mutex_;
    std::exception_ptr       failure_;
};

/* Through ordinary memory, not straight from the mapping: a driver that reads mapped pages itself has been seen to stall on
 * large files, and could not tell us of pages that the file has lost. */
void upload_from_mapping(backend::Device &device, std::span<const UploadPiece> pieces, const UploadOptions &options,
                         Telemetry &telemetry) {
    const uint64_t most =
        std::clamp(options.slot_bytes != 0 ? options.slot_bytes : kWindowBytes, kLeastSlotBytes, kWindowBytes);
    uint64_t largest = 0;
    for (const UploadPiece &piece : pieces) {
        largest = std::max(largest, std::min(piece.bytes, most));
    }
    std::vector<std::byte> buffer(largest);
    for (const UploadPiece &piece : pieces) {
        for (uint64_t done = 0; done < piece.bytes; done += most) {
            telemetry.poll_cancel("loading the model");
            const uint64_t   bytes = std::min(most, piece.bytes - done);
            std::byte *const to = piece.to + done;
            if (piece.to_host) {
                piece.source->copy_mapped({to, bytes}, piece.offset + done);
            } else {
                const std::span<std::byte> part = std::span(buffer).first(bytes);
                piece.source->copy_mapped(part, piece.offset + done);
                device.copy_in(to, part.data(), bytes);
                count_upload(telemetry, device.reads_host_memory() ? 0 : bytes);
            }
            if (options.forget_pages) {
                piece.source->forget(piece.offset + done, bytes);
            }
            telemetry.add(DS4_WORD_BYTES_DONE, bytes);
        }
    }
}

std::unique_ptr<backend::UploadRing> open_ring(backend::Device &device, const RingShape &shape, Telemetry &telemetry) {
    const LoadStep step(telemetry, DS4_STEP_RING);
    return device.upload_ring(shape.slots, shape.slot_bytes);
}

void upload_through_ring(backend::Device &device, std::span<const UploadPiece> pieces, const UploadOptions &options,
                         Telemetry &telemetry) {
    const RingShape    shape = choose_ring(pieces, options);
    std::vector<Chunk> chunks = cut_up(pieces, shape.slot_bytes);
    if (chunks.empty()) {
        return;
    }
    const std::unique_ptr<backend::UploadRing> ring = open_ring(device, shape, telemetry);
    Upload(*ring, shape, std::move(chunks), options.forget_pages, !device.reads_host_memory(), telemetry)
        .run();
}

} // namespace

void upload(backend::Device &device, std::span<const UploadPiece> pieces, const UploadOptions &options,
            Telemetry &telemetry) {
    if (options.from_mapping) {
        upload_from_mapping(device, pieces, options, telemetry);
    } else {
        upload_through_ring(device, pieces, options, telemetry);
    }
    CopyCheck check(device, telemetry);
    for (const UploadPiece &piece : options.compare ? pieces : std::span<const UploadPiece>()) {
        const std::string what = piece.name.empty() ? "a copy of weights" : "tensor " + std::string(piece.name);
        check.compare(what, {piece.source, piece.offset, piece.bytes, piece.to, piece.to_host});
    }
}

} // namespace ds4::runtime
