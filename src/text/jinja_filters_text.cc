// The filters that make text of text. See jinja_filters.h.
#include <algorithm>

#include "text/jinja_attributes.h"
#include "text/jinja_filters.h"
#include "text/jinja_format.h"
#include "text/jinja_operators.h"
#include "text/jinja_unicode.h"

namespace quire::jinja {
namespace {

// The input as a string value: most filters of text take anything and print it first.
Result<Value> as_string(Runtime& runtime, const Value& value) {
  if (value.is_string()) return value;
  ASSIGN_OR_RETURN(Text text, to_text(runtime, value));
  return runtime.make_string(std::move(text));
}

Status no_string_error(const Value& value, const char* filter) {
  if (value.is_undefined()) return undefined_error(value);
  return invalid_argument(std::string(filter) + ": expected a string, got " + type_name(value));
}

Result<Value> string_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  RETURN_IF_ERROR(bind_arguments("string", arguments, {}, 0).status());
  return as_string(runtime, input);
}

// A filter that is a method of strings under the same name.
template <int kMethod>
Result<Value> method_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  constexpr std::string_view kNames[] = {"upper", "lower", "capitalize"};
  RETURN_IF_ERROR(bind_arguments(kNames[kMethod], arguments, {}, 0).status());
  ASSIGN_OR_RETURN(const Value string, as_string(runtime, input));
  return call_string_method(runtime, string, kNames[kMethod], {});
}

Result<Value> trim_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const std::vector<Value> bound, bind_arguments("trim", arguments, {"chars"}, 0));
  ASSIGN_OR_RETURN(const Value string, as_string(runtime, input));
  Arguments strip;
  if (!bound[0].is_missing()) strip.positional.push_back(bound[0]);
  return call_string_method(runtime, string, "strip", strip);
}

Result<Value> replace_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(std::vector<Value> bound, bind_arguments("replace", arguments, {"old", "new", "count"}, 2));
  ASSIGN_OR_RETURN(Text text, to_text(runtime, input));
  Arguments replace;
  for (size_t i = 0; i < 2; ++i) {
    ASSIGN_OR_RETURN(Value string, as_string(runtime, bound[i]));
    replace.positional.push_back(std::move(string));
  }
  if (!bound[2].is_missing() && !bound[2].is_none()) replace.positional.push_back(bound[2]);
  return call_string_method(runtime, runtime.make_string(std::move(text)), "replace", replace);
}

Result<Value> center_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const std::vector<Value> bound, bind_arguments("center", arguments, {"width"}, 0));
  ASSIGN_OR_RETURN(const Value string, as_string(runtime, input));
  const Value width = bound[0].is_missing() ? Value::integer(80) : bound[0];
  return call_string_method(runtime, string, "center", {{width}, {}});
}

Result<Value> title_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  RETURN_IF_ERROR(bind_arguments("title", arguments, {}, 0).status());
  ASSIGN_OR_RETURN(const Value string, as_string(runtime, input));
  RETURN_IF_ERROR(runtime.touch_bytes(string.text().size() * 4));
  const Text& text = string.text();
  const auto is_separator = [](uint32_t c) {
    return is_python_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  };
  // Words are what stands between the separators; runs of separators are pieces of their own and have no case.
  Text out;
  for (size_t begin = 0; begin < text.size();) {
    const bool separates = is_separator(code_point_at(text.bytes(), begin).value);
    size_t end = begin;
    while (end < text.size() && is_separator(code_point_at(text.bytes(), end).value) == separates) {
      end += code_point_at(text.bytes(), end).num_bytes;
    }
    const size_t second = begin + code_point_at(text.bytes(), begin).num_bytes;
    out.append(map_case(text.substr(begin, second), CaseMapping::kUpper));
    out.append(map_case(text.substr(second, end), CaseMapping::kLower));
    begin = end;
  }
  return runtime.make_string(std::move(out));
}

