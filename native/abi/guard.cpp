#include "abi/guard.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace ds4::abi {

namespace {

bool continues_character(char byte) { return (static_cast<unsigned char>(byte) & 0xc0u) == 0x80u; }

} // namespace

ds4_status report(ds4_error *error, ds4_status status, const char *sentence) noexcept {
    if (error == nullptr || error->size < sizeof(ds4_error) || error->text == nullptr || error->capacity == 0) {
        return status;
    }
    size_t bytes = std::strlen(sentence);
    if (bytes >= error->capacity) {
        bytes = error->capacity - 1;
        while (bytes > 0 && continues_character(sentence[bytes])) {
            --bytes;
        }
    }
    std::memcpy(error->text, sentence, bytes);
    error->text[bytes] = '\0';
    return status;
}

} // namespace ds4::abi
