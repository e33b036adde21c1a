// The methods of Python's str that templates use, on marked text. Positions are characters for the template, bytes
// here.
#include <algorithm>
#include <limits>

#include "text/jinja_format.h"
#include "text/jinja_string_call.h"
#include "text/jinja_unicode.h"

namespace quire::jinja {

Status expects_string(std::string_view method, const Value& value) {
  return invalid_argument(std::string(method) + "() argument must be str, not " + type_name(value));
}

Result<int64_t> integer_argument(const Value& value, int64_t fallback) {
  if (value.is_missing()) return fallback;
  if (value.is_int_like()) return value.int_value();
  return invalid_argument(std::string("'") + type_name(value) + "' object cannot be interpreted as an integer");
}

namespace {

constexpr size_t kNotFound = std::string_view::npos;

// ---- strip ----

bool is_stripped(uint32_t code_point, const std::optional<std::vector<uint32_t>>& set) {
  if (!set) return is_python_space(code_point);
  return std::find(set->begin(), set->end(), code_point) != set->end();
}

Result<Value> strip(const StringCall& call) {
  ASSIGN_OR_RETURN(const std::vector<Value> bound, call.bind({"/chars"}, 0));
  std::optional<std::vector<uint32_t>> set;
  if (!bound[0].is_missing() && !bound[0].is_none()) {
    if (!bound[0].is_string()) return invalid_argument(std::string(call.name) + " arg must be None or str");
    set.emplace();
    for (size_t i = 0; i < bound[0].bytes().size();) {
      const CodePoint point = code_point_at(bound[0].bytes(), i);
      set->push_back(point.value);
      i += point.num_bytes;
    }
    RETURN_IF_ERROR(call.runtime.touch_bytes(call.bytes().size() * (set->size() + 1)));
  }
  const std::string_view bytes = call.bytes();
  size_t begin = 0, end = bytes.size();
  if (call.name != "rstrip") {
    while (begin < end) {
      const CodePoint point = code_point_at(bytes, begin);
      if (!is_stripped(point.value, set)) break;
      begin += point.num_bytes;
    }
  }
  if (call.name != "lstrip") {
    while (end > begin) {
      const size_t previous = previous_offset(bytes, end);
      if (!is_stripped(code_point_at(bytes, previous).value, set)) break;
      end = previous;
    }
  }
  return call.piece(begin, end);
}

// ---- search ----

// The window of [start:end] in bytes; none where start lies behind the text.
Result<std::optional<Piece>> window(const StringCall& call, const Value& start, const Value& end) {
  const StringObject& string = call.self.str();
  const int64_t length = static_cast<int64_t>(string.num_chars);
  const auto index = [&](const Value& value, int64_t fallback) -> Result<int64_t> {
    if (value.is_missing() || value.is_none()) return fallback;
    if (!value.is_int_like())
      return invalid_argument("slice indices must be integers or None or have an __index__ method");
    int64_t position = value.int_value();
    if (position < 0) position = position < -length ? 0 : position + length;
    return position;
  };
  ASSIGN_OR_RETURN(const int64_t from, index(start, 0));
  ASSIGN_OR_RETURN(int64_t to, index(end, length));
  to = std::min(to, length);
  if (from > to) return std::optional<Piece>();
  return std::optional<Piece>({string.offset_of(static_cast<size_t>(from)), string.offset_of(static_cast<size_t>(to))});
}

Result<Value> find(const StringCall& call) {
  ASSIGN_OR_RETURN(const std::vector<Value> bound, call.bind({"/sub", "/start", "/end"}, 1));
  if (!bound[0].is_string()) return expects_string(call.name, bound[0]);
  ASSIGN_OR_RETURN(const std::optional<Piece> range, window(call, bound[1], bound[2]));
  size_t found = kNotFound;
  if (range) {
    const std::string_view part = call.bytes().substr(range->begin, range->end - range->begin);
    found = call.name.starts_with('r') ? part.rfind(bound[0].bytes()) : part.find(bound[0].bytes());
  }
  if (found == kNotFound) {
    if (call.name.ends_with("index")) return invalid_argument("substring not found");
    return Value::integer(-1);
  }
  return Value::integer(static_cast<int64_t>(count_code_points(call.bytes().substr(0, range->begin + found))));
}

Result<Value> count(const StringCall& call) {
  ASSIGN_OR_RETURN(const std::vector<Value> bound, call.bind({"/sub", "/start", "/end"}, 1));
  if (!bound[0].is_string()) return expects_string(call.name, bound[0]);
  ASSIGN_OR_RETURN(const std::optional<Piece> range, window(call, bound[1], bound[2]));
  if (!range) return Value::integer(0);
  const std::string_view part = call.bytes().substr(range->begin, range->end - range->begin);
  const std::string_view sub = bound[0].bytes();
  if (sub.empty()) return Value::integer(static_cast<int64_t>(count_code_points(part)) + 1);
  int64_t total = 0;
  for (size_t at = part.find(sub); at != kNotFound; at = part.find(sub, at + sub.size())) ++total;
  return Value::integer(total);
}

Result<Value> starts_or_ends_with(const StringCall& call) {
  ASSIGN_OR_RETURN(const std::vector<Value> bound, call.bind({"/affix", "/start", "/end"}, 1));
  ASSIGN_OR_RETURN(const std::optional<Piece> range, window(call, bound[1], bound[2]));
  const auto matches = [&](const Value& affix) {
    if (!range) return false;
    const std::string_view part = call.bytes().substr(range->begin, range->end - range->begin);
    return call.name == "startswith" ? part.starts_with(affix.bytes()) : part.ends_with(affix.bytes());
  };
  if (bound[0].is_string()) return Value::boolean(matches(bound[0]));
  if (bound[0].kind() != Kind::kTuple) {
    return invalid_argument(std::string(call.name) + " first arg must be str or a tuple of str, not " +
                            type_name(bound[0]));
  }
  for (const Value& affix : bound[0].items()) {
    if (!affix.is_string()) {
      return invalid_argument("tuple for " + std::string(call.name) + " must only contain str, not " +
                              type_name(affix));
    }
    if (matches(affix)) return Value::boolean(true);
  }
  return Value::boolean(false);
}

// ---- change ----

Result<Value> replace(const StringCall& call) {
  ASSIGN_OR_RETURN(const std::vector<Value> bound, call.bind({"/old", "/new", "/count"}, 2));
  for (size_t i = 0; i < 2; ++i) {
    if (!bound[i].is_string()) return expects_string("replace", bound[i]);
  }
  ASSIGN_OR_RETURN(const int64_t max_count, integer_argument(bound[2], -1));
  const std::string_view bytes = call.bytes(), old = bound[0].bytes();
  const bool escapes = call.is_markup() && !bound[1].str().is_markup;
  const Text fresh = escapes ? escape_html(bound[1].text()) : bound[1].text();
  Text out;
  size_t at = 0;
  for (int64_t done = 0; max_count < 0 || done < max_count; ++done) {
    const size_t found = bytes.find(old, at);
    if (found == kNotFound) break;
    RETURN_IF_ERROR(call.runtime.check_string_size(out.size() + (found - at) + fresh.size()));
    out.append(call.text(), at, found);
    out.append(fresh);
    at = found + old.size();
    if (old.empty()) {  // between any two characters
      if (at >= bytes.size()) break;
      const size_t next = at + code_point_at(bytes, at).num_bytes;
      out.append(call.text(), at, next);
      at = next;
    }
  }
  out.append(call.text(), at, bytes.size());
  return call.make(std::move(out));
}

Result<Value> join(const StringCall& call) {
  ASSIGN_OR_RETURN(const std::vector<Value> bound, call.bind({"/iterable"}, 1));
  ASSIGN_OR_RETURN(const std::vector<Value> items, collect_items(call.runtime, bound[0]));
  Text out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i].is_string()) {
      return invalid_argument("sequence item " + std::to_string(i) + ": expected str instance, " + type_name(items[i]) +
                              " found");
    }
    RETURN_IF_ERROR(call.runtime.check_string_size(out.size() + items[i].text().size() + call.text().size()));
    if (i > 0) out.append(call.text());
    out.append(call.is_markup() && !items[i].str().is_markup ? escape_html(items[i].text()) : items[i].text());
  }
  return call.make(std::move(out));
}

