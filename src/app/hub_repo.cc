#include "app/hub_repo.h"

#include <algorithm>
#include <boost/json.hpp>
#include <map>
#include <set>

namespace quire::app {

namespace {

constexpr size_t kMaxNameBytes = 96;
constexpr size_t kMaxPathBytes = 1024;
constexpr size_t kMaxListedNames = 30;

// What is taken from a repository of many quantizations when nobody says which: small enough for most machines first.
constexpr const char* kPreferredQuants[] = {"Q4_K_M", "Q4_K_S", "Q4_1", "Q4_0", "Q5_K_M",
                                            "Q8_0",   "Q6_K",   "F16",  "BF16", "F32"};

// Beside weights: whatever tells how a model is built, tokenized, prompted and pooled.
constexpr const char* kSmallFiles[] = {"config.json",
                                       "generation_config.json",
                                       "tokenizer.json",
                                       "tokenizer_config.json",
                                       "special_tokens_map.json",
                                       "added_tokens.json",
                                       "vocab.json",
                                       "vocab.txt",
                                       "merges.txt",
                                       "tokenizer.model",
                                       "spiece.model",
                                       "chat_template.jinja",
                                       "chat_template.json",
                                       "modules.json",
                                       "config_sentence_transformers.json",
                                       "1_Pooling/config.json"};
constexpr const char* kSafetensorsIndex = "model.safetensors.index.json";

bool is_name_part(std::string_view text) {
  if (text.empty() || text.size() > kMaxNameBytes || text.front() == '.' || text.front() == '-' || text.back() == '.')
    return false;
  if (text.find("..") != std::string_view::npos) return false;
  return std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
  });
}

std::string upper(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return result;
}

bool is_word(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// "MODEL-Q4_K_M.GGUF" names Q4_K_M and not Q4_K.
bool names_quant(std::string_view upper_path, std::string_view upper_quant) {
  for (size_t at = upper_path.find(upper_quant); at != std::string_view::npos;
       at = upper_path.find(upper_quant, at + 1)) {
    const size_t end = at + upper_quant.size();
    if ((at == 0 || !is_word(upper_path[at - 1])) && (end == upper_path.size() || !is_word(upper_path[end])))
      return true;
  }
  return false;
}

// A GGUF model: a file, or the parts of one.
struct GgufModel {
  std::vector<HubFile> parts;  // by path
  int num_parts = 1;           // that there should be
};

bool all_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// "x-00002-of-00003.gguf" → "x", 3.
std::string split_base(std::string_view path, int* num_parts) {
  *num_parts = 1;
  const std::string_view stem = path.substr(0, path.size() - 5);
  if (stem.size() < 15) return std::string(stem);
  const std::string_view suffix = stem.substr(stem.size() - 15);
  if (suffix[0] != '-' || suffix.substr(6, 4) != "-of-" || !all_digits(suffix.substr(1, 5)) ||
      !all_digits(suffix.substr(10)))
    return std::string(stem);
  *num_parts = std::stoi(std::string(suffix.substr(10)));
  return std::string(stem.substr(0, stem.size() - 15));
}

bool ends_with_ignoring_case(std::string_view text, std::string_view upper_suffix) {
  return text.size() >= upper_suffix.size() && upper(text.substr(text.size() - upper_suffix.size())) == upper_suffix;
}

std::map<std::string, GgufModel> find_gguf_models(std::span<const HubFile> files) {
  std::map<std::string, GgufModel> models;
  for (const HubFile& file : files) {
    if (!ends_with_ignoring_case(file.path, ".GGUF")) continue;
    const std::string name = upper(file.path.substr(file.path.rfind('/') + 1));
    // Parts of other things: vision projectors, importance matrices.
    if (name.find("MMPROJ") != std::string::npos || name.find("IMATRIX") != std::string::npos) continue;
    int num_parts = 1;
    GgufModel& model = models[split_base(file.path, &num_parts)];
    model.num_parts = num_parts;
    model.parts.push_back(file);
  }
  for (auto& [base, model] : models) {
    std::sort(model.parts.begin(), model.parts.end(),
              [](const HubFile& a, const HubFile& b) { return a.path < b.path; });
  }
  return models;
}

std::string list_names(const std::map<std::string, GgufModel>& models) {
  std::string text;
  size_t count = 0;
  for (const auto& [base, model] : models) {
    if (++count > kMaxListedNames) return text + ", …";
    text += (text.empty() ? "" : ", ") + base.substr(base.rfind('/') + 1);
  }
  return text;
}

// Of several models of that quantization the plainest name: "x-Q4_K_M" before "x-UD-Q4_K_M".
const std::pair<const std::string, GgufModel>* find_quant(const std::map<std::string, GgufModel>& models,
                                                          std::string_view quant) {
  const std::pair<const std::string, GgufModel>* best = nullptr;
  for (const auto& entry : models) {
    if (names_quant(upper(entry.first), upper(quant)) && (best == nullptr || entry.first.size() < best->first.size()))
      best = &entry;
  }
  return best;
}

Result<HubChoice> choose_gguf(const HubName& name, const std::map<std::string, GgufModel>& models) {
  const std::pair<const std::string, GgufModel>* found = nullptr;
  if (!name.quant.empty()) {
    for (const auto& entry : models) {
      const std::string& path = entry.second.parts.front().path;
      if (path == name.quant || path == name.quant + ".gguf" || entry.first == name.quant) found = &entry;
    }
    if (found == nullptr) found = find_quant(models, name.quant);
    if (found == nullptr) {
      return not_found(name.repo + " has no GGUF file of '" + name.quant + "'. It has: " + list_names(models) +
                       ". Write " + name.repo + ":QUANT with one of them");
    }
  } else if (models.size() == 1) {
    found = &*models.begin();
  } else {
    for (const char* quant : kPreferredQuants) {
      if (found == nullptr) found = find_quant(models, quant);
    }
    if (found == nullptr) {
      return invalid_argument(name.repo + " has several GGUF files: " + list_names(models) + ". Write " + name.repo +
                              ":QUANT with one of them");
    }
  }
  const GgufModel& model = found->second;
  if (static_cast<int>(model.parts.size()) != model.num_parts) {
    return not_found(name.repo + " has only " + std::to_string(model.parts.size()) + " of the " +
                     std::to_string(model.num_parts) + " parts of " + found->first);
  }
  return HubChoice{model.parts, model.parts.front().path, ""};
}

}  // namespace