Result<Value> indent_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const std::vector<Value> bound, bind_arguments("indent", arguments, {"width", "first", "blank"}, 0));
  Text indention("    ", false);
  if (bound[0].is_string()) {
    indention = bound[0].text();
  } else if (!bound[0].is_missing()) {
    if (!bound[0].is_int_like())
      return invalid_argument(std::string("can't multiply sequence by non-int of type '") + type_name(bound[0]) + "'");
    const int64_t width = std::max<int64_t>(bound[0].int_value(), 0);
    RETURN_IF_ERROR(runtime.check_string_size(static_cast<size_t>(width)));
    indention = Text(std::string(static_cast<size_t>(width), ' '), false);
  }
  if (!input.is_string()) return no_string_error(input, "indent");
  const bool indents_first = !bound[1].is_missing() && is_true(bound[1]);
  const bool indents_blank = !bound[2].is_missing() && is_true(bound[2]);
  Text text = input.text();
  text.append("\n", false);
  ASSIGN_OR_RETURN(const Value lines,
                   call_string_method(runtime, runtime.make_string(std::move(text)), "splitlines", {}));
  Text out;
  const size_t num_lines = lines.items().size();
  for (size_t i = 0; i < num_lines; ++i) {
    const Text& line = lines.items()[i].text();
    RETURN_IF_ERROR(runtime.check_string_size(out.size() + line.size() + indention.size() + 1));
    if (i > 0) out.append("\n", false);
    if (i == 0 ? indents_first : (indents_blank || !line.is_empty())) out.append(indention);
    out.append(line);
  }
  return runtime.make_string(std::move(out), input.str().is_markup);
}

Result<Value> truncate_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(std::vector<Value> bound,
                   bind_arguments("truncate", arguments, {"length", "killwords", "end", "leeway"}, 0));
  const auto number = [&](const Value& value, int64_t fallback) -> Result<int64_t> {
    if (value.is_missing() || value.is_none()) return fallback;
    if (!value.is_int_like()) return invalid_argument("truncate: expected a whole number");
    return value.int_value();
  };
  ASSIGN_OR_RETURN(const int64_t length, number(bound[0], 255));
  ASSIGN_OR_RETURN(const int64_t leeway, number(bound[3], 5));
  const Value end = bound[2].is_missing() ? Value::string("...", true) : bound[2];
  if (!end.is_string()) return no_string_error(end, "truncate");
  const int64_t end_length = static_cast<int64_t>(end.str().num_chars);
  if (length < end_length)
    return invalid_argument("expected length >= " + std::to_string(end_length) + ", got " + std::to_string(length));
  if (leeway < 0) return invalid_argument("expected leeway >= 0, got " + std::to_string(leeway));
  const std::optional<size_t> size = length_of(input);
  if (!size) return no_string_error(input, "truncate");
  if (static_cast<int64_t>(*size) - leeway <= length) return input;
  if (!input.is_string()) return no_string_error(input, "truncate");
  const size_t kept = input.str().offset_of(static_cast<size_t>(length - end_length));
  Text out = input.text().substr(0, kept);
  if (bound[1].is_missing() || !is_true(bound[1])) {
    const size_t space = out.bytes().rfind(' ');
    if (space != std::string_view::npos) out = out.substr(0, space);
  }
  out.append(end.text());
  return runtime.make_string(std::move(out), input.str().is_markup);
}

Result<Value> wordcount_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  RETURN_IF_ERROR(bind_arguments("wordcount", arguments, {}, 0).status());
  ASSIGN_OR_RETURN(const Text text, to_text(runtime, input));
  RETURN_IF_ERROR(runtime.touch_bytes(text.size()));
  int64_t count = 0;
  bool is_in_word = false;
  for (size_t i = 0; i < text.size();) {
    const CodePoint point = code_point_at(text.bytes(), i);
    const bool is_word = point.value == '_' || is_alpha(point.value) || is_numeric(point.value);
    if (is_word && !is_in_word) ++count;
    is_in_word = is_word;
    i += point.num_bytes;
  }
  return Value::integer(count);
}

Result<Value> format_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  if (!arguments.positional.empty() && !arguments.named.empty()) {
    return invalid_argument("can't handle positional and keyword arguments at the same time");
  }
  ASSIGN_OR_RETURN(const Value format, as_string(runtime, input));
  Value values;
  if (!arguments.named.empty()) {
    std::vector<std::pair<Value, Value>> entries;
    for (const auto& [name, value] : arguments.named) entries.emplace_back(runtime.make_string(name), value);
    ASSIGN_OR_RETURN(values, runtime.make_dict(std::move(entries)));
  } else {
    ASSIGN_OR_RETURN(values, runtime.make_list(arguments.positional, Kind::kTuple));
  }
  return apply_binary(runtime, BinaryOperator::kMod, format, values);
}

Result<Value> escape_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  RETURN_IF_ERROR(bind_arguments("escape", arguments, {}, 0).status());
  if (input.is_string() && input.str().is_markup) return input;
  ASSIGN_OR_RETURN(const Text text, to_text(runtime, input));
  RETURN_IF_ERROR(runtime.check_string_size(text.size() * 5));
  return runtime.make_string(escape_html(text), true);
}

