// libFuzzer target: any bytes as a safetensors file. What opens is read at both ends of every tensor.
#include <cstddef>
#include <cstdint>

#include "weights/safetensors.h"

namespace {
volatile unsigned sink = 0;
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = quire::SafetensorsFiles::parse("fuzz", std::as_bytes(std::span(data, size)), nullptr);
  if (!file.is_ok()) return 0;
  for (const quire::SourceTensor& tensor : file.value()->tensors()) {
    sink = sink + static_cast<unsigned>(tensor.num_values());
    if (tensor.data.empty()) continue;
    sink = sink + std::to_integer<unsigned>(tensor.data.front()) + std::to_integer<unsigned>(tensor.data.back());
  }
  return 0;
}
