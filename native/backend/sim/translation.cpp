#include "backend/sim/translation.h"

#include <cstdio>

#include "failure.h"

namespace ds4::backend::sim {

void Translation::fail(const char *name, const std::string &why) const {
    throw Failure(DS4_E_DEVICE, std::string("the simulated GPU cannot run ") + op_ + ": " + name + " " + why);
}

Behind Translation::behind(const char *name, const void *address, uint64_t bytes) const {
    const std::optional<Behind> found = device_.addresses().find(address);
    char                        text[160];
    if (!found) {
        std::snprintf(text, sizeof text, "is at %p, which is %s", address,
                      device_.addresses().owns(address) ? "no longer memory of the GPU, nor pinned for it"
                                                        : "not memory of the GPU, nor pinned for it");
        fail(name, text);
    }
    if (found->bytes < bytes) {
        std::snprintf(text, sizeof text, "needs %llu bytes at %p, where %zu end", static_cast<unsigned long long>(bytes), address,
                      found->bytes);
        fail(name, text);
    }
    return *found;
}

const void *Translation::readable(const char *name, const void *address, uint64_t bytes) {
    if (bytes == 0) {
        return address;
    }
    const Behind found = behind(name, address, bytes);
    if (found.place == Place::host) {
        mapped_bytes_ += bytes;
    }
    return found.memory;
}

void *Translation::writable(const char *name, void *address, uint64_t bytes) const {
    if (bytes == 0) {
        return address;
    }
    const Behind found = behind(name, address, bytes);
    if (found.place == Place::host) {
        fail(name, "is in host memory, which kernels only read");
    }
    return found.memory;
}

void Translation::bytes(const char *name, const std::byte *&address, int64_t bytes, int64_t bytes_read) {
    if (bytes == 0) {
        return;
    }
    const Behind found = behind(name, address, static_cast<uint64_t>(bytes));
    if (found.place == Place::host) {
        mapped_bytes_ += static_cast<uint64_t>(bytes_read);
    }
    address = found.memory;
}

void Translation::matrix(const char *name, const Matrix *&matrix, int64_t rows_read) {
    Matrix &copy = matrices_.emplace_back(*matrix);
    if (copy.layout != RowLayout::file) {
        fail(name, "is said to be arranged, which matrices here never are");
    }
    bytes(name, copy.data, copy.rows * copy.row_bytes, rows_read * copy.row_bytes);
    matrix = &copy;
}

void Translation::host(const char *name, const void *address) const {
    if (device_.addresses().owns(address)) {
        fail(name, "is an address of the GPU where one of the host is needed");
    }
}

} // namespace ds4::backend::sim
