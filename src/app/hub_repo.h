// Names of models on a hub, "ORG/NAME[:quant][@revision]", and which files of such a repository a model needs. Pure
// functions over lists of files: the same choice is made from what a hub lists and from what a cache holds.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire::app {

struct HubName {
  std::string repo;   // "ORG/NAME"
  std::string quant;  // "Q4_K_M", or a file's name; empty: the repository decides
  std::string revision = "main";
};
// None: the text is no such name.
std::optional<HubName> parse_hub_name(std::string_view text);

struct HubFile {
  std::string path;  // inside the repository
  int64_t size = 0;
  std::string hash;     // SHA-256 of a large file (LFS), git's SHA-1 of another; also its name in the cache
  bool is_lfs = false;  // hash is the SHA-256
};

// Files may be trusted as names below a folder: relative, plain, without "..".
bool is_safe_hub_path(std::string_view path);

struct HubChoice {
  std::vector<HubFile> files;  // in the order in which they are to be fetched: small ones first
  std::string model_path;      // the GGUF file that is loaded; empty: the folder
  std::string index_path;      // of safetensors in several files: it names those that are needed beside `files`
};
// What has to be fetched. Of GGUF files one quantization (all parts of a split file), else config, tokenizer and
// safetensors. `files` must be safe.
Result<HubChoice> choose_hub_files(const HubName& name, std::span<const HubFile> files);

// The names of weight files in model.safetensors.index.json, each once.
Result<std::vector<std::string>> read_shard_names(std::string_view index_json);

}  // namespace quire::app
