// Two passes: the first reads the header in order (entries, then tensor descriptions) through a cursor that never
// leaves the file; the second, once the start of the data is known, gives each tensor its bytes. Nothing is reserved
// or multiplied before the count has been compared with what the rest of the file can hold.
#include "weights/gguf_part.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <unordered_set>

#include "weights/ggml_types.h"
#include "weights/messages.h"

namespace quire {

static_assert(std::endian::native == std::endian::little, "values are read as the file has them");

namespace {

constexpr uint64_t kMaxKeyBytes = 65535;  // as the specification of GGUF says
constexpr uint32_t kMaxDimensions = 4;
constexpr int kMaxArrayDepth = 4;
constexpr uint32_t kDefaultAlignment = 32;
constexpr uint32_t kMinAlignment = 8;  // the specification: a multiple of 8
constexpr uint32_t kMaxAlignment = 1u << 20;

struct TensorDescription {
  std::string_view name;
  uint32_t type = 0;
  std::vector<int64_t> sizes;  // innermost first, as in the file
  uint64_t offset = 0;         // from the start of the data
};

class PartParser {
 public:
  PartParser(const std::string& name, std::span<const std::byte> bytes) : name_(name), bytes_(bytes) {}

  Result<GgufPart> parse() {
    uint64_t num_tensors = 0;
    uint64_t num_entries = 0;
    RETURN_IF_ERROR(parse_header(num_tensors, num_entries));
    for (uint64_t i = 0; i < num_entries; ++i) RETURN_IF_ERROR(parse_entry(i));
    RETURN_IF_ERROR(find_alignment());
    std::vector<TensorDescription> descriptions;
    descriptions.reserve(num_tensors);
    for (uint64_t i = 0; i < num_tensors; ++i) {
      ASSIGN_OR_RETURN(TensorDescription description, parse_description(i));
      descriptions.push_back(std::move(description));
    }
    RETURN_IF_ERROR(place_tensors(descriptions));
    return std::move(part_);
  }

 private:
  // ---- The cursor --------------------------------------------------------------------------------------------------

  uint64_t remaining() const { return bytes_.size() - offset_; }

  Status error(const std::string& what) const { return invalid_argument(name_ + ": " + what); }
  Status ends_inside(const std::string& what) const {
    return error("the file ends inside " + what + ", at byte " + std::to_string(offset_) + " of " +
                 std::to_string(bytes_.size()) + ": it is incomplete or damaged; download it again");
  }

  template <typename T>
  Status read(T& value, const char* what) {
    if (remaining() < sizeof(T)) return ends_inside(what);
    std::memcpy(&value, bytes_.data() + offset_, sizeof(T));
    offset_ += sizeof(T);
    return ok_status();
  }

  Status read_string(std::string_view& text, const char* what, uint64_t max_bytes) {
    uint64_t length = 0;
    RETURN_IF_ERROR(read(length, what));
    if (length > max_bytes) {
      return error(std::string(what) + " at byte " + std::to_string(offset_) + " claims " + std::to_string(length) +
                   " bytes; at most " + std::to_string(max_bytes) + " are allowed: the file is damaged");
    }
    if (length > remaining()) return ends_inside(what);
    text = {reinterpret_cast<const char*>(bytes_.data()) + offset_, static_cast<size_t>(length)};
    offset_ += length;
    return ok_status();
  }

  // ---- Header and metadata -----------------------------------------------------------------------------------------

  Status parse_header(uint64_t& num_tensors, uint64_t& num_entries) {
    if (bytes_.size() < 4 || std::memcmp(bytes_.data(), "GGUF", 4) != 0) {
      const std::string kind = describe_foreign_file(bytes_);
      return error(kind.empty() ? "this is not a GGUF file (it does not begin with the letters GGUF)"
                                : "this is not a GGUF file but " + kind);
    }
    offset_ = 4;
    uint32_t version = 0;
    RETURN_IF_ERROR(read(version, "the header"));
    if (version == 1) {
      return unimplemented(name_ + ": GGUF version 1 is not supported; get the model as version 2 or 3");
    }
    if (version != 0 && (version & 0xffffu) == 0) {
      return unimplemented(name_ + ": a big-endian GGUF file is not supported; get the little-endian one");
    }
    if (version != 2 && version != 3) {
      return unimplemented(name_ + ": GGUF version " + std::to_string(version) +
                           " is not supported, only 2 and 3; a newer Quire may read it");
    }
    part_.version = static_cast<int>(version);
    RETURN_IF_ERROR(read(num_tensors, "the header"));
    RETURN_IF_ERROR(read(num_entries, "the header"));
    // An entry has at least a length, a type and a byte; a tensor a length, a number of dimensions, a type, an offset.
    RETURN_IF_ERROR(check_count("metadata entries", num_entries, 8 + 4 + 1));
    return check_count("tensors", num_tensors, 8 + 4 + 4 + 8);
  }

  Status check_count(const std::string& what, uint64_t count, uint64_t min_bytes_each) const {
    if (count <= remaining() / min_bytes_each) return ok_status();
    return error("the file claims " + std::to_string(count) + " " + what + ", more than its " +
                 std::to_string(bytes_.size()) + " bytes can hold: it is incomplete or damaged");
  }

