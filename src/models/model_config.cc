#include "models/model_config.h"

#include <algorithm>

namespace quire {

Status check_model_config(const ModelConfig& config) {
  if (config.num_heads % config.num_kv_heads != 0) {
    return invalid_argument("the number of KV heads (" + std::to_string(config.num_kv_heads) +
                            ") must divide the number of attention heads (" + std::to_string(config.num_heads) + ")");
  }
  if (config.head_dim % 2 != 0) {
    return invalid_argument("head_dim must be even, but is " + std::to_string(config.head_dim));
  }
  RETURN_IF_ERROR(check_rope_config(config.rope, config.head_dim, "RoPE"));
  RETURN_IF_ERROR(check_rope_config(config.sliding_rope, config.head_dim, "RoPE of layers with a window"));
  const bool has_sliding_layer = std::any_of(config.layer_is_sliding.begin(), config.layer_is_sliding.end(),
                                             [](uint8_t is_sliding) { return is_sliding != 0; });
  if (has_sliding_layer && config.sliding_window < 1) {
    return invalid_argument(
        "some layers have a sliding window, but the file does not say how long it is (sliding_window)");
  }
  for (const int32_t id : config.stop_token_ids) {
    if (id >= config.vocab_size) {
      return invalid_argument("end-of-sequence id " + std::to_string(id) + " is outside of the vocabulary of " +
                              std::to_string(config.vocab_size) + " tokens");
    }
  }
  if (config.bos_token_id >= config.vocab_size) {
    return invalid_argument("beginning-of-sequence id " + std::to_string(config.bos_token_id) +
                            " is outside of the vocabulary of " + std::to_string(config.vocab_size) + " tokens");
  }
  return ok_status();
}

}  // namespace quire
