// Typed access to the metadata of a GGUF file, and their description for people.
#include <cstring>
#include <limits>
#include <sstream>

#include "weights/gguf.h"
#include "weights/gguf_part.h"
#include "weights/messages.h"

namespace quire {

namespace {

template <typename T>
T load_scalar(const std::byte* data) {
  T value;
  std::memcpy(&value, data, sizeof(T));
  return value;
}

bool is_integer(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kU16:
    case GgufType::kI16:
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kU64:
    case GgufType::kI64:
      return true;
    default:
      return false;
  }
}

// Nothing for other types, and for a u64 that an int64 does not hold.
std::optional<int64_t> integer_at(GgufType type, const std::byte* data) {
  switch (type) {
    case GgufType::kU8:
      return load_scalar<uint8_t>(data);
    case GgufType::kI8:
      return load_scalar<int8_t>(data);
    case GgufType::kU16:
      return load_scalar<uint16_t>(data);
    case GgufType::kI16:
      return load_scalar<int16_t>(data);
    case GgufType::kU32:
      return load_scalar<uint32_t>(data);
    case GgufType::kI32:
      return load_scalar<int32_t>(data);
    case GgufType::kI64:
      return load_scalar<int64_t>(data);
    case GgufType::kU64: {
      const auto value = load_scalar<uint64_t>(data);
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
      return static_cast<int64_t>(value);
    }
    default:
      return std::nullopt;
  }
}

std::string_view as_text(std::span<const std::byte> data) {
  return {reinterpret_cast<const char*>(data.data()), data.size()};
}

// Calls visit(text) for the strings of an array, in order, until it gives false. The parser has checked the lengths.
template <typename Visit>
void visit_strings(const GgufValue& array, Visit visit) {
  const std::byte* position = array.data.data();
  for (int64_t i = 0; i < array.count; ++i) {
    const auto length = static_cast<size_t>(load_scalar<uint64_t>(position));
    position += sizeof(uint64_t);
    if (!visit(as_text({position, length}))) return;
    position += length;
  }
}

std::string describe_type(const GgufValue& value) {
  if (!value.is_array()) return std::string(gguf_type_name(value.type));
  return "array of " + std::to_string(value.count) + " " + std::string(gguf_type_name(value.element_type));
}

std::string describe_scalar(GgufType type, const std::byte* data) {
  if (is_integer(type)) {
    const std::optional<int64_t> value = integer_at(type, data);
    return value.has_value() ? std::to_string(*value) : std::to_string(load_scalar<uint64_t>(data));
  }
  if (type == GgufType::kBool) return load_scalar<uint8_t>(data) != 0 ? "true" : "false";
  std::ostringstream text;
  if (type == GgufType::kF32) text << load_scalar<float>(data);
  if (type == GgufType::kF64) text << load_scalar<double>(data);
  return text.str();
}

}  // namespace

std::string_view gguf_type_name(GgufType type) {
  constexpr std::string_view kNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                         "bool", "string", "array", "u64", "i64", "f64"};
  return kNames[static_cast<uint32_t>(type)];
}

std::optional<int64_t> gguf_integer(const GgufValue& value) {
  if (!is_integer(value.type)) return std::nullopt;
  return integer_at(value.type, value.data.data());
}

Status GgufFile::wrong_type(std::string_view key, const GgufValue& value, std::string_view wanted) const {
  return invalid_argument(name_ + ": the metadata value of " + quoted(key) + " is of type " + describe_type(value) +
                          "; expected " + std::string(wanted));
}

Result<std::optional<std::string_view>> GgufFile::find_string(std::string_view key) const {
  const GgufValue* value = find_value(key);
  if (value == nullptr) return std::optional<std::string_view>();
  if (value->type != GgufType::kString) return wrong_type(key, *value, "a string");
  return std::optional<std::string_view>(as_text(value->data));
}

Result<std::optional<int64_t>> GgufFile::find_integer(std::string_view key) const {
  const GgufValue* value = find_value(key);
  if (value == nullptr) return std::optional<int64_t>();
  const std::optional<int64_t> number = gguf_integer(*value);
  if (!number.has_value()) return wrong_type(key, *value, "an integer below 2^63");
  return number;
}

