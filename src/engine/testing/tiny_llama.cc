#include "engine/testing/tiny_llama.h"

#include <cmath>

namespace quire::testing {

Bytes tiny_quantized_llama() {
  constexpr int64_t kHidden = 256;
  constexpr int64_t kVocab = kTinyLlamaVocab;
  constexpr int64_t kKvSize = 128;
  constexpr int64_t kIntermediate = 512;
  GgufWriter writer;
  writer.add_string("general.architecture", "llama");
  writer.add_u32("llama.block_count", 2);
  writer.add_u32("llama.embedding_length", kHidden);
  writer.add_u32("llama.feed_forward_length", kIntermediate);
  writer.add_u32("llama.attention.head_count", 4);
  writer.add_u32("llama.attention.head_count_kv", 2);
  writer.add_u32("llama.context_length", 1024);
  writer.add_f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  Random random(17);
  const auto add = [&](const std::string& name, FormatId format, int64_t n, int64_t k, float size) {
    writer.add_tensor(name, format, {n, k}, random_weights(format, n * k, size, random));
  };
  const auto add_norm = [&](const std::string& name) {
    writer.add_tensor(name, FormatId::kF32, {kHidden}, f32_bytes(std::vector<float>(kHidden, 1.0f)));
  };
  add("token_embd.weight", FormatId::kQ8_0, kVocab, kHidden, 1.0f);
  add_norm("output_norm.weight");
  const float size = 1.0f / std::sqrt(static_cast<float>(kHidden));
  for (int layer = 0; layer < 2; ++layer) {
    const std::string name = "blk." + std::to_string(layer) + ".";
    add_norm(name + "attn_norm.weight");
    add_norm(name + "ffn_norm.weight");
    add(name + "attn_q.weight", FormatId::kQ4_1, kHidden, kHidden, size);
    add(name + "attn_k.weight", FormatId::kQ4_K, kKvSize, kHidden, size);
    add(name + "attn_v.weight", FormatId::kQ6_K, kKvSize, kHidden, size);
    add(name + "attn_output.weight", FormatId::kQ5_0, kHidden, kHidden, size);
    add(name + "ffn_gate.weight", FormatId::kQ4_0, kIntermediate, kHidden, size);
    add(name + "ffn_up.weight", FormatId::kIQ4_NL, kIntermediate, kHidden, size);
    add(name + "ffn_down.weight", FormatId::kQ8_0, kHidden, kIntermediate, size);
  }
  return writer.finish();
}

}  // namespace quire::testing
