// Value: what a template computes with. Python's data model as far as templates see it; everything but namespaces,
// iterators and loop objects is immutable, so a Value made once may be read by many threads (template constants,
// inputs). Made by callers through the factories below or from_json (text/jinja_json.h); computed by the jinja_* files.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "text/jinja_text.h"

namespace quire::jinja {

// Counts the bytes that the objects of one rendering hold. Objects of the rendering refund when they die.
class MemoryMeter {
 public:
  explicit MemoryMeter(size_t limit) : limit_(limit) {}
  void charge(size_t bytes) { used_ += bytes; }
  void refund(size_t bytes) { used_ -= bytes; }
  bool is_exceeded() const { return used_ > limit_; }
  size_t used() const { return used_; }
  size_t limit() const { return limit_; }

 private:
  size_t limit_;
  size_t used_ = 0;
};

// Nested lists and dicts stop here, so that printing, comparing and destroying them needs a bounded stack.
inline constexpr int kMaxValueDepth = 100;

struct Object {
  Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object() {
    if (meter != nullptr) meter->refund(charged);
  }
  void charge_to(MemoryMeter* to, size_t bytes) {
    meter = to;
    charged = bytes;
    if (meter != nullptr) meter->charge(bytes);
  }

  MemoryMeter* meter = nullptr;  // null for constants of the template and inputs
  size_t charged = 0;
  int depth = 1;
};

struct StringObject;
struct ListObject;
struct DictObject;

class Value {
 public:
  enum class Kind : uint8_t {
    kMissing,  // never seen by templates: a variable that has no value yet
    kUndefined,
    kNone,
    kBool,
    kInt,
    kBigInt,  // an integer beyond 64 bits, kept as its digits; it can be printed and compared for equality
    kFloat,
    kString,
    kList,
    kTuple,
    kDict,
    kDictKeys,
    kDictValues,
    kDictItems,
    kRange,
    kIterator,
    kNamespace,
    kLoop,
    kCycler,
    kJoiner,
    kMacro,
    kMethod,
    kGlobal,
  };

  Value() = default;
  static Value none() { return Value(Kind::kNone); }
  static Value boolean(bool value);
  static Value integer(int64_t value);
  static Value number(double value);
  static Value big_integer(std::string digits);  // decimal, a sign in front where negative
  static Value whole_number(double value);       // an integer of any size; value is finite
  static Value string(std::string text, bool is_trusted = false);
  static Value list(std::vector<Value> items);
  static Value dict(std::vector<std::pair<std::string, Value>> entries);  // a repeated key: the last value wins
  static Value undefined(std::string message);
  static Value missing() { return Value(); }
  static Value from_object(Kind kind, std::shared_ptr<Object> object);

  Kind kind() const { return kind_; }
  bool is_missing() const { return kind_ == Kind::kMissing; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_none() const { return kind_ == Kind::kNone; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_bool() const { return kind_ == Kind::kBool; }
  bool is_int_like() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }  // bool is an int in Python
  bool is_number() const { return is_int_like() || kind_ == Kind::kFloat; }
  bool is_dict() const { return kind_ == Kind::kDict; }
  bool is_items() const {  // held as a ListObject
    return kind_ == Kind::kList || kind_ == Kind::kTuple || is_dict_view();
  }
  bool is_dict_view() const {
    return kind_ == Kind::kDictKeys || kind_ == Kind::kDictValues || kind_ == Kind::kDictItems;
  }

  int64_t int_value() const { return int_; }  // kInt and kBool
  double float_value() const { return float_; }
  double to_double() const { return kind_ == Kind::kFloat ? float_ : static_cast<double>(int_); }
  const StringObject& str() const;
  const Text& text() const;
  std::string_view bytes() const { return text().bytes(); }
  const std::vector<Value>& items() const;
  const DictObject& dict_object() const;
  const std::string& undefined_message() const;
  int depth() const { return object_ ? object_->depth : 0; }
  template <typename T>
  T& as() const {
    return static_cast<T&>(*object_);
  }
  const Object* identity() const { return object_.get(); }
  const std::shared_ptr<Object>& object() const { return object_; }

 private:
  explicit Value(Kind kind) : kind_(kind) {}

  Kind kind_ = Kind::kMissing;
  union {
    int64_t int_ = 0;
    double float_;
  };
  std::shared_ptr<Object> object_;
};

using Kind = Value::Kind;

struct StringObject : Object {
  Text text;
  size_t num_chars = 0;
  bool is_markup = false;  // made by |safe or |escape: adding plain text to it escapes that text
  bool is_ascii() const { return num_chars == text.size(); }
  // The byte where the character of that index begins; num_chars gives the size.
  size_t offset_of(size_t char_index) const;
};

struct BigIntObject : Object {
  std::string digits;
};

struct UndefinedObject : Object {
  std::string message;  // told when the value is used for anything but printing, looping or testing
};

struct ListObject : Object {
  std::vector<Value> items;
  bool is_group = false;  // a tuple of |groupby: its items are also .grouper and .list
};

struct DictObject : Object {
  std::vector<std::pair<Value, Value>> entries;               // in insertion order
  std::unordered_map<std::string_view, size_t> string_index;  // of string keys, once there are many
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  void set(const Value& key, Value value);
};

struct RangeObject : Object {
  int64_t start = 0, stop = 0, step = 1, length = 0;
};

// A Python generator: it can be walked once. Its items are computed at once; an error waits for its turn.
struct IteratorObject : Object {
  std::vector<Value> items;
  size_t next = 0;
  Status error;
};

struct NamespaceObject : Object {
  std::vector<std::pair<std::string, Value>> attributes;
  mutable bool is_printing = false;  // stops repr() at a namespace that holds itself
};

struct CyclerObject : Object {
  std::vector<Value> items;
  size_t position = 0;
};

struct JoinerObject : Object {
  Value separator;
  bool is_used = false;
};

struct MethodObject : Object {
  Value self;
  std::string name;
};

struct GlobalObject : Object {
  std::string name;
};

bool is_true(const Value& value);                       // Python's bool(value); loops by the interpreter
bool are_equal(const Value& left, const Value& right);  // Python's ==
bool is_hashable(const Value& value);                   // may it be a key of a dict
const char* type_name(const Value& value);              // as Python's error messages say it: 'str', 'NoneType'
Status undefined_error(const Value& value);             // value is undefined
std::optional<int> compare_numbers(const Value& left, const Value& right);  // none if either is NaN

}  // namespace quire::jinja