Result<Value> change_case(const StringCall& call, CaseMapping mapping) {
  RETURN_IF_ERROR(call.bind({}, 0).status());
  RETURN_IF_ERROR(call.runtime.check_string_size(call.text().size()));
  return call.make(map_case(call.text(), mapping));
}

Result<Value> remove_affix(const StringCall& call) {
  ASSIGN_OR_RETURN(const std::vector<Value> bound, call.bind({"/affix"}, 1));
  if (!bound[0].is_string()) return expects_string(call.name, bound[0]);
  const std::string_view bytes = call.bytes(), affix = bound[0].bytes();
  if (call.name == "removeprefix" && bytes.starts_with(affix)) return call.piece(affix.size(), bytes.size());
  if (call.name == "removesuffix" && bytes.ends_with(affix)) return call.piece(0, bytes.size() - affix.size());
  return call.self;
}

void append_repeated(Text& out, const Text& fill, int64_t times) {
  for (int64_t i = 0; i < times; ++i) out.append(fill);
}

Result<Value> pad(const StringCall& call) {
  ASSIGN_OR_RETURN(const std::vector<Value> bound, call.bind({"/width", "/fillchar"}, 1));
  ASSIGN_OR_RETURN(const int64_t width, integer_argument(bound[0], 0));
  Text fill(" ", false);
  if (!bound[1].is_missing()) {
    if (!bound[1].is_string() || bound[1].str().num_chars != 1) {
      return invalid_argument("The fill character must be exactly one character long");
    }
    fill = bound[1].text();
  }
  const int64_t missing = width - static_cast<int64_t>(call.self.str().num_chars);
  if (missing <= 0) return call.self;
  if (missing > static_cast<int64_t>(call.runtime.limits().max_output_bytes)) {
    return call.runtime.check_string_size(static_cast<size_t>(missing));
  }
  RETURN_IF_ERROR(call.runtime.check_string_size(call.text().size() + static_cast<size_t>(missing) * fill.size()));
  const int64_t left = call.name == "ljust" ? 0 : call.name == "rjust" ? missing : missing / 2 + (missing & width & 1);
  Text out;
  append_repeated(out, fill, left);
  out.append(call.text());
  append_repeated(out, fill, missing - left);
  return call.make(std::move(out));
}

