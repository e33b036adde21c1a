// libFuzzer target: any bytes as a GGUF file, single or as two parts of a split one. What opens is read wholly.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "weights/gguf.h"

namespace {

// Keeps the compiler from leaving out what is only read.
volatile unsigned sink = 0;

void read_everything(const quire::GgufFile& file) {
  for (const quire::GgufEntry& entry : file.entries()) {
    sink = sink + static_cast<unsigned>(quire::describe(entry.value, 60).size());
    const auto strings = file.find_strings(entry.key);
    if (strings.is_ok() && strings.value().has_value()) {
      for (const std::string_view text : *strings.value()) {
        if (!text.empty())
          sink = sink + static_cast<unsigned char>(text.front()) + static_cast<unsigned char>(text.back());
      }
    }
    const bool is_any = file.find_string(entry.key).is_ok() || file.find_integer(entry.key).is_ok() ||
                        file.find_number(entry.key).is_ok() || file.find_bool(entry.key).is_ok() ||
                        file.find_integers(entry.key).is_ok() || file.find_floats(entry.key).is_ok() ||
                        file.find_bools(entry.key).is_ok();
    sink = sink + (is_any ? 1u : 0u);
  }
  for (const quire::SourceTensor& tensor : file.tensors()) {
    sink = sink + static_cast<unsigned>(tensor.num_values());
    for (size_t i = 0; i < tensor.data.size(); i += 4096) sink = sink + std::to_integer<unsigned>(tensor.data[i]);
    if (!tensor.data.empty()) sink = sink + std::to_integer<unsigned>(tensor.data.back());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  const quire::GgufFile::Part whole = {"fuzz.gguf", bytes};
  const auto file = quire::GgufFile::parse(std::span(&whole, 1), nullptr);
  if (file.is_ok()) read_everything(*file.value());

  // A second "GGUF" in the bytes begins a second part.
  for (size_t i = 4; i + 4 <= size; ++i) {
    if (std::memcmp(data + i, "GGUF", 4) != 0) continue;
    const quire::GgufFile::Part parts[] = {{"first.gguf", bytes.first(i)}, {"second.gguf", bytes.subspan(i)}};
    const auto split = quire::GgufFile::parse(parts, nullptr);
    if (split.is_ok()) read_everything(*split.value());
    break;
  }
  return 0;
}
