// How values become text: Python's str(), repr(), float formatting, json.dumps, %-formatting and str.format().
// Text that the formatter itself adds (quotes, commas, digits) is data: only the template's literals are trusted.
#pragma once

#include <optional>
#include <string>

#include "text/jinja_runtime.h"

namespace quire::jinja {

std::string float_repr(double value);  // the shortest digits that read back, as Python prints them

// Appends str(value); fails where the text would be over the limit of the rendering.
Status append_str(Runtime& runtime, Text& out, const Value& value);
Status append_repr(Runtime& runtime, Text& out, const Value& value);
Result<Text> to_text(Runtime& runtime, const Value& value);
Text escape_html(const Text& text);

struct JsonStyle {
  bool is_ascii_only = false;
  std::optional<Text> indent;  // the text of one level; without it everything stands on one line
  Text item_separator, key_separator;
  bool sorts_keys = false;
};
Status append_json(Runtime& runtime, Text& out, const Value& value, const JsonStyle& style);

// "%s and %(name)d" % values: values is a tuple, a dict or a single value.
Result<Text> format_percent(Runtime& runtime, const Text& format, const Value& values);
// One value by a format specification such as ">8,.2f".
Result<Text> format_value(Runtime& runtime, const Value& value, const Text& specification);

}  // namespace quire::jinja