Result<Value> zfill(const StringCall& call) {
  ASSIGN_OR_RETURN(const std::vector<Value> bound, call.bind({"/width"}, 1));
  ASSIGN_OR_RETURN(const int64_t width, integer_argument(bound[0], 0));
  const int64_t missing = width - static_cast<int64_t>(call.self.str().num_chars);
  if (missing <= 0) return call.self;
  RETURN_IF_ERROR(call.runtime.check_string_size(call.text().size() + static_cast<size_t>(missing)));
  const bool has_sign = call.bytes().starts_with('+') || call.bytes().starts_with('-');
  Text out;
  out.append(call.text(), 0, has_sign ? 1 : 0);
  out.append(std::string(static_cast<size_t>(missing), '0'), false);
  out.append(call.text(), has_sign ? 1 : 0, call.text().size());
  return call.make(std::move(out));
}

Result<Value> expandtabs(const StringCall& call) {
  ASSIGN_OR_RETURN(const std::vector<Value> bound, call.bind({"tabsize"}, 0));
  ASSIGN_OR_RETURN(const int64_t tab_size, integer_argument(bound[0], 8));
  if (tab_size > 1024) return invalid_argument("a tab size of more than 1024 is not supported");
  Text out;
  int64_t column = 0;
  for (size_t at = 0; at < call.bytes().size();) {
    const CodePoint point = code_point_at(call.bytes(), at);
    if (point.value == '\t') {
      const int64_t spaces = tab_size > 0 ? tab_size - column % tab_size : 0;
      RETURN_IF_ERROR(call.runtime.check_string_size(out.size() + static_cast<size_t>(spaces)));
      out.append(std::string(static_cast<size_t>(spaces), ' '), call.text().is_trusted_at(at));
      column += spaces;
    } else {
      out.append(call.text(), at, at + point.num_bytes);
      column = point.value == '\n' || point.value == '\r' ? 0 : column + 1;
    }
    at += point.num_bytes;
  }
  return call.make(std::move(out));
}

// ---- questions ----

Result<Value> all_characters(const StringCall& call, bool (*holds)(uint32_t), bool for_empty) {
  RETURN_IF_ERROR(call.bind({}, 0).status());
  if (call.bytes().empty()) return Value::boolean(for_empty);
  for (size_t at = 0; at < call.bytes().size();) {
    const CodePoint point = code_point_at(call.bytes(), at);
    if (!holds(point.value)) return Value::boolean(false);
    at += point.num_bytes;
  }
  return Value::boolean(true);
}

