#include "weights/checkpoint.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/mapped_file.h"
#include "weights/group_quantized.h"
#include "weights/messages.h"
#include "weights/safetensors.h"

namespace quire {

namespace {

// Tokenizers of the largest vocabularies have 20 to 40 MB.
constexpr int64_t kMaxTextBytes = 200'000'000;

bool is_folder(const std::string& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

std::vector<std::string> list_folder(const std::string& path) {
  std::vector<std::string> names;
  DIR* folder = ::opendir(path.c_str());
  if (folder == nullptr) return names;
  while (const dirent* entry = ::readdir(folder)) names.emplace_back(entry->d_name);
  ::closedir(folder);
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> with_ending(const std::vector<std::string>& names, std::string_view ending) {
  std::vector<std::string> found;
  std::copy_if(names.begin(), names.end(), std::back_inserter(found),
               [&](const std::string& name) { return name.ends_with(ending); });
  return found;
}

// The text of a file that may be missing, refused if it is plainly not what its name says.
Result<std::optional<std::string>> read_optional_text(const std::string& path) {
  Result<std::string> text = read_text_file(path, kMaxTextBytes);
  if (text.status().code() == StatusCode::kNotFound) return std::optional<std::string>();
  RETURN_IF_ERROR(text.status());
  const std::string kind = describe_foreign_file(std::as_bytes(std::span(text.value())));
  if (!kind.empty() && path.ends_with(".json") && kind != "a JSON text") {
    return invalid_argument(path + " is " + kind);
  }
  return std::optional(std::move(text).value());
}

// What to say of a folder without usable weights.
Status no_weights(const std::string& path, const std::vector<std::string>& names) {
  const std::vector<std::string> ggufs = with_ending(names, ".gguf");
  if (!ggufs.empty()) {
    return invalid_argument(path + " is a folder that holds GGUF files; give one of them as the model: " + path + "/" +
                            ggufs.front());
  }
  std::vector<std::string> pickles = with_ending(names, ".bin");
  for (const char* ending : {".pt", ".pth", ".ckpt"}) {
    for (std::string& name : with_ending(names, ending)) pickles.push_back(std::move(name));
  }
  if (!pickles.empty()) {
    return unimplemented(path + " has weights as PyTorch pickles only (" + join_some(pickles, ", ", 3) +
                         "); get the model as safetensors or GGUF, or convert it with transformers' "
                         "save_pretrained(..., safe_serialization=True)");
  }
  const std::vector<std::string> safetensors = with_ending(names, ".safetensors");
  if (!safetensors.empty()) {
    return not_found(path + " has neither model.safetensors nor model.safetensors.index.json, only " +
                     join_some(safetensors, ", ", 3) + ": the download is incomplete, or it is no whole model");
  }
  return not_found(path + " has no weights (model.safetensors, or model.safetensors.index.json with its shards)");
}

Result<Checkpoint> open_folder(const std::string& path, const CheckpointOptions& options) {
  Checkpoint checkpoint;
  checkpoint.kind = CheckpointKind::kHuggingFace;
  checkpoint.path = path;
  const std::vector<std::string> names = list_folder(path);
  const auto has = [&](std::string_view name) { return std::find(names.begin(), names.end(), name) != names.end(); };

  struct Text {
    const char* name;
    std::optional<std::string>* target;
  };
  for (const Text& text :
       {Text{"config.json", &checkpoint.config_json},
        Text{"generation_config.json", &checkpoint.generation_config_json},
        Text{"tokenizer.json", &checkpoint.tokenizer_json},
        Text{"tokenizer_config.json", &checkpoint.tokenizer_config_json},
        Text{"chat_template.jinja", &checkpoint.chat_template_jinja}, Text{"modules.json", &checkpoint.modules_json},
        Text{"1_Pooling/config.json", &checkpoint.pooling_json}}) {
    ASSIGN_OR_RETURN(*text.target, read_optional_text(path + "/" + text.name));
  }

  if (!options.needs_tensors) {
    if (checkpoint.config_json.has_value() || checkpoint.tokenizer_json.has_value()) return checkpoint;
    if (!with_ending(names, ".gguf").empty()) return no_weights(path, names);
    return not_found(path + " is a folder without config.json and tokenizer.json: not a Hugging Face model");
  }
  const bool has_weights = has("model.safetensors") || has("model.safetensors.index.json");
  if (!checkpoint.config_json.has_value()) {
    if (!has_weights && !with_ending(names, ".gguf").empty()) return no_weights(path, names);
    return not_found(path + " is a folder without config.json: give a GGUF file or a whole Hugging Face folder");
  }
  if (!has_weights) return no_weights(path, names);
  ASSIGN_OR_RETURN(checkpoint.safetensors, SafetensorsFiles::open_folder(path));
  ASSIGN_OR_RETURN(const std::optional<GroupQuantization> quantization,
                   read_group_quantization(*checkpoint.config_json));
  if (quantization.has_value()) {
    ASSIGN_OR_RETURN(checkpoint.safetensors, open_group_quantized(std::move(checkpoint.safetensors), *quantization));
  }
  return checkpoint;
}

Result<Checkpoint> open_file(const std::string& path) {
  if (path.ends_with(".safetensors") || path.ends_with(".safetensors.index.json")) {
    const size_t slash = path.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : path.substr(0, std::max<size_t>(slash, 1));
    return invalid_argument(path + " is a part of a Hugging Face model; give its folder as the model: " + folder);
  }
  Checkpoint checkpoint;
  checkpoint.kind = CheckpointKind::kGguf;
  checkpoint.path = path;
  ASSIGN_OR_RETURN(checkpoint.gguf, GgufFile::open(path));
  return checkpoint;
}

}  // namespace

const TensorSource& Checkpoint::tensors() const {
  if (gguf != nullptr) return *gguf;
  CHECK(safetensors != nullptr);
  return *safetensors;
}

Result<Checkpoint> open_checkpoint(const std::string& path, const CheckpointOptions& options) {
  return is_folder(path) ? open_folder(path, options) : open_file(path);
}

}  // namespace quire
