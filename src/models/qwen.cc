// Qwen2 and Qwen2.5: Llama with a bias on q, k and v. Qwen3: no bias, but a norm on the heads of q and k.
#include "models/registry.h"

namespace quire {

constinit const ArchitectureSpec kQwen2 = {
    .name = "qwen2",
    .hf_names = {"Qwen2ForCausalLM"},
    .gguf_name = "qwen2",
    .attention = {.has_qkv_bias = true},
};

constinit const ArchitectureSpec kQwen3 = {
    .name = "qwen3",
    .hf_names = {"Qwen3ForCausalLM"},
    .gguf_name = "qwen3",
    .attention = {.has_qk_norm = true},
};

}  // namespace quire
