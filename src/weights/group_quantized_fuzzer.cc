// libFuzzer target: a config.json, a zero byte, and a safetensors file, as a checkpoint of 4-bit groups. What opens is
// read at both ends of every tensor.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "weights/group_quantized.h"
#include "weights/safetensors.h"

namespace {
volatile unsigned sink = 0;
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = input.find('\0');
  if (end == std::string_view::npos) return 0;
  const auto quantization = quire::read_group_quantization(input.substr(0, end));
  if (!quantization.is_ok() || !quantization.value().has_value()) return 0;
  auto files = quire::SafetensorsFiles::parse("fuzz", std::as_bytes(std::span(data, size)).subspan(end + 1), nullptr);
  if (!files.is_ok()) return 0;
  const auto opened = quire::open_group_quantized(std::move(files).value(), *quantization.value());
  if (!opened.is_ok()) return 0;
  for (const quire::SourceTensor& tensor : opened.value()->tensors()) {
    if (tensor.data.empty() || !opened.value()->prepare(tensor).is_ok()) continue;
    sink = sink + std::to_integer<unsigned>(tensor.data.front()) + std::to_integer<unsigned>(tensor.data.back());
  }
  return 0;
}