  Status parse_entry(uint64_t index) {
    GgufEntry entry;
    RETURN_IF_ERROR(read_string(entry.key, "a metadata key", kMaxKeyBytes));
    if (entry.key.empty()) return error("metadata entry " + std::to_string(index) + " has an empty key");
    uint32_t type = 0;
    RETURN_IF_ERROR(read(type, "a metadata entry"));
    const Status status = parse_value(type, entry.value);
    if (!status.is_ok()) {
      return Status(status.code(), status.message() + " (in the metadata value of " + quoted(entry.key) + ")");
    }
    if (!keys_.insert(entry.key).second) return error("the metadata key " + quoted(entry.key) + " stands there twice");
    part_.entries.push_back(entry);
    return ok_status();
  }

  Status check_type(uint32_t type) const {
    if (type <= static_cast<uint32_t>(GgufType::kF64)) return ok_status();
    return error("unknown metadata type " + std::to_string(type) + ": the file is damaged or newer than this program");
  }

  Status parse_value(uint32_t type, GgufValue& value) {
    RETURN_IF_ERROR(check_type(type));
    value.type = static_cast<GgufType>(type);
    if (value.type == GgufType::kString) {
      std::string_view text;
      RETURN_IF_ERROR(read_string(text, "a metadata string", std::numeric_limits<uint64_t>::max()));
      value.count = static_cast<int64_t>(text.size());
      value.data = std::as_bytes(std::span(text.data(), text.size()));
      return ok_status();
    }
    if (value.type == GgufType::kArray) return parse_array(value, 1);
    value.count = 1;
    return take_scalars(value.type, 1, value.data);
  }

  Status parse_array(GgufValue& value, int depth) {
    if (depth > kMaxArrayDepth) return error("arrays are nested more than " + std::to_string(kMaxArrayDepth) + " deep");
    uint32_t element_type = 0;
    uint64_t count = 0;
    RETURN_IF_ERROR(read(element_type, "a metadata array"));
    RETURN_IF_ERROR(check_type(element_type));
    RETURN_IF_ERROR(read(count, "a metadata array"));
    value.element_type = static_cast<GgufType>(element_type);
    const uint64_t start = offset_;
    switch (value.element_type) {
      case GgufType::kString:
        RETURN_IF_ERROR(check_count("strings in an array", count, 8));
        for (uint64_t i = 0; i < count; ++i) {
          std::string_view text;
          RETURN_IF_ERROR(read_string(text, "a metadata string", std::numeric_limits<uint64_t>::max()));
        }
        break;
      case GgufType::kArray:
        RETURN_IF_ERROR(check_count("arrays in an array", count, 4 + 8));
        for (uint64_t i = 0; i < count; ++i) {
          GgufValue inner;
          RETURN_IF_ERROR(parse_array(inner, depth + 1));
        }
        break;
      default: {
        std::span<const std::byte> elements;
        RETURN_IF_ERROR(take_scalars(value.element_type, count, elements));
      }
    }
    value.count = static_cast<int64_t>(count);  // it fits: every element took at least one byte of the file
    value.data = bytes_.subspan(start, offset_ - start);
    return ok_status();
  }

  Status take_scalars(GgufType type, uint64_t count, std::span<const std::byte>& data) {
    const auto size = static_cast<uint64_t>(gguf_scalar_bytes(type));
    if (count > remaining() / size) return ends_inside("a metadata value");
    data = bytes_.subspan(offset_, count * size);
    offset_ += count * size;
    if (type != GgufType::kBool) return ok_status();
    const bool are_bools = std::all_of(data.begin(), data.end(), [](std::byte byte) { return byte <= std::byte{1}; });
    return are_bools ? ok_status() : error("a bool is neither 0 nor 1: the file is damaged");
  }

  Status find_alignment() {
    for (const GgufEntry& entry : part_.entries) {
      if (entry.key != "general.alignment") continue;
      if (entry.value.type != GgufType::kU32) {
        return error("general.alignment is of type " + std::string(gguf_type_name(entry.value.type)) + ", not u32");
      }
      std::memcpy(&alignment_, entry.value.data.data(), sizeof(alignment_));
      if (!std::has_single_bit(alignment_) || alignment_ < kMinAlignment || alignment_ > kMaxAlignment) {
        return error("general.alignment is " + std::to_string(alignment_) + "; it must be a power of two from " +
                     std::to_string(kMinAlignment) + " to " + std::to_string(kMaxAlignment));
      }
    }
    return ok_status();
  }

  // ---- Tensors -----------------------------------------------------------------------------------------------------

