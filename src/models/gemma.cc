// Gemma 3, text: norms before and after attention and MLP, a norm on the heads of q and k, a scaled embedding, and five
// layers with a window (and a RoPE of their own) to one that sees everything.
#include "models/registry.h"

namespace quire {

constinit const ArchitectureSpec kGemma3 = {
    .name = "gemma3",
    .hf_names = {"Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"},
    .gguf_name = "gemma3",
    .attention = {.has_qk_norm = true},
    .mlp = {.activation = Activation::kGeluTanh},
    .norms = {.placement = NormPlacement::kSandwich, .adds_one_in_hf = true},
    .scales_embedding = true,
    .ties_embeddings_by_default = true,
    .sliding_pattern = 6,
    .sliding_window = 4096,
    .rope_theta = 1000000.0,
    .sliding_rope_theta = 10000.0,
    .names =
        {
            .attention_post_norm = {"model.layers.{}.post_attention_layernorm", "blk.{}.post_attention_norm"},
            .mlp_norm = {"model.layers.{}.pre_feedforward_layernorm", "blk.{}.ffn_norm"},
            .mlp_post_norm = {"model.layers.{}.post_feedforward_layernorm", "blk.{}.post_ffw_norm"},
        },
};

}  // namespace quire
