// What a template may reach inside a value: methods of strings, lists and dicts, keys, attributes of namespaces and the
// helpers. Nothing else exists: names with two underscores and methods that change a value are out of reach, as in the
// sandbox of jinja2. Used by the evaluator and by the filters that take an attribute's name.
#pragma once

#include "text/jinja_runtime.h"

namespace quire::jinja {

// value.name and value[index]; undefined where there is nothing. Loop objects are the evaluator's.
Result<Value> get_attribute(Runtime& runtime, const Value& value, std::string_view name);
Result<Value> get_item(Runtime& runtime, const Value& value, const Value& index);
// Only what Python's getattr() gives, without the fall back to keys.
Result<std::optional<Value>> find_attribute(Runtime& runtime, const Value& value, std::string_view name);

// Calls a method made by get_attribute on a string, list, tuple, dict, range, cycler or joiner.
Result<Value> call_method(Runtime& runtime, const MethodObject& method, const Arguments& arguments);
bool has_string_method(std::string_view name);
Result<Value> call_string_method(Runtime& runtime, const Value& self, std::string_view name,
                                 const Arguments& arguments);

// The global functions: range, dict, namespace, cycler, joiner, raise_exception, strftime_now.
bool is_global(std::string_view name);
Result<Value> call_global(Runtime& runtime, std::string_view name, const Arguments& arguments);

}  // namespace quire::jinja
