// A file is a u64 length, a JSON header of that length, and the data. The header maps names to {dtype, shape,
// data_offsets}; "__metadata__" is free text. The index of a sharded model maps names to file names.
#include "weights/safetensors.h"

#include <sys/stat.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstring>
#include <map>

#include "weights/mapped_files.h"
#include "weights/messages.h"

namespace quire {

namespace {

namespace json = boost::json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of Hugging Face's reader
constexpr int64_t kMaxIndexBytes = 100'000'000;
constexpr size_t kMaxDimensions = 8;
constexpr uint64_t kMaxJsonDepth = 16;

struct SafetensorsType {
  std::string_view name;
  int64_t bits;
  std::optional<FormatId> format;
};

constexpr SafetensorsType kTypes[] = {
    {"F32", 32, FormatId::kF32},  {"F16", 16, FormatId::kF16},  {"BF16", 16, FormatId::kBF16},
    {"BOOL", 8, std::nullopt},    {"U8", 8, std::nullopt},      {"I8", 8, std::nullopt},
    {"F8_E4M3", 8, std::nullopt}, {"F8_E5M2", 8, std::nullopt}, {"F8_E8M0", 8, std::nullopt},
    {"F6_E2M3", 6, std::nullopt}, {"F6_E3M2", 6, std::nullopt}, {"F4", 4, std::nullopt},
    {"I16", 16, std::nullopt},    {"U16", 16, std::nullopt},    {"I32", 32, std::nullopt},
    {"U32", 32, std::nullopt},    {"I64", 64, std::nullopt},    {"U64", 64, std::nullopt},
    {"F64", 64, std::nullopt},    {"C64", 64, std::nullopt},
};

const SafetensorsType* find_type(std::string_view name) {
  for (const SafetensorsType& type : kTypes) {
    if (type.name == name) return &type;
  }
  return nullptr;
}

Result<json::value> parse_json(const std::string& name, std::string_view text) {
  json::parse_options options;
  options.max_depth = kMaxJsonDepth;
  json::error_code error;
  json::value value = json::parse(text, error, {}, options);
  if (error) return invalid_argument(name + " is not valid JSON (" + error.message() + "): the file is damaged");
  return value;
}

// Of the outermost object of a text that is valid JSON, names that stand twice included.
size_t num_members(std::string_view text) {
  size_t count = 0;
  size_t depth = 0;
  bool is_in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (is_in_string) {
      if (c == '\\') ++i;
      is_in_string = c != '"';
    } else if (c == '"') {
      is_in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      --depth;
    } else if (c == ':' && depth == 1) {
      ++count;
    }
  }
  return count;
}

// A whole number from 0 to 2^63 - 1.
std::optional<int64_t> as_count(const json::value& value) {
  if (value.is_int64() && value.get_int64() >= 0) return value.get_int64();
  return std::nullopt;  // Boost.JSON keeps as uint64 only what int64 does not hold
}

std::optional<std::vector<int64_t>> as_counts(const json::value* value, size_t max_count) {
  if (value == nullptr || !value->is_array() || value->get_array().size() > max_count) return std::nullopt;
  std::vector<int64_t> counts;
  for (const json::value& element : value->get_array()) {
    const std::optional<int64_t> count = as_count(element);
    if (!count.has_value()) return std::nullopt;
    counts.push_back(*count);
  }
  return counts;
}

class FileParser {
 public:
  FileParser(const std::string& name, std::span<const std::byte> bytes) : name_(name), bytes_(bytes) {}

  // The tensors in the order of their data.
  Result<std::vector<SourceTensor>> parse() {
    uint64_t header_bytes = 0;
    if (bytes_.size() < sizeof(header_bytes) + 2) return wrong_kind("too short for one");
    std::memcpy(&header_bytes, bytes_.data(), sizeof(header_bytes));
    const char first = static_cast<char>(bytes_[sizeof(header_bytes)]);
    if (header_bytes > kMaxHeaderBytes) return wrong_kind("its header would be absurdly long");
    if (first != '{') return wrong_kind("its header does not begin with '{'");
    if (header_bytes > bytes_.size() - sizeof(header_bytes)) {
      return error("the file has " + std::to_string(bytes_.size()) + " bytes, but its header alone has " +
                   std::to_string(header_bytes) + ": the download is incomplete; download it again");
    }
    data_ = bytes_.subspan(sizeof(header_bytes) + header_bytes);
    const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + sizeof(header_bytes), header_bytes);
    ASSIGN_OR_RETURN(const json::value header, parse_json(name_ + ": the header", text));
    if (!header.is_object()) return error("the header is not a JSON object");
    if (num_members(text) != header.get_object().size()) {
      return error("the header has two tensors of one name: the file is damaged");
    }
    for (const auto& [key, value] : header.get_object()) {
      if (key == "__metadata__") {
        if (!value.is_object()) return error("__metadata__ in the header is not an object");
        continue;
      }
      RETURN_IF_ERROR(parse_tensor({key.data(), key.size()}, value));
    }
    RETURN_IF_ERROR(check_coverage());
    return std::move(tensors_);
  }

