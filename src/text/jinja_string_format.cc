// str.format and str.format_map of Python, on marked text.
#include <functional>

#include "text/jinja_format.h"
#include "text/jinja_string_call.h"
#include "text/jinja_unicode.h"

namespace quire::jinja {
namespace {

class Formatter {
 public:
  explicit Formatter(const StringCall& call) : call_(call), text_(call.text()), bytes_(call.bytes()) {}

  Result<Value> run() {
    Text out;
    RETURN_IF_ERROR(format(0, bytes_.size(), 2, out));
    return call_.make(std::move(out));
  }

 private:
  Status format(size_t at, size_t end, int levels, Text& out) {
    if (levels == 0) return invalid_argument("Max string recursion exceeded");
    while (at < end) {
      RETURN_IF_ERROR(call_.runtime.check_string_size(out.size()));
      const size_t brace = std::min(bytes_.find_first_of("{}", at), end);
      out.append(text_, at, brace);
      if (brace >= end) return ok_status();
      at = brace + 1;
      if (at < end && bytes_[at] == bytes_[brace]) {
        out.append(text_, brace, at);
        ++at;
        continue;
      }
      if (bytes_[brace] == '}') return invalid_argument("Single '}' encountered in format string");
      if (at >= end) return invalid_argument("Single '{' encountered in format string");
      size_t close = at;
      for (int open = 1;; ++close) {
        if (close >= end) return invalid_argument("expected '}' before end of string");
        open += bytes_[close] == '{' ? 1 : bytes_[close] == '}' ? -1 : 0;
        if (open == 0) break;
      }
      RETURN_IF_ERROR(format_field(at, close, levels, out));
      at = close + 1;
    }
    return ok_status();
  }

  Status format_field(size_t begin, size_t end, int levels, Text& out) {
    size_t name_end = begin;
    for (int brackets = 0; name_end < end; ++name_end) {
      const char c = bytes_[name_end];
      if (c == '[') ++brackets;
      if (c == ']') --brackets;
      if (c == '{') return invalid_argument("unexpected '{' in field name");
      if (brackets <= 0 && (c == ':' || c == '!')) break;
    }
    ASSIGN_OR_RETURN(Value value, field(bytes_.substr(begin, name_end - begin)));
    size_t at = name_end;
    if (at < end && bytes_[at] == '!') {
      if (at + 1 >= end) return invalid_argument("unmatched '{' in format spec");
      const char conversion = bytes_[at + 1];
      if (conversion != 'r' && conversion != 's')
        return invalid_argument("Unknown conversion specifier in a format string");
      Text converted;
      if (conversion == 'r') {
        RETURN_IF_ERROR(append_repr(call_.runtime, converted, value));
      } else {
        RETURN_IF_ERROR(append_str(call_.runtime, converted, value));
      }
      value = call_.runtime.make_string(std::move(converted));
      at += 2;
      if (at < end && bytes_[at] != ':') return invalid_argument("expected ':' after conversion specifier");
    }
    Text specification;
    if (at < end) RETURN_IF_ERROR(format(at + 1, end, levels - 1, specification));
    ASSIGN_OR_RETURN(const Text formatted, format_value(call_.runtime, value, specification));
    if (call_.is_markup() && !(value.is_string() && value.str().is_markup)) {
      out.append(escape_html(formatted));
    } else {
      out.append(formatted);
    }
    return ok_status();
  }

  static std::optional<int64_t> parse_index(std::string_view text) {
    if (text.empty() || text.size() > 9) return std::nullopt;
    int64_t index = 0;
    for (const char c : text) {
      if (c < '0' || c > '9') return std::nullopt;
      index = index * 10 + (c - '0');
    }
    return index;
  }

  Result<Value> positional(int64_t index) {
    const auto& values = call_.arguments.positional;
    if (static_cast<size_t>(index) >= values.size()) {
      return invalid_argument("Replacement index " + std::to_string(index) + " out of range for positional args tuple");
    }
    return values[static_cast<size_t>(index)];
  }

  Result<Value> field(std::string_view name) {
    const size_t first_end = std::min(name.find_first_of(".["), name.size());
    const std::string_view first = name.substr(0, first_end);
    Value value;
    if (first.empty()) {
      if (is_manual_)
        return invalid_argument("cannot switch from manual field specification to automatic field numbering");
      is_automatic_ = true;
      ASSIGN_OR_RETURN(value, positional(next_index_++));
    } else if (const std::optional<int64_t> index = parse_index(first)) {
      if (is_automatic_)
        return invalid_argument("cannot switch from automatic field numbering to manual field specification");
      is_manual_ = true;
      ASSIGN_OR_RETURN(value, positional(*index));
    } else {
      const auto& named = call_.arguments.named;
      const auto it = std::find_if(named.begin(), named.end(), [&](const auto& entry) { return entry.first == first; });
      if (it == named.end()) return invalid_argument("KeyError: '" + std::string(first) + "'");
      value = it->second;
    }
    for (size_t at = first_end; at < name.size();) {
      if (name[at] == '.') {
        const size_t end = std::min(name.find_first_of(".[", at + 1), name.size());
        if (end == at + 1) return invalid_argument("Empty attribute in format string");
        ASSIGN_OR_RETURN(value, get_attribute(call_.runtime, value, name.substr(at + 1, end - at - 1)));
        at = end;
      } else if (name[at] == '[') {
        const size_t end = name.find(']', at);
        if (end == std::string_view::npos) return invalid_argument("Missing ']' in format string");
        const std::string_view key = name.substr(at + 1, end - at - 1);
        if (key.empty()) return invalid_argument("Empty attribute in format string");
        const std::optional<int64_t> index = parse_index(key);
        ASSIGN_OR_RETURN(
            value, get_item(call_.runtime, value, index ? Value::integer(*index) : Value::string(std::string(key))));
        at = end + 1;
      } else {
        return invalid_argument("Only '.' or '[' may follow ']' in format field specifier");
      }
    }
    return value;
  }

  const StringCall& call_;
  const Text& text_;
  const std::string_view bytes_;
  int64_t next_index_ = 0;
  bool is_automatic_ = false, is_manual_ = false;
};

}  // namespace

Result<Value> format(const StringCall& call) {
  return Formatter(call).run();
}

Result<Value> format_map(const StringCall& call) {
  ASSIGN_OR_RETURN(const std::vector<Value> bound, call.bind({"/mapping"}, 1));
  if (!bound[0].is_dict()) return invalid_argument("format_map() takes a mapping");
  Arguments arguments;
  for (const auto& [key, value] : bound[0].dict_object().entries) {
    if (key.is_string()) arguments.named.emplace_back(key.bytes(), value);
  }
  return Formatter({call.runtime, call.self, "format", arguments}).run();
}

}  // namespace quire::jinja
