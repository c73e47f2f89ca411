/* What lets a mapping lose its file without the process losing its life.
 *
 * The system answers a read of a mapped page that the file no longer has, or that the disk does not give, with SIGBUS in the
 * thread that reads. Once a mapping has lost a page, nothing that is computed from it counts: the whole of it becomes zeroes,
 * so that whoever reads it goes on to the end of the step, and there the loss is noticed and told. Checking the file's size
 * beforehand cannot do that, because the file may be cut while kernels are half-way through it.
 *
 * Signals belong to the process, so this is its one state besides what callers hold. A SIGBUS of any other address goes to
 * whoever was asked before us, or has its ordinary end. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace ds4::runtime {

class MappingWatch {
public:
    MappingWatch() = default;
    /* `base` and `bytes` as mmap(2) was asked for them. Throws Failure(DS4_E_NO_MEMORY) when the process watches as many
     * mappings as it can. */
    MappingWatch(const std::byte *base, uint64_t bytes);
    /* Before the mapping is undone, and when nobody reads it any more. */
    ~MappingWatch();
    MappingWatch(MappingWatch &&other) noexcept;
    MappingWatch &operator=(MappingWatch &&other) noexcept;
    MappingWatch(const MappingWatch &) = delete;
    MappingWatch &operator=(const MappingWatch &) = delete;

    /* Where in the mapping the first read went wrong. It stays lost when the file is whole again. */
    std::optional<uint64_t> loss() const;

private:
    static constexpr size_t kNone = SIZE_MAX;

    size_t place_ = kNone;
};

/* The system delivers no signal that the thread which causes it has blocked, and ends the process instead. Threads that read
 * mappings, or their makers, call this: they may have been started by one that blocks everything. */
void accept_mapping_signals();

} // namespace ds4::runtime
