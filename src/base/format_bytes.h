// Sizes of memory for people's eyes: "1.50 GiB". Used in messages and tables by every layer above.
#pragma once

#include <cstdint>
#include <string>

namespace quire {

std::string format_bytes(int64_t num_bytes);

}  // namespace quire
