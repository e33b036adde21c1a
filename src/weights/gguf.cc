// Opening single and split files, and lookups. The bytes themselves are taken apart by gguf_part.cc; the typed access
// to metadata is in gguf_metadata.cc.
#include "weights/gguf.h"

#include <cstdio>

#include "weights/gguf_part.h"
#include "weights/mapped_files.h"
#include "weights/messages.h"

namespace quire {

namespace {

// What the metadata of a part say about the split. A file that is not split is part 0 of 1.
struct SplitInfo {
  int64_t index = 0;
  int64_t count = 1;
  std::optional<int64_t> num_tensors;  // of all parts together
};

// "folder/name-00002-of-00003.gguf" taken apart.
struct SplitName {
  std::string prefix;  // "folder/name"
  int64_t number = 0;  // 2
  int64_t count = 0;   // 3

  std::string part(int64_t part_number) const {
    char suffix[64];
    std::snprintf(suffix, sizeof(suffix), "-%05lld-of-%05lld.gguf", static_cast<long long>(part_number),
                  static_cast<long long>(count));
    return prefix + suffix;
  }
};

std::optional<SplitName> parse_split_name(const std::string& path) {
  constexpr std::string_view kPattern = "-ddddd-of-ddddd.gguf";
  if (path.size() <= kPattern.size()) return std::nullopt;
  const std::string_view suffix = std::string_view(path).substr(path.size() - kPattern.size());
  for (size_t i = 0; i < kPattern.size(); ++i) {
    const bool fits = kPattern[i] == 'd' ? suffix[i] >= '0' && suffix[i] <= '9' : suffix[i] == kPattern[i];
    if (!fits) return std::nullopt;
  }
  return SplitName{path.substr(0, path.size() - kPattern.size()), std::stoll(std::string(suffix.substr(1, 5))),
                   std::stoll(std::string(suffix.substr(10, 5)))};
}

const GgufValue* find_entry(const GgufPart& part, std::string_view key) {
  for (const GgufEntry& entry : part.entries) {
    if (entry.key == key) return &entry.value;
  }
  return nullptr;
}

Result<SplitInfo> split_info(const std::string& name, const GgufPart& part) {
  SplitInfo info;
  const auto read = [&](std::string_view key, auto& target) -> Status {
    const GgufValue* value = find_entry(part, key);
    if (value == nullptr) return ok_status();
    const std::optional<int64_t> number = gguf_integer(*value);
    if (!number.has_value() || *number < 0) {
      return invalid_argument(name + ": " + std::string(key) + " is not a count: the file is damaged");
    }
    target = *number;
    return ok_status();
  };
  RETURN_IF_ERROR(read("split.no", info.index));
  RETURN_IF_ERROR(read("split.count", info.count));
  RETURN_IF_ERROR(read("split.tensors.count", info.num_tensors));
  if (info.count == 0) info.count = 1;  // some writers leave 0 in a file that is whole
  if (info.index >= info.count) {
    return invalid_argument(name + ": says that it is part " + std::to_string(info.index + 1) + " of " +
                            std::to_string(info.count) + ": the file is damaged");
  }
  return info;
}

std::string part_of(const SplitInfo& info) {
  return "part " + std::to_string(info.index + 1) + " of " + std::to_string(info.count);
}

}  // namespace

Result<std::unique_ptr<GgufFile>> GgufFile::open(const std::string& path) {
  auto mappings = std::make_shared<MappedFiles>();
  std::vector<Part> parts;
  std::vector<GgufPart> parsed;
  const auto add = [&](const std::string& part_path) -> Status {
    ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, MappedFile::open(part_path));
    ASSIGN_OR_RETURN(GgufPart part, parse_gguf_part(part_path, file->bytes()));
    parsed.push_back(std::move(part));
    parts.push_back({part_path, file->bytes()});
    mappings->files.push_back(std::move(file));
    return ok_status();
  };

