// Mistral from Hugging Face folders: Llama with a sliding window on every layer, where config.json gives one. Mistral
// as GGUF says "llama".
#include "models/registry.h"

namespace quire {

constinit const ArchitectureSpec kMistral = {
    .name = "mistral",
    .hf_names = {"MistralForCausalLM"},
    .sliding_window = 4096,
};

}  // namespace quire