 private:
  Status error(const std::string& what) const { return invalid_argument(name_ + ": " + what); }
  Status wrong_kind(const std::string& why) const {
    const std::string kind = describe_foreign_file(bytes_);
    return error(kind.empty() || kind == "a safetensors file" ? "this is not a safetensors file (" + why + ")"
                                                              : "this is not a safetensors file but " + kind);
  }

  Status parse_tensor(std::string_view tensor_name, const json::value& value) {
    const std::string tensor = "tensor " + quoted(tensor_name);
    if (!value.is_object()) return error(tensor + " is not described by a JSON object");
    const json::object& fields = value.get_object();

    const json::value* dtype = fields.if_contains("dtype");
    if (dtype == nullptr || !dtype->is_string()) return error(tensor + " has no dtype");
    const std::string_view type_name(dtype->get_string().data(), dtype->get_string().size());
    const SafetensorsType* type = find_type(type_name);
    if (type == nullptr) return error(tensor + " has the unknown dtype " + quoted(type_name));

    const auto sizes = as_counts(fields.if_contains("shape"), kMaxDimensions);
    if (!sizes.has_value()) {
      return error(tensor + " has no shape of at most " + std::to_string(kMaxDimensions) + " counts");
    }
    const auto offsets = as_counts(fields.if_contains("data_offsets"), 2);
    if (!offsets.has_value() || offsets->size() != 2) {
      return error(tensor + " has no data_offsets of two counts");
    }
    const int64_t begin = (*offsets)[0];
    const int64_t end = (*offsets)[1];
    if (begin > end) {
      return error(tensor + " ends before it begins: data_offsets [" + std::to_string(begin) + ", " +
                   std::to_string(end) + "]");
    }

    int64_t num_bits = type->bits;
    for (const int64_t size : *sizes) {
      if (__builtin_mul_overflow(num_bits, size, &num_bits)) {
        return error(tensor + " has absurd sizes " + describe_sizes(*sizes));
      }
    }
    if (num_bits % 8 != 0 || num_bits / 8 != end - begin) {
      return error(tensor + " of " + std::string(type_name) + describe_sizes(*sizes) + " should have " +
                   std::to_string(num_bits / 8) + " bytes, but its data_offsets give it " +
                   std::to_string(end - begin));
    }
    extents_.push_back({begin, end, tensors_.size()});
    // Bytes come later, when all offsets are known to lie in the file.
    tensors_.push_back({std::string(tensor_name), type->format, std::string(type_name), *sizes, {}});
    return ok_status();
  }

  // Tensors follow one another without holes, from the first byte of the data to the last.
  Status check_coverage() {
    const auto last = std::max_element(extents_.begin(), extents_.end(),
                                       [](const Extent& a, const Extent& b) { return a.end < b.end; });
    if (last != extents_.end() && last->end > static_cast<int64_t>(data_.size())) {
      const uint64_t header_end = bytes_.size() - data_.size();
      return error("the file has " + std::to_string(bytes_.size()) + " bytes, but tensor " +
                   quoted(tensors_[last->index].name) + " ends at byte " +
                   std::to_string(header_end + static_cast<uint64_t>(last->end)) +
                   ": the download is incomplete; download it again");
    }
    std::sort(extents_.begin(), extents_.end(),
              [](const Extent& a, const Extent& b) { return a.begin != b.begin ? a.begin < b.begin : a.end < b.end; });
    std::vector<SourceTensor> ordered;
    ordered.reserve(tensors_.size());
    int64_t position = 0;
    for (const Extent& extent : extents_) {
      SourceTensor& tensor = tensors_[extent.index];
      if (extent.begin != position) {
        return error("tensor " + quoted(tensor.name) + " begins at byte " + std::to_string(extent.begin) +
                     " of the data, where the tensors before it end at " + std::to_string(position) +
                     ": the header leaves a hole or lets tensors overlap");
      }
      position = extent.end;
      tensor.data = data_.subspan(static_cast<size_t>(extent.begin), static_cast<size_t>(extent.end - extent.begin));
      ordered.push_back(std::move(tensor));
    }
    if (position != static_cast<int64_t>(data_.size())) {
      return error("after the last tensor " + std::to_string(static_cast<int64_t>(data_.size()) - position) +
                   " bytes are left over: the file is damaged");
    }
    tensors_ = std::move(ordered);
    return ok_status();
  }

  struct Extent {
    int64_t begin;
    int64_t end;
    size_t index;
  };

