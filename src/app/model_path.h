// From what a user calls MODEL to a path: a GGUF file, a Hugging Face folder, the name of a model in the cache folder,
// or a name on a hub, which is fetched when the cache lacks it. Nothing is opened here; weights/checkpoint does that.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "app/console.h"
#include "app/options.h"
#include "base/status.h"

namespace quire::app {

struct CachedModel {
  std::string name;  // what MODEL may be: the file name without .gguf, or the folder's name
  std::filesystem::path path;
  int64_t num_bytes = 0;
};

// By name, ascending; a folder that does not exist has none. Later parts of a split file are counted in its first.
std::vector<CachedModel> list_cached_models(const std::filesystem::path& folder);

// An existing path wins over a cached name, that over a name on a hub (ORG/NAME[:quant][@revision]). What is cached is
// taken as it is, without a question to the hub. The error lists the names that there are.
Result<std::filesystem::path> resolve_model(const std::string& model, const Environment& environment, Console& console);

}  // namespace quire::app