Result<Value> is_cased(const StringCall& call) {
  RETURN_IF_ERROR(call.bind({}, 0).status());
  const bool wants_upper = call.name == "isupper";
  bool has_cased = false;
  bool was_cased = false;
  for (size_t at = 0; at < call.bytes().size();) {
    const CodePoint point = code_point_at(call.bytes(), at);
    const bool upper = is_upper(point.value) || (call.name == "istitle" && is_title(point.value));
    const bool lower = is_lower(point.value);
    if (call.name == "istitle") {
      if ((upper && was_cased) || (lower && !was_cased)) return Value::boolean(false);
      was_cased = upper || lower;
      has_cased = has_cased || was_cased;
    } else {
      if (wants_upper ? lower : upper) return Value::boolean(false);
      if (is_title(point.value)) return Value::boolean(false);
      has_cased = has_cased || upper || lower;
    }
    at += point.num_bytes;
  }
  return Value::boolean(has_cased);
}

Result<Value> is_identifier(const StringCall& call) {
  RETURN_IF_ERROR(call.bind({}, 0).status());
  const std::string_view bytes = call.bytes();
  for (size_t at = 0; at < bytes.size();) {
    const CodePoint point = code_point_at(bytes, at);
    const bool is_start = point.value == '_' || is_alpha(point.value);
    if (!is_start && (at == 0 || !is_decimal(point.value))) return Value::boolean(false);
    at += point.num_bytes;
  }
  return Value::boolean(!bytes.empty());
}

bool is_alnum(uint32_t c) {
  return is_alpha(c) || is_numeric(c);
}
bool is_ascii_char(uint32_t c) {
  return c < 0x80;
}

struct MethodRow {
  std::string_view name;
  Result<Value> (*apply)(const StringCall& call);
};

constexpr MethodRow kMethods[] = {
    {"capitalize", [](const StringCall& call) { return change_case(call, CaseMapping::kCapitalize); }},
    {"casefold", [](const StringCall& call) { return change_case(call, CaseMapping::kFold); }},
    {"center", pad},
    {"count", count},
    {"encode",
     [](const StringCall&) {
       return Result<Value>(unimplemented("encode() is not supported in chat templates, which have no bytes"));
     }},
    {"endswith", starts_or_ends_with},
    {"expandtabs", expandtabs},
    {"find", find},
    {"format", format},
    {"format_map", format_map},
    {"index", find},
    {"isalnum", [](const StringCall& call) { return all_characters(call, is_alnum, false); }},
    {"isalpha", [](const StringCall& call) { return all_characters(call, is_alpha, false); }},
    {"isascii", [](const StringCall& call) { return all_characters(call, is_ascii_char, true); }},
    {"isdecimal", [](const StringCall& call) { return all_characters(call, is_decimal, false); }},
    {"isdigit", [](const StringCall& call) { return all_characters(call, is_digit, false); }},
    {"isidentifier", is_identifier},
    {"islower", is_cased},
    {"isnumeric", [](const StringCall& call) { return all_characters(call, is_numeric, false); }},
    {"isprintable", [](const StringCall& call) { return all_characters(call, is_printable, true); }},
    {"isspace", [](const StringCall& call) { return all_characters(call, is_python_space, false); }},
    {"istitle", is_cased},
    {"isupper", is_cased},
    {"join", join},
    {"ljust", pad},
    {"lower", [](const StringCall& call) { return change_case(call, CaseMapping::kLower); }},
    {"lstrip", strip},
    {"partition", partition},
    {"removeprefix", remove_affix},
    {"removesuffix", remove_affix},
    {"replace", replace},
    {"rfind", find},
    {"rindex", find},
    {"rjust", pad},
    {"rpartition", partition},
    {"rsplit", split},
    {"rstrip", strip},
    {"split", split},
    {"splitlines", split_lines},
    {"startswith", starts_or_ends_with},
    {"strip", strip},
    {"swapcase", [](const StringCall& call) { return change_case(call, CaseMapping::kSwap); }},
    {"title", [](const StringCall& call) { return change_case(call, CaseMapping::kTitle); }},
    {"upper", [](const StringCall& call) { return change_case(call, CaseMapping::kUpper); }},
    {"zfill", zfill},
};

}  // namespace

bool has_string_method(std::string_view name) {
  return std::any_of(std::begin(kMethods), std::end(kMethods), [&](const MethodRow& row) { return row.name == name; });
}

Result<Value> call_string_method(Runtime& runtime, const Value& self, std::string_view name,
                                 const Arguments& arguments) {
  RETURN_IF_ERROR(runtime.touch_bytes(self.text().size()));
  for (const MethodRow& row : kMethods) {
    if (row.name == name) return row.apply({runtime, self, name, arguments});
  }
  return invalid_argument("'str' object has no method '" + std::string(name) + "'");
}

}  // namespace quire::jinja
