/* Routing tables of the layers whose experts are chosen by token id. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace ds4::model {

/* Copies a table [vocab, used] of expert ids and checks every one, because the router takes them as they are. An expert
 * named twice for a token counts twice: rows of ids that no text has may hold anything.
 * Throws Failure(DS4_E_ARGUMENT) with the first token whose row is wrong. */
void copy_hash_table(const std::byte *from, std::span<int32_t> to, int64_t used, int64_t expert_count,
                     const std::string &name);

} // namespace ds4::model
