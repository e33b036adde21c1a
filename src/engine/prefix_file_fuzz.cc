// Any bytes as a file of cached prefixes: read to the end or refused.
#include <cstddef>
#include <cstdint>

#include "engine/prefix_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto reader = quire::PrefixFileReader::create(std::as_bytes(std::span(data, size)));
  if (!reader.is_ok()) return 0;
  for (int64_t i = 0; i < reader.value().header().num_entries; ++i) {
    if (!reader.value().next().is_ok()) break;
  }
  return 0;
}
