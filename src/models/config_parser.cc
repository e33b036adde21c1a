#include "models/config_parser.h"

#include <algorithm>
#include <cmath>

#include "models/config_common.h"

namespace quire {

void add_stop_ids(ModelConfig& config, const std::vector<int64_t>& ids) {
  for (const int64_t id : ids) {
    if (id >= 0) config.stop_token_ids.push_back(static_cast<int32_t>(id));
  }
  std::sort(config.stop_token_ids.begin(), config.stop_token_ids.end());
  config.stop_token_ids.erase(std::unique(config.stop_token_ids.begin(), config.stop_token_ids.end()),
                              config.stop_token_ids.end());
}

void fill_derived(const ArchitectureSpec& spec, ModelConfig& config) {
  config.architecture = std::string(spec.name);
  config.has_qkv_bias = config.has_qkv_bias || spec.attention.has_qkv_bias;
  if (spec.scales_embedding) {
    config.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(config.hidden_size)));
  }
  // Some files pad with an id past their vocabulary; nobody computes with it.
  if (config.pad_token_id >= config.vocab_size) config.pad_token_id = -1;
  // A window that no context reaches is none; but where its layers have a RoPE of their own, they stay apart.
  if (config.sliding_window >= config.max_context && config.sliding_rope == config.rope) {
    config.sliding_window = 0;
    std::fill(config.layer_is_sliding.begin(), config.layer_is_sliding.end(), uint8_t{0});
  }
}

std::vector<uint8_t> sliding_layers(int num_layers, int64_t pattern) {
  std::vector<uint8_t> layers(static_cast<size_t>(num_layers), uint8_t{1});
  for (int i = 0; i < num_layers; ++i) {
    if (pattern > 0 && (i + 1) % pattern == 0) layers[static_cast<size_t>(i)] = 0;
  }
  return layers;
}

Result<ParsedConfig> parse_config(const Checkpoint& checkpoint) {
  if (checkpoint.kind == CheckpointKind::kGguf) {
    const boost::json::object metadata = gguf_metadata(*checkpoint.gguf);
    ASSIGN_OR_RETURN(ParsedConfig parsed, parse_gguf_config(metadata, checkpoint.tensors()));
    parsed.config.pooling = parse_gguf_pooling(metadata);
    return parsed;
  }
  if (!checkpoint.config_json.has_value()) {
    return invalid_argument(checkpoint.path + " has no config.json, so the model's sizes are unknown");
  }
  ASSIGN_OR_RETURN(ParsedConfig parsed,
                   parse_hf_config(*checkpoint.config_json, checkpoint.generation_config_json.value_or("")));
  parsed.config.pooling =
      parse_sentence_transformers(checkpoint.modules_json.value_or(""), checkpoint.pooling_json.value_or(""));
  return parsed;
}

}  // namespace quire