  RETURN_IF_ERROR(add(path));
  ASSIGN_OR_RETURN(const SplitInfo info, split_info(path, parsed.front()));
  if (info.count > 1) {
    const std::optional<SplitName> name = parse_split_name(path);
    if (!name.has_value() || name->count != info.count || name->number != info.index + 1) {
      return invalid_argument(
          path + ": this is " + part_of(info) +
          " of a split model, but its name does not end like -00001-of-00003.gguf to match: give the "
          "parts their original names");
    }
    const std::string first_path = name->part(1);
    if (info.index != 0) {
      parts.clear();
      parsed.clear();
      mappings->files.clear();
    }
    for (int64_t number = info.index == 0 ? 2 : 1; number <= name->count; ++number) {
      const Status status = add(name->part(number));
      if (status.code() == StatusCode::kNotFound) {
        return not_found(path + " is " + part_of(info) + " of a split model, but part " + std::to_string(number) +
                         " is missing: there is no file " + name->part(number));
      }
      RETURN_IF_ERROR(status);
    }
  }

  ASSIGN_OR_RETURN(std::unique_ptr<GgufFile> file, join(parts, std::move(parsed)));
  file->mappings_ = mappings;
  file->owner_ = mappings;
  return file;
}

Result<std::unique_ptr<GgufFile>> GgufFile::parse(std::span<const Part> parts, std::shared_ptr<const void> owner) {
  CHECK(!parts.empty());
  std::vector<GgufPart> parsed;
  for (const Part& part : parts) {
    ASSIGN_OR_RETURN(GgufPart one, parse_gguf_part(part.name, part.bytes));
    parsed.push_back(std::move(one));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<GgufFile> file, join(parts, std::move(parsed)));
  file->owner_ = std::move(owner);
  return file;
}

Result<std::unique_ptr<GgufFile>> GgufFile::join(std::span<const Part> parts, std::vector<GgufPart> parsed) {
  std::unique_ptr<GgufFile> file(new GgufFile());
  file->name_ = parts.front().name;
  file->version_ = parsed.front().version;
  std::optional<int64_t> num_tensors;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string& name = parts[i].name;
    ASSIGN_OR_RETURN(const SplitInfo info, split_info(name, parsed[i]));
    if (info.count != static_cast<int64_t>(parts.size()) || info.index != static_cast<int64_t>(i)) {
      return invalid_argument(name + ": this should be part " + std::to_string(i + 1) + " of " +
                              std::to_string(parts.size()) + ", but it says that it is " + part_of(info) +
                              ": parts of different models are mixed up, or a file was renamed");
    }
    if (info.count > 1 && info.num_tensors.has_value()) {
      if (num_tensors.has_value() && *num_tensors != *info.num_tensors) {
        return invalid_argument(name +
                                ": its split.tensors.count differs from the other parts': parts of different "
                                "models are mixed up");
      }
      num_tensors = info.num_tensors;
    }
    for (SourceTensor& tensor : parsed[i].tensors) file->tensors_.push_back(std::move(tensor));
  }
  if (num_tensors.has_value() && *num_tensors != static_cast<int64_t>(file->tensors_.size())) {
    return invalid_argument(file->name_ + ": the parts of this model should have " + std::to_string(*num_tensors) +
                            " tensors, but they have " + std::to_string(file->tensors_.size()) +
                            ": a part is damaged or of another model");
  }

  file->entries_ = std::move(parsed.front().entries);
  for (size_t i = 0; i < file->entries_.size(); ++i) file->entry_index_.emplace(file->entries_[i].key, i);
  for (size_t i = 0; i < file->tensors_.size(); ++i) {
    const std::string& name = file->tensors_[i].name;
    if (!file->tensor_index_.emplace(name, i).second) {
      return invalid_argument(file->name_ + ": the tensor " + quoted(name) + " stands there twice");
    }
  }
  return file;
}

const GgufValue* GgufFile::find_value(std::string_view key) const {
  const auto found = entry_index_.find(key);
  return found == entry_index_.end() ? nullptr : &entries_[found->second].value;
}

const SourceTensor* GgufFile::find(std::string_view name) const {
  const auto found = tensor_index_.find(name);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

Status GgufFile::check_unchanged() const {
  return mappings_ == nullptr ? ok_status() : mappings_->check_unchanged();
}

void GgufFile::will_need(std::span<const std::byte> part) const {
  if (mappings_ != nullptr) mappings_->will_need(part);
}

void GgufFile::done_with(std::span<const std::byte> part) const {
  if (mappings_ != nullptr) mappings_->done_with(part);
}

}  // namespace quire
