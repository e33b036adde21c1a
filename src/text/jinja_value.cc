// Construction, truth, equality and names of values. See jinja_value.h.
#include "text/jinja_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace quire::jinja {
namespace {

constexpr size_t kIndexedDictSize = 12;  // below it a linear search is as fast

template <typename T>
std::shared_ptr<T> make_constant() {
  return std::make_shared<T>();
}

bool are_lists_equal(const std::vector<Value>& left, const std::vector<Value>& right) {
  if (left.size() != right.size()) return false;
  for (size_t i = 0; i < left.size(); ++i) {
    if (!are_equal(left[i], right[i])) return false;
  }
  return true;
}

bool are_dicts_equal(const DictObject& left, const DictObject& right) {
  if (left.entries.size() != right.entries.size()) return false;
  for (const auto& [key, value] : left.entries) {
    const Value* other = right.find(key);
    if (other == nullptr || !are_equal(value, *other)) return false;
  }
  return true;
}

bool are_ranges_equal(const RangeObject& left, const RangeObject& right) {
  if (left.length != right.length) return false;
  if (left.length == 0) return true;
  return left.start == right.start && (left.length == 1 || left.step == right.step);
}

// The sign of integer - number, exactly: a double holds fewer digits than an int64.
std::optional<int> compare_int_float(int64_t integer, double number) {
  if (std::isnan(number)) return std::nullopt;
  if (number >= 9223372036854775808.0) return -1;
  if (number < -9223372036854775808.0) return 1;
  const double whole = std::trunc(number);
  const int64_t as_int = static_cast<int64_t>(whole);
  if (integer != as_int) return integer < as_int ? -1 : 1;
  if (number == whole) return 0;
  return number > whole ? -1 : 1;
}

}  // namespace

Value Value::boolean(bool value) {
  Value result(Kind::kBool);
  result.int_ = value ? 1 : 0;
  return result;
}

Value Value::integer(int64_t value) {
  Value result(Kind::kInt);
  result.int_ = value;
  return result;
}

Value Value::number(double value) {
  Value result(Kind::kFloat);
  result.float_ = value;
  return result;
}

Value Value::big_integer(std::string digits) {
  auto object = make_constant<BigIntObject>();
  object->digits = std::move(digits);
  return from_object(Kind::kBigInt, std::move(object));
}

Value Value::whole_number(double value) {
  const double whole = std::trunc(value);
  if (whole >= -9223372036854775808.0 && whole < 9223372036854775808.0) return integer(static_cast<int64_t>(whole));
  char buffer[320];  // the largest double has 309 digits
  return big_integer(
      std::string(buffer, std::to_chars(buffer, buffer + sizeof(buffer), whole, std::chars_format::fixed, 0).ptr));
}

Value Value::string(std::string text, bool is_trusted) {
  auto object = make_constant<StringObject>();
  object->num_chars = count_code_points(text);
  object->text = Text(std::move(text), is_trusted);
  return from_object(Kind::kString, std::move(object));
}

Value Value::list(std::vector<Value> items) {
  auto object = make_constant<ListObject>();
  for (const Value& item : items) object->depth = std::max(object->depth, item.depth() + 1);
  object->items = std::move(items);
  return from_object(Kind::kList, std::move(object));
}

Value Value::dict(std::vector<std::pair<std::string, Value>> entries) {
  auto object = make_constant<DictObject>();
  for (auto& [key, value] : entries) object->set(Value::string(std::move(key)), std::move(value));
  return from_object(Kind::kDict, std::move(object));
}

Value Value::undefined(std::string message) {
  auto object = make_constant<UndefinedObject>();
  object->message = std::move(message);
  return from_object(Kind::kUndefined, std::move(object));
}

Value Value::from_object(Kind kind, std::shared_ptr<Object> object) {
  Value result(kind);
  result.object_ = std::move(object);
  return result;
}

const StringObject& Value::str() const {
  DCHECK(kind_ == Kind::kString);
  return static_cast<const StringObject&>(*object_);
}

const Text& Value::text() const {
  return str().text;
}

const std::vector<Value>& Value::items() const {
  DCHECK(is_items());
  return static_cast<const ListObject&>(*object_).items;
}

const DictObject& Value::dict_object() const {
  DCHECK(kind_ == Kind::kDict);
  return static_cast<const DictObject&>(*object_);
}

const std::string& Value::undefined_message() const {
  DCHECK(kind_ == Kind::kUndefined);
  return static_cast<const UndefinedObject&>(*object_).message;
}

size_t StringObject::offset_of(size_t char_index) const {
  if (is_ascii()) return char_index;
  const std::string_view bytes = text.bytes();
  size_t offset = 0;
  for (size_t i = 0; i < char_index && offset < bytes.size(); ++i) offset += code_point_at(bytes, offset).num_bytes;
  return offset;
}

