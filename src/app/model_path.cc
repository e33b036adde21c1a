#include "app/model_path.h"

#include <algorithm>
#include <optional>

#include "app/hub_cache.h"
#include "app/hub_repo.h"
#include "app/pull.h"

namespace quire::app {

namespace fs = std::filesystem;

namespace {

int64_t folder_bytes(const fs::path& folder) {
  int64_t total = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.is_regular_file(error)) total += static_cast<int64_t>(entry.file_size(error));
  }
  return total;
}

struct SplitName {
  std::string base;
  bool is_first = true;
};

// "name-00002-of-00003" is a later part of "name".
SplitName parse_split_name(const std::string& stem) {
  constexpr size_t kSuffixLength = 15;  // "-00001-of-00003"
  if (stem.size() <= kSuffixLength) return {stem};
  const std::string suffix = stem.substr(stem.size() - kSuffixLength);
  const auto digits = [&](size_t begin) {
    return std::all_of(suffix.begin() + static_cast<long>(begin), suffix.begin() + static_cast<long>(begin) + 5,
                       [](unsigned char c) { return c >= '0' && c <= '9'; });
  };
  if (suffix[0] != '-' || suffix.substr(6, 4) != "-of-" || !digits(1) || !digits(10)) return {stem};
  return {stem.substr(0, stem.size() - kSuffixLength), suffix.substr(1, 5) == "00001"};
}

}  // namespace

std::vector<CachedModel> list_cached_models(const fs::path& folder) {
  std::vector<CachedModel> models;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const fs::path& path = entry.path();
    if (entry.is_directory(error)) {
      if (fs::exists(path / "config.json", error))
        models.push_back({path.filename().string(), path, folder_bytes(path)});
      continue;
    }
    if (path.extension() != ".gguf") continue;
    const SplitName name = parse_split_name(path.stem().string());
    const int64_t num_bytes = static_cast<int64_t>(entry.file_size(error));
    if (error) continue;  // a link to nowhere
    const auto known =
        std::find_if(models.begin(), models.end(), [&](const CachedModel& m) { return m.name == name.base; });
    if (known == models.end()) {
      models.push_back({name.base, path, num_bytes});
    } else {
      known->num_bytes += num_bytes;
      if (name.is_first) known->path = path;
    }
  }
  std::sort(models.begin(), models.end(), [](const CachedModel& a, const CachedModel& b) { return a.name < b.name; });
  return models;
}

Result<fs::path> resolve_model(const std::string& model, const Environment& environment, Console& console) {
  if (model.empty())
    return invalid_argument("MODEL is empty: give a GGUF file, a Hugging Face folder or a name from `quire models`");
  std::error_code error;
  if (fs::exists(model, error)) return fs::path(model);
  const std::vector<CachedModel> cached = list_cached_models(environment.cache_folder);
  std::string names;
  for (const CachedModel& candidate : cached) {
    if (candidate.name == model) return candidate.path;
    names += (names.empty() ? "" : ", ") + candidate.name;
  }
  const std::optional<HubName> hub_name = parse_hub_name(model);
  if (hub_name && !model.ends_with(".gguf") && !model.ends_with(".safetensors")) {
    const HubCache cache(environment.hub_cache_folder, hub_name->repo);
    if (std::optional<fs::path> path = cache.find_model(*hub_name)) return *path;
    Result<fs::path> path = pull_model(*hub_name, environment, console);
    if (path.is_ok()) return path;
    return path.status().with_context("there is no file or folder '" + model +
                                      "', and it cannot be fetched from the hub");
  }
  return not_found("there is no file, folder or cached model '" + model +
                   "'. Cached models: " + (names.empty() ? "none (`make model` fetches the default one)" : names));
}

}  // namespace quire::app
