#include "models/registry.h"

#include <algorithm>

#include "weights/messages.h"

namespace quire {
namespace {

constexpr const ArchitectureSpec* kArchitectures[] = {&kLlama, &kMistral, &kQwen2, &kQwen3, &kGemma3, &kPhi3};

Status unknown_architecture(std::string_view name, bool is_gguf) {
  std::string known;
  for (const ArchitectureSpec* spec : kArchitectures) {
    const std::string_view shown = is_gguf ? spec->gguf_name : spec->hf_names[0];
    if (!shown.empty()) known += (known.empty() ? "" : ", ") + std::string(shown);
  }
  return unimplemented("the model's architecture is " + quoted(name) +
                       ", which is not supported; supported are: " + known);
}

}  // namespace

std::span<const ArchitectureSpec* const> architectures() {
  return kArchitectures;
}

Result<const ArchitectureSpec*> find_architecture_by_gguf_name(std::string_view name) {
  for (const ArchitectureSpec* spec : kArchitectures) {
    if (!spec->gguf_name.empty() && spec->gguf_name == name) return spec;
  }
  return unknown_architecture(name, true);
}

Result<const ArchitectureSpec*> find_architecture_by_hf_name(std::string_view class_name, std::string_view model_type) {
  constexpr std::string_view kTextSuffix = "_text";  // "gemma3_text" is the text part of "gemma3"
  std::string_view base_type = model_type;
  if (base_type.ends_with(kTextSuffix)) base_type.remove_suffix(kTextSuffix.size());
  for (const ArchitectureSpec* spec : kArchitectures) {
    const bool has_name = !class_name.empty() &&
                          std::find(spec->hf_names.begin(), spec->hf_names.end(), class_name) != spec->hf_names.end();
    if (has_name || (class_name.empty() && spec->name == base_type)) return spec;
  }
  return unknown_architecture(class_name.empty() ? model_type : class_name, false);
}

}  // namespace quire