std::optional<HubName> parse_hub_name(std::string_view text) {
  HubName name;
  if (const size_t at = text.rfind('@'); at != std::string_view::npos) {
    name.revision = text.substr(at + 1);
    text = text.substr(0, at);
    const bool is_plain = std::all_of(name.revision.begin(), name.revision.end(), [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.' || c == '/';
    });
    if (name.revision.empty() || !is_plain || !is_safe_hub_path(name.revision)) return std::nullopt;
  }
  if (const size_t colon = text.find(':'); colon != std::string_view::npos) {
    name.quant = text.substr(colon + 1);
    text = text.substr(0, colon);
    if (name.quant.empty() || !is_safe_hub_path(name.quant)) return std::nullopt;
  }
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos || !is_name_part(text.substr(0, slash)) || !is_name_part(text.substr(slash + 1)))
    return std::nullopt;
  name.repo = text;
  return name;
}

bool is_safe_hub_path(std::string_view path) {
  if (path.empty() || path.size() > kMaxPathBytes || path.front() == '/') return false;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == ".." || part.size() > 255) return false;
    begin = end + 1;
  }
  return std::all_of(path.begin(), path.end(), [](unsigned char c) { return c >= 0x20 && c != 0x7f && c != '\\'; });
}

Result<HubChoice> choose_hub_files(const HubName& name, std::span<const HubFile> files) {
  const std::map<std::string, GgufModel> gguf_models = find_gguf_models(files);
  const auto find = [&](std::string_view path) {
    return std::find_if(files.begin(), files.end(), [&](const HubFile& file) { return file.path == path; });
  };
  std::vector<HubFile> weights;
  const bool has_index = find(kSafetensorsIndex) != files.end();
  for (const HubFile& file : files) {
    if (file.path.find('/') == std::string::npos && file.path.ends_with(".safetensors")) weights.push_back(file);
  }
  const bool has_folder = find("config.json") != files.end() && (has_index || !weights.empty());
  if (!name.quant.empty() || !has_folder) {
    if (!gguf_models.empty()) return choose_gguf(name, gguf_models);
    if (has_folder) {
      return not_found(name.repo + " has no GGUF files, so there is no '" + name.quant + "' to choose: write " +
                       name.repo + " for its safetensors");
    }
    return not_found(name.repo +
                     " holds no model that can be loaded: neither GGUF files nor config.json with safetensors");
  }

  HubChoice choice;
  for (const char* path : kSmallFiles) {
    if (const auto file = find(path); file != files.end()) choice.files.push_back(*file);
  }
  if (has_index) {
    choice.index_path = kSafetensorsIndex;
    choice.files.push_back(*find(kSafetensorsIndex));
  } else if (const auto whole = find("model.safetensors"); whole != files.end()) {
    choice.files.push_back(*whole);
  } else {
    return not_found(name.repo + " has safetensors, but none is called model.safetensors: its form is not known");
  }
  return choice;
}

Result<std::vector<std::string>> read_shard_names(std::string_view index_json) {
  namespace json = boost::json;
  boost::system::error_code wrong;
  const json::value index = json::parse(json::string_view(index_json.data(), index_json.size()), wrong);
  const json::value* map = wrong || !index.is_object() ? nullptr : index.get_object().if_contains("weight_map");
  if (map == nullptr || !map->is_object())
    return invalid_argument(std::string(kSafetensorsIndex) + " has no weight_map");
  std::set<std::string> names;
  for (const auto& entry : map->get_object()) {
    if (!entry.value().is_string() || !is_safe_hub_path(entry.value().get_string()))
      return invalid_argument(std::string(kSafetensorsIndex) + " names a file that is none");
    names.emplace(entry.value().get_string());
  }
  return std::vector<std::string>(names.begin(), names.end());
}

}  // namespace quire::app
