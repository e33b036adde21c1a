// The tensor types of GGUF files: number, name and block size, of those we compute with (quant/format.h) and of those
// that we only name, so that a file which has them can be inspected and refused by name.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "quant/format.h"

namespace quire {

struct GgmlType {
  std::optional<FormatId> format;  // nothing when we cannot compute with it
  std::string_view name;
  int32_t values_per_block = 1;
  int32_t bytes_per_block = 1;
};

// Nothing for a number that we do not know.
std::optional<GgmlType> find_ggml_type(uint32_t number);

}  // namespace quire
