// Reads GGUF files, versions 2 and 3, little-endian, single or split into "-00001-of-0000N" parts: metadata of any type
// and tensors as views of the mapped bytes. Every count, length and offset is checked against the file before use, so
// any bytes at all give either a readable file or an error. What the metadata mean is not known here.
// Constant after opening: any thread may read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "weights/tensor_source.h"

namespace quire {

struct GgufPart;
struct MappedFiles;

enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

std::string_view gguf_type_name(GgufType type);

// One metadata value: a view of the file.
struct GgufValue {
  GgufType type = GgufType::kU8;
  GgufType element_type = GgufType::kU8;  // of an array
  int64_t count = 1;                      // elements of an array, bytes of a string
  std::span<const std::byte> data;        // the encoded scalar, string bytes, or elements one after another

  bool is_array() const { return type == GgufType::kArray; }
};

struct GgufEntry {
  std::string_view key;
  GgufValue value;
};

class GgufFile final : public TensorSource {
 public:
  // `path` is the file, or any part of a split one.
  static Result<std::unique_ptr<GgufFile>> open(const std::string& path);

  // The same from memory, parts in order. `owner` keeps the bytes alive.
  struct Part {
    std::string name;  // for messages
    std::span<const std::byte> bytes;
  };
  static Result<std::unique_ptr<GgufFile>> parse(std::span<const Part> parts, std::shared_ptr<const void> owner);

  int version() const { return version_; }

  // ---- Metadata (of the first part) --------------------------------------------------------------------------------

  std::span<const GgufEntry> entries() const { return entries_; }
  const GgufValue* find_value(std::string_view key) const;

  // Each gives nothing when the key is absent, and an error that names the key when its value is of another kind.
  Result<std::optional<std::string_view>> find_string(std::string_view key) const;
  Result<std::optional<int64_t>> find_integer(std::string_view key) const;  // any integer type; not bool
  Result<std::optional<double>> find_number(std::string_view key) const;    // a float or integer type
  Result<std::optional<bool>> find_bool(std::string_view key) const;

  // Arrays. Strings are views of the file: nothing but the views is copied.
  Result<std::optional<std::vector<std::string_view>>> find_strings(std::string_view key) const;
  Result<std::optional<std::vector<int64_t>>> find_integers(std::string_view key) const;  // any integer type
  Result<std::optional<std::vector<float>>> find_floats(std::string_view key) const;      // f32 or f64
  Result<std::optional<std::vector<bool>>> find_bools(std::string_view key) const;

  // ---- Tensors (of all parts) --------------------------------------------------------------------------------------

  std::span<const SourceTensor> tensors() const override { return tensors_; }
  const SourceTensor* find(std::string_view name) const override;
  std::shared_ptr<const void> owner() const override { return owner_; }
  Status check_unchanged() const override;
  void will_need(std::span<const std::byte> part) const override;
  void done_with(std::span<const std::byte> part) const override;

 private:
  GgufFile() = default;
  static Result<std::unique_ptr<GgufFile>> join(std::span<const Part> parts, std::vector<GgufPart> parsed);
  Status wrong_type(std::string_view key, const GgufValue& value, std::string_view wanted) const;

  std::shared_ptr<const void> owner_;
  std::shared_ptr<const MappedFiles> mappings_;  // null when parsed from memory
  std::string name_;
  int version_ = 0;
  std::vector<GgufEntry> entries_;
  std::unordered_map<std::string_view, size_t> entry_index_;
  std::vector<SourceTensor> tensors_;
  std::unordered_map<std::string_view, size_t> tensor_index_;
};

// The number, if the value is a scalar of any integer type that an int64 holds.
std::optional<int64_t> gguf_integer(const GgufValue& value);

// The value as text for people; strings are escaped, long ones and arrays shortened to about max_length bytes.
std::string describe(const GgufValue& value, int max_length);

}  // namespace quire
