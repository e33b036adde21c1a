// What a model file says about the model: sizes, positions, attention pattern, special ids. Plain data, the same for a
// GGUF file and for a Hugging Face folder. Filled by parse_model_config (from a file's metadata), read by the decoder,
// the KV memory and the engine. Every number in it has been range-checked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "models/pooling_config.h"
#include "models/rope.h"
#include "tensor/dtype.h"

namespace quire {

struct ModelConfig {
  std::string architecture;  // name of a row of models/registry: "qwen3"
  std::string name;          // what the file calls itself, or empty

  int num_layers = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t vocab_size = 0;
  int num_heads = 0;
  int num_kv_heads = 0;  // divides num_heads
  int head_dim = 0;
  int64_t max_context = 0;  // tokens that the model was made for, RoPE scaling included

  RopeConfig rope;
  RopeConfig sliding_rope;  // of the layers with a window; equals rope in most models

  float norm_epsilon = 1e-5f;
  float attention_scale = 1.0f;     // multiplies q·k
  float attention_soft_cap = 0.0f;  // 0: none
  float logit_soft_cap = 0.0f;      // 0: none
  float embedding_scale = 1.0f;

  int sliding_window = 0;  // tokens that a layer with a window sees, itself included; 0: no layer has one
  std::vector<uint8_t> layer_is_sliding = {};  // per layer: 1 where the window holds

  bool has_tied_embeddings = false;
  bool has_qkv_bias = false;
  bool has_output_bias = false;  // of the attention's output projection
  bool has_mlp_bias = false;

  DType dtype = DType::kF32;  // in which the model was published

  // Tokens that end a generation, from every place where the file names one; ascending, no duplicates.
  std::vector<int32_t> stop_token_ids;
  int32_t bos_token_id = -1;  // -1: none
  int32_t pad_token_id = -1;

  PoolingConfig pooling;  // how it makes embeddings

  // 0: this layer sees everything before it.
  int window_of_layer(int layer) const {
    return layer_is_sliding[static_cast<size_t>(layer)] != 0 ? sliding_window : 0;
  }
  int64_t query_size() const { return static_cast<int64_t>(num_heads) * head_dim; }
  int64_t kv_size() const { return static_cast<int64_t>(num_kv_heads) * head_dim; }
};

// Checks what must hold between the fields (kv heads divide heads, ids lie in the vocabulary, …).
Status check_model_config(const ModelConfig& config);

}  // namespace quire
