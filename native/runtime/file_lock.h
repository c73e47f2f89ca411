/* An advisory lock on a file, by which processes that would not fit beside each other find out. */
#pragma once

#include <cstdint>
#include <string>

namespace ds4::runtime {

class FileLock {
public:
    /* Opens or creates `path` and takes the lock without waiting, then writes our pid into the file. The file is never
     * removed; the system gives the lock up when the process ends, however it ends.
     * Throws Failure(DS4_E_BUSY) when another holds it, with `holder` set to the pid the file names (0: none), and
     * DS4_E_IO when the file cannot be opened or locked. */
    FileLock(std::string path, uint64_t &holder);
    ~FileLock();
    FileLock(const FileLock &) = delete;
    FileLock &operator=(const FileLock &) = delete;

private:
    std::string path_;
    int         descriptor_ = -1;
};

} // namespace ds4::runtime
