// Llama 1, 2 and 3.x, and what has the same shape (SmolLM2, TinyLlama, Mistral as GGUF): the plain decoder. GGUF files
// of this family have the rows of q and k permuted, so that the rotated pairs lie side by side.
#include "models/registry.h"

namespace quire {

constinit const ArchitectureSpec kLlama = {
    .name = "llama",
    .hf_names = {"LlamaForCausalLM"},
    .gguf_name = "llama",
    .attention = {.gguf_rope_style = RopeStyle::kInterleaved},
};

}  // namespace quire
