// Opens what a user calls a model: a GGUF file (or any part of a split one) or a Hugging Face folder, and says plainly
// what is wrong with a path that is neither. It gives texts and tensors; what they mean is for models and text to say.
// Used at start by the app's subcommands; constant afterwards.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "weights/gguf.h"
#include "weights/tensor_source.h"

namespace quire {

enum class CheckpointKind : uint8_t { kGguf, kHuggingFace };

struct Checkpoint {
  CheckpointKind kind = CheckpointKind::kGguf;
  std::string path;                // the file or the folder
  std::unique_ptr<GgufFile> gguf;  // of kind kGguf

  // Of kind kHuggingFace: whole texts, unparsed. Only config.json is always there (where tensors are).
  std::optional<std::string> config_json;
  std::optional<std::string> generation_config_json;
  std::optional<std::string> tokenizer_json;
  std::optional<std::string> tokenizer_config_json;
  std::optional<std::string> chat_template_jinja;  // a template in a file of its own
  std::optional<std::string> modules_json;         // of sentence-transformers: what comes after the model
  std::optional<std::string> pooling_json;         // 1_Pooling/config.json
  std::unique_ptr<TensorSource> safetensors;       // null when opened without tensors

  // Either kind's tensors. A vocabulary-only GGUF has none.
  const TensorSource& tensors() const;
  bool has_tensors() const { return gguf != nullptr ? !gguf->tensors().empty() : safetensors != nullptr; }
};

struct CheckpointOptions {
  bool needs_tensors = true;  // false: a folder with a tokenizer alone will do, and weights are not opened
};

Result<Checkpoint> open_checkpoint(const std::string& path, const CheckpointOptions& options = {});

}  // namespace quire