  Result<TensorDescription> parse_description(uint64_t index) {
    TensorDescription tensor;
    RETURN_IF_ERROR(read_string(tensor.name, "a tensor's name", kMaxKeyBytes));
    if (tensor.name.empty()) return error("tensor " + std::to_string(index) + " has no name");
    uint32_t num_dimensions = 0;
    RETURN_IF_ERROR(read(num_dimensions, "a tensor's description"));
    if (num_dimensions > kMaxDimensions) {
      return error("tensor " + quoted(tensor.name) + " has " + std::to_string(num_dimensions) +
                   " dimensions; at most " + std::to_string(kMaxDimensions) + " are allowed");
    }
    tensor.sizes.resize(num_dimensions);
    for (int64_t& size : tensor.sizes) {
      uint64_t raw_size = 0;
      RETURN_IF_ERROR(read(raw_size, "a tensor's description"));
      if (raw_size == 0 || raw_size > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return error("tensor " + quoted(tensor.name) + " has a dimension of " + std::to_string(raw_size));
      }
      size = static_cast<int64_t>(raw_size);
    }
    RETURN_IF_ERROR(read(tensor.type, "a tensor's description"));
    RETURN_IF_ERROR(read(tensor.offset, "a tensor's description"));
    return tensor;
  }

  // Bytes of a tensor, or an error that names it.
  Result<uint64_t> tensor_bytes(const TensorDescription& tensor, const GgmlType& type) const {
    int64_t num_values = 1;
    for (const int64_t size : tensor.sizes) {
      if (__builtin_mul_overflow(num_values, size, &num_values)) {
        return error("tensor " + quoted(tensor.name) + " has absurd sizes " + describe_sizes(tensor.sizes));
      }
    }
    const int64_t row_values = tensor.sizes.empty() ? 1 : tensor.sizes.front();
    if (row_values % type.values_per_block != 0) {
      return error("tensor " + quoted(tensor.name) + " has rows of " + std::to_string(row_values) +
                   " values, not a multiple of the " + std::to_string(type.values_per_block) + " that a block of " +
                   std::string(type.name) + " holds");
    }
    int64_t num_bytes = 0;
    if (__builtin_mul_overflow(num_values / type.values_per_block, int64_t{type.bytes_per_block}, &num_bytes)) {
      return error("tensor " + quoted(tensor.name) + " has absurd sizes " + describe_sizes(tensor.sizes));
    }
    return static_cast<uint64_t>(num_bytes);
  }

  Status place_tensors(const std::vector<TensorDescription>& descriptions) {
    if (descriptions.empty()) return ok_status();
    const uint64_t data_start = offset_ + (alignment_ - offset_ % alignment_) % alignment_;
    const uint64_t data_bytes = data_start < bytes_.size() ? bytes_.size() - data_start : 0;

    struct Extent {
      uint64_t begin;
      uint64_t end;
      std::string_view name;
    };
    std::vector<Extent> extents;
    uint64_t last_end = 0;
    for (const TensorDescription& tensor : descriptions) {
      const std::optional<GgmlType> type = find_ggml_type(tensor.type);
      if (!type.has_value()) {
        return unimplemented(name_ + ": tensor " + quoted(tensor.name) + " is of the unknown type number " +
                             std::to_string(tensor.type) + "; the file is damaged, or newer than this program");
      }
      ASSIGN_OR_RETURN(const uint64_t num_bytes, tensor_bytes(tensor, *type));
      if (tensor.offset % alignment_ != 0) {
        return error("tensor " + quoted(tensor.name) + " begins at " + std::to_string(tensor.offset) +
                     ", not a multiple of the alignment " + std::to_string(alignment_));
      }
      uint64_t end = 0;
      if (__builtin_add_overflow(tensor.offset, num_bytes, &end)) {
        return error("tensor " + quoted(tensor.name) + " begins at an absurd offset " + std::to_string(tensor.offset));
      }
      last_end = std::max(last_end, end);
      extents.push_back({tensor.offset, end, tensor.name});
      if (end > data_bytes) continue;  // reported below, with the size that the file should have
      std::vector<int64_t> sizes(tensor.sizes.rbegin(), tensor.sizes.rend());
      part_.tensors.push_back({std::string(tensor.name), type->format, std::string(type->name), std::move(sizes),
                               bytes_.subspan(data_start + tensor.offset, num_bytes)});
    }
    if (last_end > data_bytes) {
      uint64_t wanted = 0;
      if (__builtin_add_overflow(data_start, last_end, &wanted)) return error("tensors lie at absurd offsets");
      return error("the file has " + std::to_string(bytes_.size()) + " bytes, but its tensors need " +
                   std::to_string(wanted) + ": the download is incomplete; download it again");
    }

    std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
    for (size_t i = 1; i < extents.size(); ++i) {
      if (extents[i].begin < extents[i - 1].end) {
        return error("tensors " + quoted(extents[i - 1].name) + " and " + quoted(extents[i].name) + " overlap");
      }
    }
    return ok_status();
  }

  const std::string& name_;
  std::span<const std::byte> bytes_;
  uint64_t offset_ = 0;
  uint32_t alignment_ = kDefaultAlignment;
  std::unordered_set<std::string_view> keys_;
  GgufPart part_;
};

}  // namespace

Result<GgufPart> parse_gguf_part(const std::string& name, std::span<const std::byte> bytes) {
  return PartParser(name, bytes).parse();
}

int64_t gguf_scalar_bytes(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool:
      return 1;
    case GgufType::kU16:
    case GgufType::kI16:
      return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32:
      return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      return 0;
  }
  return 0;
}

}  // namespace quire