Result<std::optional<double>> GgufFile::find_number(std::string_view key) const {
  const GgufValue* value = find_value(key);
  if (value == nullptr) return std::optional<double>();
  if (value->type == GgufType::kF32) return std::optional<double>(load_scalar<float>(value->data.data()));
  if (value->type == GgufType::kF64) return std::optional<double>(load_scalar<double>(value->data.data()));
  const std::optional<int64_t> number = gguf_integer(*value);
  if (!number.has_value()) return wrong_type(key, *value, "a number");
  return std::optional<double>(static_cast<double>(*number));
}

Result<std::optional<bool>> GgufFile::find_bool(std::string_view key) const {
  const GgufValue* value = find_value(key);
  if (value == nullptr) return std::optional<bool>();
  if (value->type != GgufType::kBool) return wrong_type(key, *value, "a bool");
  return std::optional<bool>(load_scalar<uint8_t>(value->data.data()) != 0);
}

Result<std::optional<std::vector<std::string_view>>> GgufFile::find_strings(std::string_view key) const {
  const GgufValue* value = find_value(key);
  if (value == nullptr) return std::optional<std::vector<std::string_view>>();
  if (!value->is_array() || value->element_type != GgufType::kString) {
    return wrong_type(key, *value, "an array of strings");
  }
  std::vector<std::string_view> strings;
  strings.reserve(static_cast<size_t>(value->count));
  visit_strings(*value, [&](std::string_view text) {
    strings.push_back(text);
    return true;
  });
  return std::optional(std::move(strings));
}

Result<std::optional<std::vector<int64_t>>> GgufFile::find_integers(std::string_view key) const {
  const GgufValue* value = find_value(key);
  if (value == nullptr) return std::optional<std::vector<int64_t>>();
  if (!value->is_array() || !is_integer(value->element_type)) return wrong_type(key, *value, "an array of integers");
  std::vector<int64_t> numbers;
  numbers.reserve(static_cast<size_t>(value->count));
  const int64_t size = gguf_scalar_bytes(value->element_type);
  for (int64_t i = 0; i < value->count; ++i) {
    const std::optional<int64_t> number = integer_at(value->element_type, value->data.data() + i * size);
    if (!number.has_value()) return wrong_type(key, *value, "integers below 2^63");
    numbers.push_back(*number);
  }
  return std::optional(std::move(numbers));
}

Result<std::optional<std::vector<float>>> GgufFile::find_floats(std::string_view key) const {
  const GgufValue* value = find_value(key);
  if (value == nullptr) return std::optional<std::vector<float>>();
  const bool is_f32 = value->element_type == GgufType::kF32;
  if (!value->is_array() || (!is_f32 && value->element_type != GgufType::kF64)) {
    return wrong_type(key, *value, "an array of floats");
  }
  std::vector<float> numbers(static_cast<size_t>(value->count));
  for (size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = is_f32 ? load_scalar<float>(value->data.data() + i * sizeof(float))
                        : static_cast<float>(load_scalar<double>(value->data.data() + i * sizeof(double)));
  }
  return std::optional(std::move(numbers));
}

Result<std::optional<std::vector<bool>>> GgufFile::find_bools(std::string_view key) const {
  const GgufValue* value = find_value(key);
  if (value == nullptr) return std::optional<std::vector<bool>>();
  if (!value->is_array() || value->element_type != GgufType::kBool) return wrong_type(key, *value, "an array of bools");
  std::vector<bool> bools;
  bools.reserve(static_cast<size_t>(value->count));
  for (const std::byte byte : value->data) bools.push_back(byte != std::byte{0});
  return std::optional(std::move(bools));
}

std::string describe(const GgufValue& value, int max_length) {
  const auto limit = static_cast<size_t>(max_length);
  if (value.type == GgufType::kString) return quoted(as_text(value.data), limit);
  if (!value.is_array()) return describe_scalar(value.type, value.data.data());
  if (value.element_type == GgufType::kArray) return describe_type(value) + "s";

  std::string text = "[";
  bool is_cut = false;
  const auto append = [&](const std::string& element) {
    if (text.size() + element.size() > limit) {
      is_cut = true;
      return false;
    }
    if (text.size() > 1) text += ", ";
    text += element;
    return true;
  };
  if (value.element_type == GgufType::kString) {
    visit_strings(value, [&](std::string_view element) { return append(quoted(element, limit)); });
  } else {
    const int64_t size = gguf_scalar_bytes(value.element_type);
    for (int64_t i = 0; i < value.count; ++i) {
      if (!append(describe_scalar(value.element_type, value.data.data() + i * size))) break;
    }
  }
  return text + (is_cut ? ", ...] (" + std::to_string(value.count) + " in all)" : "]");
}

}  // namespace quire
