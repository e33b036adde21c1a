// The choices of a decoder-only transformer, as data. A model family is one ArchitectureSpec (llama.cc, qwen.cc, …) and
// one row of the registry; models/decoder runs any of them. What varies between models of one family is in ModelConfig.
#pragma once

#include <array>
#include <string_view>

#include "ops/ops.h"

namespace quire {

// Where a tensor is found. "{}" stands for the layer's index; empty: this kind of file has no such tensor.
struct TensorName {
  std::string_view hf;
  std::string_view gguf;
};

// The names that most families share; a family overrides what differs. Matrices and norms end in ".weight", and a
// matrix's bias has the same name with ".bias".
struct TensorNames {
  TensorName embedding = {"model.embed_tokens", "token_embd"};
  TensorName head = {"lm_head", "output"};
  TensorName final_norm = {"model.norm", "output_norm"};

  TensorName attention_norm = {"model.layers.{}.input_layernorm", "blk.{}.attn_norm"};
  TensorName q = {"model.layers.{}.self_attn.q_proj", "blk.{}.attn_q"};
  TensorName k = {"model.layers.{}.self_attn.k_proj", "blk.{}.attn_k"};
  TensorName v = {"model.layers.{}.self_attn.v_proj", "blk.{}.attn_v"};
  TensorName fused_qkv = {};
  TensorName q_norm = {"model.layers.{}.self_attn.q_norm", "blk.{}.attn_q_norm"};
  TensorName k_norm = {"model.layers.{}.self_attn.k_norm", "blk.{}.attn_k_norm"};
  TensorName attention_output = {"model.layers.{}.self_attn.o_proj", "blk.{}.attn_output"};
  TensorName attention_post_norm = {};  // sandwich norms only

  TensorName mlp_norm = {"model.layers.{}.post_attention_layernorm", "blk.{}.ffn_norm"};
  TensorName gate = {"model.layers.{}.mlp.gate_proj", "blk.{}.ffn_gate"};
  TensorName up = {"model.layers.{}.mlp.up_proj", "blk.{}.ffn_up"};
  TensorName fused_gate_up = {};
  TensorName down = {"model.layers.{}.mlp.down_proj", "blk.{}.ffn_down"};
  TensorName mlp_post_norm = {};  // sandwich norms only
};

enum class NormPlacement : uint8_t {
  kPre,       // before attention and before the MLP
  kSandwich,  // before and after each; the second before the residual is added
};

struct ArchitectureSpec {
  std::string_view name;                          // the registry's name, and config.json's model_type
  std::array<std::string_view, 2> hf_names = {};  // config.json's "architectures"
  std::string_view gguf_name = {};                // general.architecture; empty: GGUF has no name of its own for it

  struct Attention {
    bool has_qkv_bias = false;  // always; where only some models have one, the file says so
    bool has_qk_norm = false;   // RMS norm over each head of q and k, before RoPE
    bool is_qkv_fused = false;  // one matrix in the file
    RopeStyle gguf_rope_style = RopeStyle::kHalves;
  } attention = {};

  struct Mlp {
    Activation activation = Activation::kSilu;
    bool is_gate_up_fused = false;
  } mlp = {};

  struct Norms {
    NormPlacement placement = NormPlacement::kPre;
    bool adds_one_in_hf = false;  // Hugging Face files hold weight - 1
  } norms = {};

  bool scales_embedding = false;  // by sqrt(hidden_size)
  bool ties_embeddings_by_default = false;

  // Layers with a window take turns with full ones: every `sliding_pattern`-th is full. 0: the file's window holds for
  // all layers.
  int sliding_pattern = 0;
  int64_t sliding_window = 0;       // where config.json has no such key; null there means none
  double rope_theta = 10000.0;      // where the file does not say
  double sliding_rope_theta = 0.0;  // layers with a window have a RoPE of their own, with this theta; 0: they do not
  int64_t original_context = 0;     // where the file does not say; 0: the model's context length

  TensorNames names = {};
};

}  // namespace quire