Result<Value> forceescape_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  RETURN_IF_ERROR(bind_arguments("forceescape", arguments, {}, 0).status());
  ASSIGN_OR_RETURN(const Text text, to_text(runtime, input));
  RETURN_IF_ERROR(runtime.check_string_size(text.size() * 5));
  return runtime.make_string(escape_html(text), true);
}

Result<Value> safe_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  RETURN_IF_ERROR(bind_arguments("safe", arguments, {}, 0).status());
  ASSIGN_OR_RETURN(Text text, to_text(runtime, input));
  return runtime.make_string(std::move(text), true);
}

bool is_unreserved(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '.' ||
         c == '-' || c == '~';
}

Status append_quoted(Runtime& runtime, Text& out, const Value& value, bool is_query) {
  ASSIGN_OR_RETURN(const Text text, to_text(runtime, value));
  RETURN_IF_ERROR(runtime.check_string_size(out.size() + text.size() * 3));
  text.for_each_run(0, text.size(), [&](size_t begin, size_t end, bool is_trusted) {
    std::string piece;
    for (const char c : text.bytes().substr(begin, end - begin)) {
      if (is_unreserved(c) || (c == '/' && !is_query)) {
        piece.push_back(c);
      } else if (c == ' ' && is_query) {
        piece.push_back('+');
      } else {
        constexpr char kHex[] = "0123456789ABCDEF";
        piece.push_back('%');
        piece.push_back(kHex[static_cast<uint8_t>(c) >> 4]);
        piece.push_back(kHex[static_cast<uint8_t>(c) & 15]);
      }
    }
    out.append(piece, is_trusted);
  });
  return ok_status();
}

Result<Value> urlencode_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  RETURN_IF_ERROR(bind_arguments("urlencode", arguments, {}, 0).status());
  Text out;
  if (input.is_string() || !is_iterable(input)) {
    RETURN_IF_ERROR(append_quoted(runtime, out, input, false));
    return runtime.make_string(std::move(out));
  }
  std::vector<std::pair<Value, Value>> pairs;
  if (input.is_dict()) {
    pairs = input.dict_object().entries;
  } else {
    ASSIGN_OR_RETURN(const std::vector<Value> items, collect_items(runtime, input));
    for (const Value& item : items) {
      ASSIGN_OR_RETURN(const std::vector<Value> pair, collect_items(runtime, item));
      if (pair.size() != 2) return invalid_argument("urlencode takes pairs");
      pairs.emplace_back(pair[0], pair[1]);
    }
  }
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (i > 0) out.append("&", false);
    RETURN_IF_ERROR(append_quoted(runtime, out, pairs[i].first, true));
    out.append("=", false);
    RETURN_IF_ERROR(append_quoted(runtime, out, pairs[i].second, true));
  }
  return runtime.make_string(std::move(out));
}

Result<Value> join_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const std::vector<Value> bound, bind_arguments("join", arguments, {"d", "attribute"}, 0));
  ASSIGN_OR_RETURN(std::vector<Value> items, collect_items(runtime, input));
  if (!bound[1].is_missing() && !bound[1].is_none()) {
    for (Value& item : items) {
      ASSIGN_OR_RETURN(item, attribute_path(runtime, item, bound[1], nullptr));
    }
  }
  Text separator;
  if (!bound[0].is_missing()) {
    ASSIGN_OR_RETURN(separator, to_text(runtime, bound[0]));
  }
  Text out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.append(separator);
    RETURN_IF_ERROR(append_str(runtime, out, items[i]));
  }
  RETURN_IF_ERROR(runtime.check_string_size(out.size()));
  return runtime.make_string(std::move(out));
}

constexpr FilterRow kTextFilters[] = {
    {"capitalize", method_filter<2>},
    {"center", center_filter},
    {"e", escape_filter},
    {"escape", escape_filter},
    {"forceescape", forceescape_filter},
    {"format", format_filter},
    {"indent", indent_filter},
    {"join", join_filter},
    {"lower", method_filter<1>},
    {"replace", replace_filter},
    {"safe", safe_filter},
    {"string", string_filter},
    {"title", title_filter},
    {"trim", trim_filter},
    {"truncate", truncate_filter},
    {"upper", method_filter<0>},
    {"urlencode", urlencode_filter},
    {"wordcount", wordcount_filter},
};

}  // namespace

std::span<const FilterRow> text_filters() {
  return kTextFilters;
}

}  // namespace quire::jinja
