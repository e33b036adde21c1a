// Fuzzes what lies between a model file and a model: a GGUF file's bytes through config, weight map and loader, or the
// texts of config.json and generation_config.json, parted by a zero byte. Seeds: tests/goldens/models/*/model.gguf and
// config.json.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "models/config_parser.h"
#include "models/decoder_weights.h"
#include "models/kv_groups.h"
#include "models/rope.h"

namespace quire {
namespace {

void use_config(const ModelConfig& config) {
  CHECK(config.num_heads % config.num_kv_heads == 0);
  CHECK(config.layer_is_sliding.size() == config.num_layers);
  (void)make_kv_groups(config, config.num_kv_heads, DType::kF16);
  (void)inverse_frequencies(config.rope, config.max_context);
  (void)inverse_frequencies(config.sliding_rope, 1);
}

void fuzz_gguf(std::span<const std::byte> bytes) {
  const GgufFile::Part parts[] = {{"fuzz", bytes}};
  auto file = GgufFile::parse(parts, nullptr);
  if (!file.is_ok()) return;
  const GgufFile& gguf = *file.value();
  auto parsed = parse_gguf_config(gguf_metadata(gguf), gguf);
  if (!parsed.is_ok()) return;
  const ModelConfig& config = parsed.value().config;
  use_config(config);
  auto map = make_weight_map(*parsed.value().spec, config, CheckpointKind::kGguf, gguf, {});
  if (map.is_ok()) (void)load(map.value(), gguf, {}, {}).is_ok();
}

void fuzz_hf(std::string_view text) {
  const size_t end = text.find('\0');
  const std::string_view generation = end == std::string_view::npos ? "" : text.substr(end + 1);
  auto parsed = parse_hf_config(text.substr(0, end), generation);
  if (parsed.is_ok()) use_config(parsed.value().config);
}

}  // namespace
}  // namespace quire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (text.starts_with("GGUF")) {
    quire::fuzz_gguf(std::as_bytes(std::span(data, size)));
  } else {
    quire::fuzz_hf(text);
  }
  return 0;
}
