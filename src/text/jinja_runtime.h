// Runtime: the budgets of one rendering (steps, memory, output) and the makers of values that are charged to them.
// Every function of the interpreter that computes gets one. One rendering, one thread.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja_value.h"

namespace quire::jinja {

struct RuntimeLimits {
  int64_t max_steps = 0;  // expressions and statements evaluated, plus one for every 256 bytes or 16 items touched
  size_t max_memory_bytes = 0;  // held at one time by values of the rendering
  size_t max_output_bytes = 0;  // of the prompt, and of any single string
  int64_t max_range_items = 0;
};

class Runtime {
 public:
  Runtime(const RuntimeLimits& limits, int64_t now_seconds)
      : limits_(limits), now_seconds_(now_seconds), meter_(limits.max_memory_bytes) {}

  const RuntimeLimits& limits() const { return limits_; }
  int64_t now_seconds() const { return now_seconds_; }  // local wall-clock time as if it were UTC
  MemoryMeter& meter() { return meter_; }

  Status step(int64_t num_steps = 1) {
    num_steps_ += num_steps;
    if (num_steps_ > limits_.max_steps || meter_.is_exceeded()) [[unlikely]]
      return budget_error();
    return ok_status();
  }
  Status touch_bytes(size_t num_bytes) { return step(static_cast<int64_t>(num_bytes / 256)); }
  Status touch_items(size_t num_items) { return step(static_cast<int64_t>(num_items / 16)); }
  // Before a string grows to this size. The work of making it is counted by make_string, or by touch_bytes.
  Status check_string_size(size_t num_bytes);

  Value make_string(Text text, bool is_markup = false);
  Value make_string(std::string_view bytes, bool is_trusted = false) {
    return make_string(Text(std::string(bytes), is_trusted));
  }
  Result<Value> make_list(std::vector<Value> items, Kind kind = Kind::kList);  // or kTuple, or a view of a dict
  Result<Value> make_dict(
      std::vector<std::pair<Value, Value>> entries);  // keys are hashable; the last value of a key wins
  Value make_iterator(std::vector<Value> items, Status error = ok_status());
  Value make_method(const Value& self, std::string_view name);
  template <typename T>
  std::shared_ptr<T> make_object(size_t payload_bytes = 0) {
    auto object = std::make_shared<T>();
    object->charge_to(&meter_, sizeof(T) + payload_bytes);
    return object;
  }

  // Namespaces may hold each other: they are kept here and emptied when the rendering ends, which breaks the cycles.
  Value make_namespace(std::vector<std::pair<std::string, Value>> attributes);
  void release_namespaces();

 private:
  Status budget_error() const;

  RuntimeLimits limits_;
  int64_t now_seconds_;
  int64_t num_steps_ = 0;
  MemoryMeter meter_;
  std::vector<std::shared_ptr<NamespaceObject>> namespaces_;
};

// The arguments of a call, and how a built-in takes them: bind() puts them in the order of `names`, missing ones stay
// kMissing; too many, unknown or repeated ones are an error that names the function.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};
Result<std::vector<Value>> bind_arguments(std::string_view function, const Arguments& arguments,
                                          std::initializer_list<std::string_view> names, size_t num_required);

// Walks what Python's iter() accepts. Holds the value alive.
class ValueIterator {
 public:
  static Result<ValueIterator> over(const Value& value);
  Result<bool> next(Runtime& runtime, Value* item);  // false at the end

 private:
  Value source_;
  size_t position_ = 0;
};
bool is_iterable(const Value& value);
Result<std::vector<Value>> collect_items(Runtime& runtime, const Value& value);  // Python's list(value)
std::optional<size_t> length_of(const Value& value);                             // Python's len(), where there is one

}  // namespace quire::jinja
