// Parses one GGUF file's bytes into plain lists: the entries of its metadata and the tensors with their data, all
// checked. Splits, lookups and typed access are gguf.cc's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "weights/gguf.h"
#include "weights/tensor_source.h"

namespace quire {

struct GgufPart {
  int version = 0;
  std::vector<GgufEntry> entries;  // keys are distinct
  std::vector<SourceTensor> tensors;
};

// `name` stands in error messages.
Result<GgufPart> parse_gguf_part(const std::string& name, std::span<const std::byte> bytes);

// Bytes of a scalar of this type; 0 for strings and arrays.
int64_t gguf_scalar_bytes(GgufType type);

}  // namespace quire