const Value* DictObject::find(std::string_view key) const {
  if (!string_index.empty()) {
    const auto it = string_index.find(key);
    return it == string_index.end() ? nullptr : &entries[it->second].second;
  }
  for (const auto& [candidate, value] : entries) {
    if (candidate.is_string() && candidate.bytes() == key) return &value;
  }
  return nullptr;
}

const Value* DictObject::find(const Value& key) const {
  if (key.is_string()) return find(key.bytes());
  for (const auto& [candidate, value] : entries) {
    if (!candidate.is_string() && are_equal(candidate, key)) return &value;
  }
  return nullptr;
}

void DictObject::set(const Value& key, Value value) {
  depth = std::max({depth, key.depth() + 1, value.depth() + 1});
  if (const Value* existing = find(key)) {
    const_cast<Value&>(*existing) = std::move(value);  // our own entry, found through the read-only search
    return;
  }
  entries.emplace_back(key, std::move(value));
  if (!string_index.empty()) {
    if (key.is_string()) string_index.emplace(key.bytes(), entries.size() - 1);
  } else if (entries.size() > kIndexedDictSize) {
    for (size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].first.is_string()) string_index.emplace(entries[i].first.bytes(), i);
    }
  }
}

bool is_true(const Value& value) {
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return value.int_value() != 0;
    case Kind::kFloat:
      return value.float_value() != 0;
    case Kind::kString:
      return !value.text().is_empty();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDictKeys:
    case Kind::kDictValues:
    case Kind::kDictItems:
      return !value.items().empty();
    case Kind::kDict:
      return !value.dict_object().entries.empty();
    case Kind::kRange:
      return value.as<RangeObject>().length != 0;
    default:
      return true;
  }
}

std::optional<int> compare_numbers(const Value& left, const Value& right) {
  if (left.is_int_like() && right.is_int_like()) {
    return left.int_value() < right.int_value() ? -1 : left.int_value() > right.int_value() ? 1 : 0;
  }
  if (left.is_int_like()) return compare_int_float(left.int_value(), right.float_value());
  if (right.is_int_like()) {
    const std::optional<int> reversed = compare_int_float(right.int_value(), left.float_value());
    return reversed ? std::optional<int>(-*reversed) : std::nullopt;
  }
  const double a = left.float_value(), b = right.float_value();
  if (std::isnan(a) || std::isnan(b)) return std::nullopt;
  return a < b ? -1 : a > b ? 1 : 0;
}

bool are_equal(const Value& left, const Value& right) {
  if (left.is_number() && right.is_number()) return compare_numbers(left, right) == 0;
  if (left.kind() != right.kind()) return false;
  switch (left.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      return left.bytes() == right.bytes();
    case Kind::kBigInt:
      return left.as<BigIntObject>().digits == right.as<BigIntObject>().digits;
    case Kind::kList:
    case Kind::kTuple:
      return are_lists_equal(left.items(), right.items());
    case Kind::kDict:
      return are_dicts_equal(left.dict_object(), right.dict_object());
    case Kind::kDictKeys:
    case Kind::kDictItems: {  // sets: the order does not matter
      if (left.items().size() != right.items().size()) return false;
      for (const Value& item : left.items()) {
        bool is_found = false;
        for (const Value& other : right.items()) is_found = is_found || are_equal(item, other);
        if (!is_found) return false;
      }
      return true;
    }
    case Kind::kRange:
      return are_ranges_equal(left.as<RangeObject>(), right.as<RangeObject>());
    case Kind::kMethod: {
      const MethodObject& a = left.as<MethodObject>();
      const MethodObject& b = right.as<MethodObject>();
      return a.name == b.name && a.self.identity() == b.self.identity();
    }
    case Kind::kGlobal:
      return left.as<GlobalObject>().name == right.as<GlobalObject>().name;
    default:
      return left.identity() == right.identity();
  }
}

bool is_hashable(const Value& value) {
  switch (value.kind()) {
    case Kind::kList:
    case Kind::kDict:
    case Kind::kDictKeys:
    case Kind::kDictItems:
      return false;
    case Kind::kTuple:
      for (const Value& item : value.items()) {
        if (!is_hashable(item)) return false;
      }
      return true;
    default:
      return true;
  }
}

const char* type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
    case Kind::kBigInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return value.str().is_markup ? "Markup" : "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kDictKeys:
      return "dict_keys";
    case Kind::kDictValues:
      return "dict_values";
    case Kind::kDictItems:
      return "dict_items";
    case Kind::kRange:
      return "range";
    case Kind::kIterator:
      return "generator";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kLoop:
      return "LoopContext";
    case Kind::kCycler:
      return "Cycler";
    case Kind::kJoiner:
      return "Joiner";
    case Kind::kMacro:
      return "Macro";
    case Kind::kMethod:
      return "method";
    case Kind::kGlobal:
      return "function";
  }
  return "object";
}

Status undefined_error(const Value& value) {
  return invalid_argument(value.undefined_message());
}

}  // namespace quire::jinja
