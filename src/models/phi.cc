// Phi-3, Phi-3.5 and Phi-4 mini: Llama with q, k and v in one matrix, gate and up in another, and longrope in the
// variants with long contexts.
#include "models/registry.h"

namespace quire {

constinit const ArchitectureSpec kPhi3 = {
    .name = "phi3",
    .hf_names = {"Phi3ForCausalLM"},
    .gguf_name = "phi3",
    .attention = {.is_qkv_fused = true},
    .mlp = {.is_gate_up_fused = true},
    .original_context = 4096,
    .names =
        {
            .fused_qkv = {"model.layers.{}.self_attn.qkv_proj", "blk.{}.attn_qkv"},
            .fused_gate_up = {"model.layers.{}.mlp.gate_up_proj", "blk.{}.ffn_up"},
        },
};

}  // namespace quire
