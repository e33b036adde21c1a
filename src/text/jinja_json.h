// JSON text → Value, for the inputs of a template. Keeps the order of keys, and integers of any size; strict otherwise:
// what Python's json.loads takes, less NaN and Infinity. Bounded; any thread.
#pragma once

#include <string_view>

#include "text/jinja_value.h"

namespace quire::jinja {

struct JsonLimits {
  size_t max_bytes = size_t{256} << 20;
  int max_depth = 64;
};

Result<Value> from_json(std::string_view text, const JsonLimits& limits = {});  // all strings are data, not trusted
std::string json_quote(std::string_view text);                                  // "…" as JSON, UTF-8 kept

}  // namespace quire::jinja
