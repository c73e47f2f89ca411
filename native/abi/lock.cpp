#include <memory>

#include "abi/guard.h"
#include "abi/handles.h"

ds4_status ds4_lock_acquire(const char *path, ds4_lock **lock, uint64_t *holder_pid, ds4_error *error) {
    using namespace ds4;
    return abi::guarded(error, [&] {
        if (path == nullptr || lock == nullptr || holder_pid == nullptr) {
            throw Failure(DS4_E_ARGUMENT, "path, lock or holder_pid is NULL");
        }
        *lock = nullptr;
        *lock = new ds4_lock{runtime::FileLock(path, *holder_pid)};
    });
}

void ds4_lock_release(ds4_lock *lock) { const std::unique_ptr<ds4_lock> owned(lock); }
