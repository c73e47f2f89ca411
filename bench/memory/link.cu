/* What the ways to weights outside device memory allow: copies from pinned memory, kernels that read pinned memory, reads of a
 * file past the page cache. Prints one line of JSON.
 *
 *   ds4-memory-limits [FILE] [FILE_ON_DISK]
 *
 * FILE, mapped and pinned as ds4 does with the file of a model, shows what its smaller pages cost beside memory that the
 * driver has allocated. Built by `make memory-limits`; bench/memory/run.ts puts its figures beside ds4's. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "../gpu/rates.h"

namespace {

using namespace bench;

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kHostBytes = size_t{1} << 30;
constexpr size_t kBlock = 4096; /* direct reads are of whole blocks, at whole blocks */
constexpr int    kReaders = 16; /* as many as ds4 has */

struct File {
    int    descriptor;
    size_t bytes;
};

File open_file(const char *path, int flags) {
    struct stat status {};
    const int   descriptor = open(path, O_RDONLY | O_CLOEXEC | flags);
    if (descriptor < 0 || fstat(descriptor, &status) != 0) {
        std::fprintf(stderr, "cannot open %s: %s\n", path, std::strerror(errno));
        std::exit(1);
    }
    return {descriptor, static_cast<size_t>(status.st_size)};
}

/* Kernels that read the pinned mapping of a file, in GB/s; 0 when the driver does not pin it. */
double mapped_file_rate(const char *path, unsigned blocks, uint32_t *sink) {
    const File   file = open_file(path, 0);
    const size_t bytes = std::min(file.bytes, 4 * kHostBytes) / kBlock * kBlock;
    void *const  address = bytes == 0 ? MAP_FAILED : mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.descriptor, 0);
    close(file.descriptor);
    void  *seen = nullptr;
    double result = 0.0;
    if (address == MAP_FAILED) {
        return result;
    }
    if (gpuHostRegister(address, bytes, gpuHostRegisterMapped | gpuHostRegisterReadOnly) == gpuSuccess ||
        gpuHostRegister(address, bytes, gpuHostRegisterMapped) == gpuSuccess) {
        check(gpuHostGetDevicePointer(&seen, address, 0), "find the pinned mapping");
        result = rate(static_cast<double>(bytes),
                      [&] { read_all<<<blocks, 512>>>(static_cast<const uint4 *>(seen), bytes / 16, sink); });
        check(gpuHostUnregister(address), "give the pinned mapping back");
    }
    (void)gpuGetLastError(); /* that of a mapping that cannot be pinned */
    munmap(address, bytes);
    return result;
}

/* Reads of `piece` bytes at scattered places by several readers, for a few seconds, in GB/s; 0 when direct reads are refused. */
double direct_read_rate(const File &file, size_t piece, int readers) {
    constexpr double    kSeconds = 3.0;
    const size_t        places = file.bytes / piece;
    std::atomic<size_t> next{0};
    std::atomic<size_t> done{0};
    std::atomic<bool>   failed{places == 0};
    const auto          start = std::chrono::steady_clock::now();
    const auto          elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
    const auto          work = [&] {
        auto *const buffer = static_cast<std::byte *>(std::aligned_alloc(kBlock, piece));
        while (buffer != nullptr && !failed && elapsed() < kSeconds) {
            /* A step that has no divisor in common with most numbers of places visits them all before any twice. */
            const size_t place = (next++ * 7919) % places;
            size_t       got = 0;
            while (got < piece) {
                const ssize_t now = pread(file.descriptor, buffer + got, piece - got, static_cast<off_t>(place * piece + got));
                if (now <= 0 && !(now < 0 && errno == EINTR)) {
                    failed = true;
                    break;
                }
                got += now > 0 ? static_cast<size_t>(now) : 0;
            }
            done += got;
        }
        failed = failed || buffer == nullptr;
        std::free(buffer);
    };
    std::vector<std::jthread> threads;
    for (int reader = 0; reader < readers; ++reader) {
        threads.emplace_back(work);
    }
    threads.clear(); /* joins */
    return failed ? 0.0 : static_cast<double>(done) / elapsed() / 1e9;
}

void print(std::string &json, const char *name, double gigabytes) {
    char text[96];
    std::snprintf(text, sizeof text, ",\"%s\":%.2f", name, gigabytes);
    json += text;
}

} // namespace

int main(int count, char **arguments) {
    gpuDeviceProp card{};
    check(gpuSetDevice(0), "open the device");
    check(gpuGetDeviceProperties(&card, 0), "ask the device");
    void *device = nullptr;
    void *host = nullptr;
    void *mapped = nullptr;
    check(gpuMalloc(&device, kHostBytes), "allocate device memory");
    check(gpuHostAlloc(&host, kHostBytes, gpuHostAllocMapped), "allocate pinned memory");
    std::memset(host, 1, kHostBytes);
    check(gpuHostGetDevicePointer(&mapped, host, 0), "map pinned memory");
    const unsigned blocks = static_cast<unsigned>(card.multiProcessorCount) * 8;
    auto *const    sink = static_cast<uint32_t *>(device);

    std::string json = std::string("{\"card\":\"") + card.name + "\"";
    print(json, "host_to_device_gbs", rate(static_cast<double>(kHostBytes), [&] {
              check(gpuMemcpyAsync(device, host, kHostBytes, gpuMemcpyHostToDevice, nullptr), "copy");
          }));
    constexpr size_t kPiece = 2 * kMiB; /* about one matrix of an expert */
    print(json, "host_to_device_2mib_gbs", rate(static_cast<double>(kHostBytes), [&] {
              for (size_t at = 0; at < kHostBytes; at += kPiece) {
                  check(gpuMemcpyAsync(static_cast<std::byte *>(device) + at, static_cast<std::byte *>(host) + at, kPiece,
                                       gpuMemcpyHostToDevice, nullptr),
                        "copy");
              }
          }));
    print(json, "mapped_read_gbs", rate(static_cast<double>(kHostBytes), [&] {
              read_all<<<blocks, 512>>>(static_cast<const uint4 *>(mapped), kHostBytes / 16, sink);
          }));
    if (count > 1) {
        print(json, "mapped_file_read_gbs", mapped_file_rate(arguments[1], blocks, sink));
    }
    if (count > 2) {
        const File file = open_file(arguments[2], O_DIRECT);
        print(json, "direct_read_2mib_gbs", direct_read_rate(file, 2 * kMiB, kReaders));
        print(json, "direct_read_7mib_gbs", direct_read_rate(file, 7 * kMiB, kReaders));
        print(json, "direct_read_32mib_gbs", direct_read_rate(file, 32 * kMiB, kReaders));
        print(json, "direct_read_7mib_one_reader_gbs", direct_read_rate(file, 7 * kMiB, 1));
    }
    std::printf("%s}\n", json.c_str());
    return 0;
}
