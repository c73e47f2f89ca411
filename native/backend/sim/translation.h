/* The arguments of one op, from addresses of a simulated device to the memory behind them.
 *
 * Each argument is checked over all bytes that the op will touch: they must be in one live allocation, or, to be read only, in
 * one mapping or piece of pinned memory. Arguments of which nothing is touched stay as they are, which nobody may follow. */
#pragma once

#include <cstdint>
#include <list>
#include <string>

#include "backend/ops.h"
#include "backend/sim/sim_device.h"

namespace ds4::backend::sim {

class Translation {
public:
    /* Throws Failure(DS4_E_DEVICE) when the card is lost. */
    Translation(const SimDevice &device, const char *op) : device_(device), op_(op) {
        device.require_alive(std::string("run ") + op);
    }
    Translation(const Translation &) = delete;
    Translation &operator=(const Translation &) = delete;

    /* `count` values. All throw Failure(DS4_E_DEVICE) naming op and argument. */
    template <typename T> void reads(const char *name, const T *&address, int64_t count) {
        address = static_cast<const T *>(readable(name, address, static_cast<uint64_t>(count) * sizeof(T)));
    }
    template <typename T> void writes(const char *name, T *&address, int64_t count) {
        address = static_cast<T *>(writable(name, address, static_cast<uint64_t>(count) * sizeof(T)));
    }
    template <typename T> void may_read(const char *name, const T *&address, int64_t count) {
        if (address != nullptr) {
            reads(name, address, count);
        }
    }
    template <typename T> void may_write(const char *name, T *&address, int64_t count) {
        if (address != nullptr) {
            writes(name, address, count);
        }
    }

    /* A matrix of which `rows_read` rows are read. It is as long-lived as the translation. */
    void matrix(const char *name, const Matrix *&matrix, int64_t rows_read);
    void whole_matrix(const char *name, const Matrix *&matrix) { this->matrix(name, matrix, matrix->rows); }
    /* Bytes of which `bytes_read` are read. */
    void bytes(const char *name, const std::byte *&address, int64_t bytes, int64_t bytes_read);

    /* Memory of the host. */
    void host(const char *name, const void *address) const;

    [[noreturn]] void fail(const char *name, const std::string &why) const;

    /* Enters into the ledger what is going to be read over the bus. */
    void enter() const {
        if (mapped_bytes_ > 0) {
            device_.ledger().read_mapped(mapped_bytes_);
        }
    }

private:
    Behind      behind(const char *name, const void *address, uint64_t bytes) const;
    const void *readable(const char *name, const void *address, uint64_t bytes);
    void       *writable(const char *name, void *address, uint64_t bytes) const;

    const SimDevice  &device_;
    const char       *op_;
    uint64_t          mapped_bytes_ = 0;
    std::list<Matrix> matrices_;
};

} // namespace ds4::backend::sim
