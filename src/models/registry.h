// The architectures that Quire knows: one row each. To add one, write its file and its row here.
#pragma once

#include <span>
#include <string>

#include "base/status.h"
#include "models/architecture.h"

namespace quire {

extern const ArchitectureSpec kLlama;    // llama.cc
extern const ArchitectureSpec kMistral;  // mistral.cc
extern const ArchitectureSpec kQwen2;    // qwen.cc
extern const ArchitectureSpec kQwen3;    // qwen.cc
extern const ArchitectureSpec kGemma3;   // gemma.cc
extern const ArchitectureSpec kPhi3;     // phi.cc

std::span<const ArchitectureSpec* const> architectures();

// The error names what was asked for and lists what there is.
Result<const ArchitectureSpec*> find_architecture_by_gguf_name(std::string_view name);
// `class_name` is an entry of config.json's "architectures"; where it is empty, `model_type` decides.
Result<const ArchitectureSpec*> find_architecture_by_hf_name(std::string_view class_name, std::string_view model_type);

}  // namespace quire