  const std::string& name_;
  std::span<const std::byte> bytes_;
  std::span<const std::byte> data_;
  std::vector<SourceTensor> tensors_;
  std::vector<Extent> extents_;
};

bool exists(const std::string& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0;
}

// The shards that an index names, and the shard of each tensor.
struct ShardIndex {
  std::vector<std::string> files;
  std::map<std::string, std::string, std::less<>> file_of_tensor;
};

Result<ShardIndex> read_index(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kMaxIndexBytes));
  ASSIGN_OR_RETURN(const json::value value, parse_json(path, text));
  const json::value* map = value.is_object() ? value.get_object().if_contains("weight_map") : nullptr;
  if (map == nullptr || !map->is_object()) return invalid_argument(path + " has no weight_map");
  ShardIndex index;
  for (const auto& [tensor, file] : map->get_object()) {
    if (!file.is_string()) return invalid_argument(path + ": the file of tensor " + quoted(tensor) + " is no name");
    std::string name(file.get_string().data(), file.get_string().size());
    // A plain name: an index must not lead out of its folder.
    if (name.empty() || name == "." || name == ".." || name.find_first_of(std::string_view("/\\\0", 3)) != name.npos) {
      return invalid_argument(path + ": " + quoted(name) + " is not the name of a file in the same folder");
    }
    if (std::find(index.files.begin(), index.files.end(), name) == index.files.end()) index.files.push_back(name);
    index.file_of_tensor.emplace(std::string(tensor.data(), tensor.size()), std::move(name));
  }
  std::sort(index.files.begin(), index.files.end());
  return index;
}

}  // namespace

Result<std::unique_ptr<SafetensorsFiles>> SafetensorsFiles::open_folder(const std::string& folder) {
  const std::string single_path = folder + "/model.safetensors";
  const std::string index_path = folder + "/model.safetensors.index.json";
  const bool is_single = exists(single_path);
  if (!is_single && !exists(index_path)) {
    return not_found("there is neither model.safetensors nor model.safetensors.index.json in " + folder);
  }
  ShardIndex index;
  if (is_single) {
    index.files.push_back("model.safetensors");
  } else {
    ASSIGN_OR_RETURN(index, read_index(index_path));
  }

  std::unique_ptr<SafetensorsFiles> result(new SafetensorsFiles());
  auto mappings = std::make_shared<MappedFiles>();
  for (const std::string& name : index.files) {
    const std::string path = folder + "/" + name;
    if (!exists(path))
      return not_found("the model's index names the file " + quoted(name) + ", which is not in " + folder);
    ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, MappedFile::open(path));
    ASSIGN_OR_RETURN(std::vector<SourceTensor> tensors, FileParser(path, file->bytes()).parse());
    for (SourceTensor& tensor : tensors) {
      const auto place = index.file_of_tensor.find(tensor.name);
      if (place != index.file_of_tensor.end() && place->second != name) continue;  // the index takes another copy
      result->tensors_.push_back(std::move(tensor));
    }
    mappings->files.push_back(std::move(file));
  }
  result->mappings_ = mappings;
  result->owner_ = mappings;
  RETURN_IF_ERROR(result->index_tensors());

  std::vector<std::string> missing;
  for (const auto& [tensor, file] : index.file_of_tensor) {
    if (result->find(tensor) == nullptr) missing.push_back(quoted(tensor) + " of " + file);
  }
  if (!missing.empty()) {
    return invalid_argument(index_path +
                            " names tensors that their files do not have: " + join_some(missing, ", ", 10));
  }
  return result;
}

Result<std::unique_ptr<SafetensorsFiles>> SafetensorsFiles::parse(const std::string& name,
                                                                  std::span<const std::byte> bytes,
                                                                  std::shared_ptr<const void> owner) {
  std::unique_ptr<SafetensorsFiles> result(new SafetensorsFiles());
  ASSIGN_OR_RETURN(result->tensors_, FileParser(name, bytes).parse());
  result->owner_ = std::move(owner);
  RETURN_IF_ERROR(result->index_tensors());
  return result;
}

Status SafetensorsFiles::index_tensors() {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!tensor_index_.emplace(tensors_[i].name, i).second) {
      return invalid_argument("the tensor " + quoted(tensors_[i].name) + " stands in more than one file of the model");
    }
  }
  return ok_status();
}

const SourceTensor* SafetensorsFiles::find(std::string_view name) const {
  const auto found = tensor_index_.find(name);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

Status SafetensorsFiles::check_unchanged() const {
  return mappings_ == nullptr ? ok_status() : mappings_->check_unchanged();
}

void SafetensorsFiles::will_need(std::span<const std::byte> part) const {
  if (mappings_ != nullptr) mappings_->will_need(part);
}

void SafetensorsFiles::done_with(std::span<const std::byte> part) const {
  if (mappings_ != nullptr) mappings_->done_with(part);
}

}  // namespace quire
